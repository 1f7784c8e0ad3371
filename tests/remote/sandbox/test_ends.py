"""How a carrier's server ends: with its relay, with its grant, and when something is killed at any moment."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from remote import sandboxes
from remote.sandboxes import NotStartedError, Sandbox, Server
from run import built
from run.running import Daemon, alive
from run.waiting import until

from gpushare.sandbox.connector import END_SECONDS

pytestmark = pytest.mark.promise("server-ends-with-relay")


def test_the_relay_ends(sandbox: Sandbox, daemon: Daemon) -> None:
    server = sandbox.hostile(None)
    assert daemon.client.grant(server.grant)["phase"] == "active"
    for name in ("mnt", "net", "ipc", "uts"):  # they end with their last process
        assert Path(f"/proc/{server.pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink()
    server.hang_up()
    until(server.gone, "it ends")
    until(lambda: daemon.client.grant(server.grant)["phase"] == "released", "the grant ends")


def test_processes_that_left_and_do_not_listen(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    server = sandbox.hostile(bound)
    assert server.error("away") == 0
    assert server.error("deaf") == 0
    until(lambda: len(server.processes()) == 4, "one has left")
    began = time.monotonic()
    server.hang_up()
    until(server.gone, "all end")
    assert time.monotonic() - began >= END_SECONDS


def test_it_has_time_to_end(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    says = (
        "import signal, socket, sys; s = socket.create_server(('127.0.0.1', 7434)); s.accept(); c = s.accept()[0]; "
        "signal.signal(signal.SIGTERM, lambda *_: (c.sendall(b'bye'), sys.exit())); signal.pause()"
    )
    server = sandbox.start(bound, "/usr/bin/python3", "-c", says)
    connection = server.connect()
    assert connection is not None
    until(lambda: _catches_term(server.main()), "it is ready for the signal")
    server.hang_up()
    with connection:
        assert connection.recv(9) == b"bye"
    until(server.gone, "it ends")


def _catches_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_the_server_ends(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    server = sandbox.hostile(bound)
    assert server.error("away") == 0
    with contextlib.suppress(AssertionError):
        server.ask("exit", 0)
    assert server.connector.recv(1) == b""
    until(server.gone, "all end")


@pytest.mark.parametrize("victim", ["supervisor", "first", "server"])
def test_killed(sandbox: Sandbox, daemon: Daemon, victim: str) -> None:
    server = sandbox.hostile(None)
    assert server.error("away") == 0
    pids = {"supervisor": server.pid, "first": sandboxes.child(server.pid), "server": server.main()}
    os.kill(pids[victim], signal.SIGKILL)
    assert server.connector.recv(1) == b""
    until(server.gone, "all end")
    until(lambda: daemon.client.grant(server.grant)["phase"] == "released", "the grant ends")


def test_the_grant_is_released(sandbox: Sandbox, daemon: Daemon) -> None:
    server = sandbox.hostile(None)
    assert server.error("away") == 0
    daemon.client.release(server.grant)
    assert server.connector.recv(1) == b""
    until(server.gone, "all end")


def test_the_helper_is_killed(daemon: Daemon) -> None:
    """What runs goes on, what is about to start ends, and the next helper removes the cgroups of both."""
    with sandboxes.sandbox(daemon) as first, sandboxes.bound_grant(daemon) as bound:
        runs = first.hostile(bound)
        waits, _ = first.begin()
        starts, _ = first.begin()
        first.go(starts, bound, "sleep", "1000")
        until(lambda: len(starts.processes()) == 3, "the server runs")
        first.kill()
        until(lambda: not waits.processes() and not starts.processes(), "they end with it")
        assert runs.ask("list", "/root") == ""
        with sandboxes.sandbox(daemon):
            until(lambda: waits.gone() and starts.gone(), "their cgroups are removed")
            runs.hang_up()
            until(runs.gone, "so is that of the one that went on")


@pytest.mark.parametrize("rounds", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_at_any_moment(daemon: Daemon, bound: dict[str, Any], rounds: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    sandbox = sandboxes.Sandbox(daemon)
    servers: list[Server] = []
    try:
        for _ in range(rounds):
            server, pid = sandbox.begin()
            servers.append(server)
            victim = dice.choice(("supervisor", "child", "helper", "relay"))
            sandbox.go(server, bound, str(built.program("hostile")), str(server.port))
            time.sleep(dice.uniform(0, 0.06))  # the moment, not a wait
            _end_one(victim, sandbox, server, pid)
            if victim == "helper":
                sandbox.kill()
                server.hang_up()
                sandbox = sandboxes.Sandbox(daemon)
            else:
                with contextlib.suppress(NotStartedError):
                    sandbox.ready(server)
                server.hang_up()
            until(server.gone, f"nothing is left after the end of the {victim}")
    finally:
        sandbox.close()


def _end_one(victim: str, sandbox: Sandbox, server: Server, pid: int) -> None:
    if victim == "supervisor":
        os.kill(pid, signal.SIGKILL)
    elif victim == "helper":
        sandbox.process.kill()
    elif victim == "relay":
        server.hang_up()
    else:
        with contextlib.suppress(OSError, IndexError):
            os.kill(sandboxes.child(pid), signal.SIGKILL)


def test_the_daemons_end_is_not_noticed(daemon: Daemon, sandbox: Sandbox) -> None:
    server = sandbox.hostile(None)
    daemon.kill()
    assert server.ask("list", "/root") == ""
    daemon.start()
    assert alive(server.pid)
    until(lambda: daemon.client.grant(server.grant)["phase"] == "active", "the grant goes on")
    server.hang_up()
    until(server.gone, "it ends")
    until(lambda: daemon.client.grant(server.grant)["phase"] == "released", "the grant ends")
