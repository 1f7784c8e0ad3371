"""Processes of a grant: they join, leave and die; and which ones are refused."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from pages.joinmessages import answered, request
from run.built import SUPPORT
from run.waiting import until

from gpushare._native import ffi
from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.binding.wire import JoinError

JOINER = SUPPORT / "run" / "joiner.py"


def pages(daemon, grant_id):
    own = daemon.layout.grants / grant_id / "self"
    return LimitsPage.open(own / "limits", writable=False), UsagePage.open(own / "usage", writable=False)


def slots(daemon, grant_id):
    limits, usage = pages(daemon, grant_id)
    with limits, usage:
        return [(slot.index, slot.pid) for slot in usage.live_slots(limits)]


def tell(child, word):
    child.stdin.write(word + "\n")
    return child.stdout.readline().split()


def test_join_gives_a_slot_the_host_pid_and_the_bell(daemon, client):
    child = daemon.tenant(sys.executable, str(JOINER))
    word, grant_id, slot, generation, pid, bells = child.stdout.readline().split()
    assert (word, slot, generation, pid, bells) == ("joined", "0", "1", str(child.pid), "1")
    assert client.grant(grant_id)["processes"] == [child.pid]
    assert client.grant(grant_id)["pid"] == child.pid
    assert slots(daemon, grant_id) == [(0, child.pid)]


@pytest.mark.promise("dead-hold-nothing")
def test_death_clears_the_slot_and_returns_the_bytes(daemon, client):
    # A shell keeps the grant alive while its child dies.
    child = daemon.tenant("sh", "-c", f'"{sys.executable}" "{JOINER}"; read line')
    _, grant_id, *_ = child.stdout.readline().split()
    tell(child, "hold 1000000")
    until(lambda: client.grant(grant_id)["devices"][0]["memory_bytes"] == 1000000, "the bytes are seen")
    [(_, pid)] = slots(daemon, grant_id)
    os.kill(pid, signal.SIGKILL)
    until(lambda: slots(daemon, grant_id) == [], "the slot is free")
    grant = client.grant(grant_id)
    assert (grant["phase"], grant["processes"], grant["devices"][0]["memory_bytes"]) == ("active", [], 0)


def test_children_join_too_and_the_grant_outlives_its_first_process(daemon, client):
    script = f'"{sys.executable}" "{JOINER}" <&0 & exit 0'
    # The shell exits at once. Standard input of a background job is /dev/null unless redirected.
    child = daemon.tenant("sh", "-c", f"exec 3<&0; {script.replace('<&0', '<&3')}")
    _, grant_id, *_ = child.stdout.readline().split()
    child.wait(20)
    assert client.grant(grant_id)["phase"] == "active"
    child.stdin.write("end\n")
    until(lambda: client.grant(grant_id)["phase"] == "released", "released with its last process")


def test_grant_ends_with_its_process(daemon, client):
    child, grant_id = daemon.join()
    child.stdin.write("end\n")
    assert child.wait(20) == 0
    until(lambda: client.grant(grant_id)["phase"] == "released", "released")
    assert daemon.grant_dirs() == set()


def test_closed_connection_is_not_death(daemon, client):
    child, grant_id = daemon.join()
    tell(child, "hold 4096")
    assert tell(child, "hangup") == ["closed"]
    assert client.grant(grant_id)["processes"] == [child.pid]
    word, _, slot, generation, *_ = tell(child, "rejoin")
    assert (word, slot, generation) == ("joined", "0", "1")
    assert client.grant(grant_id)["devices"][0]["memory_bytes"] == 4096


def test_exec_takes_a_new_slot_and_gives_the_old_one_back(daemon, client):
    child, grant_id = daemon.join()
    tell(child, "hold 4096")
    word, _, slot, generation, *_ = tell(child, "exec")
    assert (word, slot, generation) == ("joined", "0", "2")
    grant = client.grant(grant_id)
    assert (grant["processes"], grant["devices"][0]["memory_bytes"]) == ([child.pid], 0)


def test_exec_without_another_join_gives_the_slot_back(daemon, client):
    child, grant_id = daemon.join()
    tell(child, "hold 4096")
    child.stdin.write("sleep\n")
    until(lambda: client.grant(grant_id)["devices"][0]["memory_bytes"] == 0, "the bytes are back", 3)
    assert client.grant(grant_id)["phase"] == "active", "the process lives"


def test_an_exec_as_another_user_gives_the_slot_back(daemon, client):
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    child, grant_id = daemon.join()
    child.stdin.write("nobody\n")
    until(lambda: client.grant(grant_id)["processes"] == [], "the slot is free", 3)


def test_bytes_stay_until_the_exec_is_over(daemon, client):
    """Files closed by an exec are closed one after another, the interposer's before the driver's. A process stopped
    before the first instruction of its new program simulates a driver that frees memory slowly."""
    child, grant_id = daemon.join(forked=False)
    tell(child, "hold 4096")
    child.stdin.write("traced\n")
    _, status = os.waitpid(child.pid, 0)
    assert os.WIFSTOPPED(status)
    try:
        time.sleep(0.4)  # long enough to expose a daemon that relies on the first event
        assert client.grant(grant_id)["devices"][0]["memory_bytes"] == 4096
        assert slots(daemon, grant_id) == [(0, child.pid)]
    finally:
        detach = 17
        assert ctypes.CDLL(None).ptrace(detach, child.pid, 0, 0) == 0
    until(lambda: client.grant(grant_id)["devices"][0]["memory_bytes"] == 0, "the bytes are back", 3)


@pytest.mark.promise("forged-join-refused")
def test_stranger_is_refused_by_cgroup(daemon, client):
    child, grant_id = daemon.join()
    path = daemon.layout.grants / grant_id / "self" / "grant.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(path))
        connection.send(request())
        answer = answered(connection.recv(128))
    assert answer.error == JoinError.REFUSED
    assert b"not in the cgroup" in ffi.string(answer.message)
    assert client.grant(grant_id)["processes"] == [child.pid]


def test_nobody_joins_a_grant_that_is_not_in_use(client, daemon):
    grant = client.create(memory="1GiB", time=100)
    assert not os.path.exists(f"{grant['dir']}/grant.sock")
    client.bind(grant["id"], "container")
    environment = {**os.environ, "GPUSHARE_GRANT_DIR": grant["dir"]}
    done = subprocess.run(
        [sys.executable, JOINER], env=environment, input="", capture_output=True, text=True, check=False
    )
    assert "refused 3" in done.stdout
    assert "not in use yet" in done.stdout


@pytest.mark.promise("page-misleads-nobody")
def test_malformed_joins_are_answered_and_harm_nobody(daemon, client):
    child, grant_id = daemon.join()
    path = str(daemon.layout.grants / grant_id / "self" / "grant.sock")
    for message in (b"x", b"\0" * 16, request(version=2), b"y" * 4000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            connection.send(message)
            answer = answered(connection.recv(128))
        assert answer.error == JoinError.VERSION
        assert b"version" in ffi.string(answer.message)
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(path)
    silent.close()
    assert tell(child, "fork")[0] == "joined"
    assert client.grant(grant_id)["phase"] == "active"


@pytest.mark.promise("page-room-is-own")
def test_truncated_usage_page_ends_the_grant(daemon, client):
    child, grant_id = daemon.join()
    os.truncate(daemon.layout.grants / grant_id / "self" / "usage", 0)
    until(lambda: client.grant(grant_id)["phase"] == "failed", "failed")
    assert "truncated" in client.grant(grant_id)["reason"]
    assert child.wait(20) == -9
