"""The life of a grant over the node API."""

import http.client
import json
import os
import socket
import subprocess
import sys

import pytest
from pages.pagewords import device_limits, managed
from run.waiting import until

from gpushare.binding.page_words import Managed
from gpushare.binding.pages import LimitsPage
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.state.hardware import Hardware
from gpushare.enforce.cgroup import Hierarchies
from gpushare.errors import FailedError, NotFoundError, RefusedError, UsageError
from gpushare.inject.node import Node
from gpushare.paths import Layout
from gpushare.text.units import PAGE

GIB = 1 << 30


def test_round_trip(daemon, client):
    grant = client.create(memory=4 * GIB, time=250)
    assert grant["phase"] == "reserved"
    assert grant["devices"][0]["memory_limit_bytes"] == 4 * GIB
    assert grant["devices"][0]["time_milli"] == 250
    assert grant["cdi"] == [f"gpushare.dev/gpu={grant['id']}"]
    assert client.grant(grant["id"])["id"] == grant["id"]
    assert [found["id"] for found in client.grants()] == [grant["id"]]
    assert daemon.grant_dirs() == {grant["id"]}
    spec = json.loads((daemon.layout.cdi / daemon.specs()[0]).read_text())
    assert spec["devices"][0]["name"] == grant["id"]

    ended = client.release(grant["id"])
    assert (ended["phase"], ended["reason"]) == ("released", f"released by uid {os.geteuid()}")
    assert client.grants() == []
    assert client.grants(ended=True)[0]["id"] == grant["id"]
    assert client.release(grant["id"])["phase"] == "released"
    assert daemon.grant_dirs() == set()
    assert daemon.specs() == []


def test_memory_as_percentage(client):
    grant = client.create(memory="35%", time="30%")
    assert grant["devices"][0]["memory_limit_bytes"] == 16 * GIB * 35 // 100 // PAGE * PAGE
    assert grant["devices"][0]["time_milli"] == 300


def test_several_devices(client):
    grant = client.create(memory=GIB, time=500, devices=2)
    assert sorted(device["index"] for device in grant["devices"]) == [0, 1]


def test_device_by_index_and_id(client):
    devices = client.devices()
    assert client.create(memory=GIB, time=100, device=1)["devices"][0]["index"] == 1
    assert client.create(memory=GIB, time=100, device=devices[1]["id"])["devices"][0]["index"] == 1
    assert client.devices()[1]["guaranteed"] == {"time": 200, "memory": 2 * GIB}


def test_idempotent_on_key(daemon, client):
    first = client.create(memory=GIB, time=100, key="pod-1")
    assert client.create(memory=GIB, time=100, key="pod-1")["id"] == first["id"]
    with pytest.raises(RefusedError, match="pod-1"):
        client.create(memory=2 * GIB, time=100, key="pod-1")
    assert daemon.grant_dirs() == {first["id"]}
    client.release(first["id"])
    assert client.create(memory=GIB, time=100, key="pod-1")["id"] != first["id"]


def test_what_does_not_fit_is_refused_with_numbers(daemon, client):
    client.create(memory=12 * GIB, time=600, device=0)
    with pytest.raises(RefusedError, match="4GiB of 16GiB is free"):
        client.create(memory=5 * GIB, time=100, device=0)
    with pytest.raises(RefusedError, match="50% of time does not fit"):
        client.create(memory=GIB, time=500, device=0)
    with pytest.raises(RefusedError, match="256MiB"):
        client.create(memory=64 << 20, time=100)
    assert len(daemon.grant_dirs()) == 1


def test_reservation_expires(daemon, client, phase_of):
    grant = client.create(memory=GIB, time=100, ttl_seconds=1)
    until(lambda: phase_of(grant["id"]) == "expired", "the reservation expires")
    assert "not bound within 1 s" in client.grant(grant["id"])["reason"]
    assert daemon.grant_dirs() == set()
    assert daemon.specs() == []


def test_resize(client):
    grant = client.create(memory=4 * GIB, time=250)
    changed = client.resize(grant["id"], memory="8GiB", time="50%")
    assert changed["devices"][0]["memory_limit_bytes"] == 8 * GIB
    assert changed["devices"][0]["time_milli"] == 500
    with pytest.raises(RefusedError, match="does not fit"):
        client.resize(grant["id"], memory=17 * GIB)
    with pytest.raises(UsageError, match="nothing to change"):
        client.resize(grant["id"])
    assert client.grant(grant["id"])["devices"][0]["memory_limit_bytes"] == 8 * GIB


@pytest.mark.parametrize(
    ("asked", "means"), [(None, Managed.CHARGE), ("charge", Managed.CHARGE), ("refuse", Managed.REFUSE)]
)
def test_managed_memory_is_the_grants_word(daemon, client, asked, means):
    grant = client.create(memory=GIB, time=100, managed=asked)
    assert grant["managed"] == (asked or "charge")
    with LimitsPage.open(daemon.layout.grants / grant["id"] / "self/limits", writable=False) as page:
        assert managed(page) is means


def test_an_unknown_word_on_managed_memory_is_refused(client):
    with pytest.raises(UsageError, match="managed"):
        client.create(memory=GIB, time=100, managed="ignore")


def test_resize_reaches_the_page(daemon, client):
    child, grant_id = daemon.join()
    client.resize(grant_id, memory=2 * GIB)
    with LimitsPage.open(daemon.layout.grants / grant_id / "self/limits", writable=False) as page:
        assert device_limits(page)[0].memory_bytes == 2 * GIB
    child.stdin.write(f"hold {GIB}\n")
    assert child.stdout.readline() == "held\n"
    with pytest.raises(RefusedError, match="holds"):
        client.resize(grant_id, memory=GIB // 2)


def test_a_grant_that_cannot_be_made_leaves_nothing(daemon, client):
    aside = daemon.layout.cdi.rename(daemon.layout.cdi.with_name("aside"))
    daemon.layout.cdi.write_text("in the way")
    with pytest.raises(FailedError, match="cannot be made"):
        client.create(memory=GIB, time=100, key="k")
    assert client.grants() == []
    assert daemon.grant_dirs() == set()
    daemon.layout.cdi.unlink()
    aside.rename(daemon.layout.cdi)
    assert client.create(memory=GIB, time=100, key="k")["phase"] == "reserved"


def test_a_missing_library_starts_nothing(tmp_path):
    libraries = tmp_path / "lib"
    libraries.mkdir()
    node = Node(sim_dir=tmp_path, lib_dir=libraries)
    resources = Resources(Layout.of(tmp_path), node, Hardware(node, []), None)
    with pytest.raises(FailedError, match=r"libgpushare\.so"):
        resources.check_parts()
    (libraries / "libgpushare.so").touch()
    with pytest.raises(FailedError, match=r"libgpushare-ml\.so"):
        resources.check_parts()
    # Root could read it; the loader of another user's process could not, and would continue without it.
    (libraries / "libgpushare.so").chmod(0o640)
    with pytest.raises(FailedError, match=r"not readable by all users.*libgpushare\.so"):
        resources.check_parts()


def test_unknown_grant(client):
    for call in (client.grant, client.release, lambda name: client.bind(name, "process")):
        with pytest.raises(NotFoundError, match="no grant 'g-nothing'"):
            call("g-nothing")


def test_release_kills_what_runs(daemon, client):
    child, grant_id = daemon.join()
    client.release(grant_id)
    assert child.wait(20) == -9
    until(lambda: daemon.grant_dirs() == set(), "the directory is gone")
    assert client.grant(grant_id)["phase"] == "released"


def test_bind_twice_is_refused(daemon, client):
    _, grant_id = daemon.join()
    with pytest.raises(RefusedError):
        client.bind(grant_id, "process")
    with pytest.raises(RefusedError):
        client.bind(grant_id, "container")


def test_bind_container_shows_the_mounts(client):
    grant = client.create(memory=GIB, time=100)
    binding = client.bind(grant["id"], "container")
    assert binding["dir"] == grant["dir"]
    assert "/run/gpushare/self/usage" in [mount["destination"] for mount in binding["mounts"]]
    assert client.grant(grant["id"])["phase"] == "bound"


def test_oci_edit_without_a_request_changes_nothing(daemon, client, tmp_path):
    config = {"ociVersion": "1.0.2", "process": {"args": ["true"]}, "root": {"path": "/"}}
    answer = client.call("POST", "/v1/oci/edit", {"bundle": str(tmp_path), "config": config})
    assert answer == {"config": config, "grant": None}
    assert daemon.grant_dirs() == set()


def test_oci_edit_makes_and_binds_a_grant(daemon, client, tmp_path):
    (tmp_path / "rootfs").mkdir()
    annotations = {"gpushare.dev/memory": "2GiB", "gpushare.dev/time": "40%"}
    config = {"process": {"args": ["true"]}, "root": {"path": "rootfs"}, "annotations": annotations}
    answer = client.call("POST", "/v1/oci/edit", {"bundle": str(tmp_path), "config": config})
    grant = client.grant(answer["grant"])
    assert (grant["phase"], grant["kind"]) == ("bound", "container")
    assert grant["devices"][0]["time_milli"] == 400
    assert answer["config"]["hooks"]["createRuntime"]


def test_oci_edit_that_cannot_be_leaves_no_grant(daemon, client, tmp_path):
    annotations = {"gpushare.dev/memory": "2GiB", "gpushare.dev/time": "40%"}
    config = {"process": "nonsense", "root": {"path": "rootfs"}, "mounts": 7, "annotations": annotations}
    with pytest.raises(UsageError):
        client.call("POST", "/v1/oci/edit", {"bundle": str(tmp_path), "config": config})
    assert daemon.grant_dirs() == set()
    assert client.grants() == []


def test_oci_edit_of_a_config_too_deep_leaves_no_grant(daemon, client, tmp_path):
    """Nor does one that is not too deep to read, but too deep to write."""
    refused = 0
    for depth in range(900, 1100, 5):
        deep = '{"a":' * depth + "1" + "}" * depth
        annotations = '{"gpushare.dev/memory":"2GiB","gpushare.dev/time":"40%"}'
        body = f'{{"bundle":"{tmp_path}","config":{{"annotations":{annotations},"x":{deep}}}}}'
        connection = http.client.HTTPConnection("localhost")
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.connect(str(daemon.layout.socket))
            connection.request("POST", "/v1/oci/edit", body.encode())
            response = connection.getresponse()
            answer = response.read()  # may be deeper than Python's JSON parser reads
        if response.status == 200:
            client.release(client.grants()[0]["id"])
        else:
            refused += 1
            assert response.status == 400, answer
        assert client.grants() == []
    assert refused


def test_hook_activates_and_the_end_releases(daemon, client):
    grant = client.create(memory=GIB, time=100)
    container = subprocess.Popen(["sleep", "1000"])
    try:
        target = f"/v1/hooks/create-runtime?grant={grant['id']}"
        state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": container.pid, "bundle": "/b"}
        state["annotations"] = {"io.kubernetes.pod.namespace": "lab", "io.kubernetes.pod.name": "train-0"}
        assert client.call("POST", target, state)["phase"] == "active"
        assert client.call("POST", target, state)["phase"] == "active"
        pod = {"namespace": "lab", "name": "train-0", "container": "", "uid": ""}
        runs = {"program": "sleep 1000", "container": "c", "pod": pod}
        until(lambda: client.grant(grant["id"])["workload"] == runs, "its program is read")
        assert client.grants()[0]["workload"] == runs
    finally:
        container.kill()
        container.wait()
    until(lambda: client.grant(grant["id"])["phase"] == "released", "released")
    assert client.grant(grant["id"])["workload"] == runs, "one that has ended is still known by it"
    assert daemon.grant_dirs() == set()


def test_a_process_that_runs_another_program_is_shown_with_that_and_cannot_write_to_terminals(daemon, client):
    evil = "exec -a '\x1b[31m\u202e字' sleep 1000"
    child = daemon.tenant("bash", "-c", f"echo up; read line; {evil}")
    assert child.stdout.readline() == "up\n"
    [grant] = client.grants()
    until(lambda: client.grant(grant["id"])["workload"]["program"].startswith("bash -c echo up;"), "the shell")
    child.stdin.write("\n")
    child.stdin.flush()
    until(lambda: client.grant(grant["id"])["workload"]["program"] == "\\x1b[31m\\u202e字 1000", "what it has become")


# clone3 (linux/sched.h) with set_tid: a process with the requested pid, which lives as long as this program.
SAME_NUMBER = """
import ctypes, os, signal, struct, sys
wanted = (ctypes.c_int * 1)(int(sys.argv[1]))
arguments = struct.pack("11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
child = ctypes.CDLL(None, use_errno=True).syscall(435, arguments, len(arguments))
if child == 0:
    signal.pause()
print(child, flush=True)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a process with a given number is root's to make")
def test_a_number_that_was_a_first_processs_is_a_strangers_container(daemon, client, tmp_path):
    """A container runs on after its first process has ended, and the kernel gives that pid to another container's
    process."""
    unified = Hierarchies.of().unified
    assert unified is not None
    group = unified / f"gpushare-test-{os.getpid()}-number"
    group.mkdir()
    first, other = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
    try:
        (group / "cgroup.procs").write_text(str(first.pid))
        grant = client.create(memory=GIB, time=100, keep=True)
        client.call("POST", f"/v1/hooks/create-runtime?grant={grant['id']}", {"pid": first.pid})
        (group / "cgroup.procs").write_text(str(other.pid))
        first.kill()
        first.wait()
        command = [sys.executable, "-c", SAME_NUMBER, str(first.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
            assert int(stranger.stdout.readline()) == first.pid
            state = {"pid": first.pid, "bundle": str(tmp_path)}
            config = {"annotations": {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "10%"}}
            device = client.devices()[0]["id"]
            placed = client.call("POST", f"/v1/oci/place?grant={device}", {"state": state, "config": config})
            assert client.grant(grant["id"])["phase"] == "active"
            assert placed["grant"] != grant["id"]
            assert client.grant(placed["grant"])["pid"] == first.pid
    finally:
        for process in (first, other):
            process.kill()
            process.wait()
        until(lambda: not (group / "cgroup.procs").read_text(), "the cgroup is empty")
        group.rmdir()
