"""How a carrier's server starts, or does not, and how it is connected to."""

import os
import socket
from contextlib import closing
from typing import Any

import pytest
from machine import ordinary
from remote import sandboxes
from remote.sandboxes import NotStartedError, Sandbox, Server
from run import built
from run.running import Daemon
from run.waiting import until

from gpushare.sandbox import messages

PYTHON = "/usr/bin/python3"
LISTENS = "import socket; s = socket.create_server(('127.0.0.1', 7434)); "


def test_connections(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    server = sandbox.hostile(bound)
    for _ in range(3):
        connection = server.connect()
        assert connection is not None
        with connection, connection.makefile("rwb", buffering=0) as stream:
            stream.write(b"list /root\n")
            assert stream.readline() == b"\n"
    server.hang_up()
    until(server.gone, "it ends")


def test_many_are_asked_for_at_once(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    echo = "\nwhile True:\n c, _ = s.accept(); d = c.recv(9); d and c.sendall(d)"
    server = sandbox.start(bound, PYTHON, "-c", f"{LISTENS}{echo}")
    server.connector.sendall(b"c" * 20)
    made = []
    for _ in range(20):
        answer, descriptors, _, _ = socket.recv_fds(server.connector, 1, 1)
        assert answer == b"+"
        made.append(socket.socket(fileno=descriptors[0]))
    for number, connection in enumerate(made):
        with connection:
            connection.settimeout(60)
            connection.sendall(b"%d" % number)
            assert connection.recv(9) == b"%d" % number
    server.hang_up()


def test_a_server_that_has_closed_its_port(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    server = sandbox.start(bound, PYTHON, "-c", f"{LISTENS}s.accept(); s.close(); import time; time.sleep(1e6)")
    until(lambda: _is_refused(server), "a connection is refused")
    server.hang_up()


def _is_refused(server: Server) -> bool:
    connection = server.connect()
    if connection is not None:
        connection.close()
    return connection is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["/nowhere/server"], "cannot be started: /nowhere/server: No such file or directory"),
        (["/etc/passwd"], "cannot be started: /etc/passwd: Permission denied"),
        (["sh", "-c", "echo first >&2; echo 'no\tsuch device' >&2; exit 3"], "ended with status 3: no\\tsuch device"),
        (["sh", "-c", "echo x; kill -9 $$"], "was ended by signal 9: x"),
        (["sh", "-c", "head -c 1000000 /dev/zero; exit 1"], "ended with status 1: \\x00"),
    ],
)
def test_it_ends_before_it_listens(sandbox: Sandbox, bound: dict[str, Any], words: list[str], reason: str) -> None:
    with pytest.raises(NotStartedError) as raised:
        sandbox.start(bound, *words)
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 1500
    server = sandbox.servers[-1]
    assert not server.processes()
    until(server.gone, "its cgroups are removed")


def test_it_never_listens(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    with pytest.raises(NotStartedError, match=r"does not listen on 127\.0\.0\.1:7434 after 0\.2 s: waits"):
        sandbox.start(bound, "sh", "-c", "echo waits; sleep 1000", seconds=0.2)
    assert not sandbox.servers[-1].processes()


def test_it_listens_elsewhere(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    with pytest.raises(NotStartedError, match="does not listen"):
        sandbox.start(bound, str(built.program("hostile")), "7435", seconds=0.2)


def test_nothing_of_the_environment_but_what_was_given(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    prints = "import os; print(sorted(os.environ), open('/proc/self/cmdline').read().count('\\0')); raise SystemExit(1)"
    with pytest.raises(NotStartedError) as raised:
        sandbox.start(bound, PYTHON, "-c", prints, env={"OF_CARRIER": "1"})
    names = ["GPUSHARE_GRANT_DIR", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "OF_CARRIER", "PATH"]
    assert all(f"'{name}'" in str(raised.value) for name in names)
    assert not {name for name in os.environ if name.startswith("PYTEST")} & set(str(raised.value).split("'"))


def test_output_without_end(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    chatty = f"{LISTENS}\nwhile True:\n print('x' * 4096); c = s.accept()[0]; c.close()"
    server = sandbox.start(bound, PYTHON, "-uc", f"import sys; sys.stdout.write('y' * 1000000); {chatty}")
    for _ in range(40):  # more than a pipe holds
        connection = server.connect()
        assert connection is not None
        with connection:
            assert connection.recv(1) == b""
    server.hang_up()


def test_two_at_once(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    pair = [sandbox.begin()[0] for _ in range(2)]
    for server in pair:
        sandbox.go(server, bound, str(built.program("hostile")), str(sandboxes.PORT))
    for server in reversed(pair):
        sandbox.ready(server)
    for server in pair:
        assert server.ask("list", "/root") == ""
        server.hang_up()


@pytest.mark.parametrize("when", ["started", "gone"])
def test_cancelled(sandbox: Sandbox, bound: dict[str, Any], when: str) -> None:
    server, _ = sandbox.begin()
    if when == "gone":
        sandbox.go(server, bound, "sleep", "1000")
        until(lambda: len(server.processes()) == 3, "the server runs")
    sandbox.send(messages.Cancel(server.number))
    assert sandbox.hear(server.number) == messages.Failed(server.number, "it was cancelled")
    assert not server.processes()
    sandbox.send(messages.Cancel(server.number))  # unknown now
    server.hang_up()


@pytest.mark.parametrize("when", ["started", "gone"])
def test_the_relays_end_is_closed_before_it_is_ready(sandbox: Sandbox, bound: dict[str, Any], when: str) -> None:
    server, _ = sandbox.begin()
    if when == "gone":
        sandbox.go(server, bound, "sleep", "1000")
        until(lambda: len(server.processes()) == 3, "the server runs")
    server.hang_up()
    assert isinstance(sandbox.hear(server.number), messages.Failed)
    assert not server.processes()


def test_killed_before_it_is_ready(sandbox: Sandbox) -> None:
    server, pid = sandbox.begin()
    os.kill(pid, 9)
    assert sandbox.hear(server.number) == messages.Failed(server.number, "it was killed")
    server.hang_up()


def test_killed_before_it_is_to_go_on(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    """Whoever waits for what follows `Go` is answered, also by a helper that never knew of the supervisor."""
    server, pid = sandbox.begin()
    os.kill(pid, 9)
    sandbox.hear(server.number)
    sandbox.go(server, bound, "sleep", "1000")
    assert sandbox.hear(server.number) == messages.Failed(server.number, "it was killed")
    server.hang_up()


def test_a_grant_that_is_not_there(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    with pytest.raises(NotStartedError, match="the grant's files cannot be mounted"):
        sandbox.start({**bound, "dir": "/nowhere"}, "sleep", "1")


def test_a_device_that_is_not_there(sandbox: Sandbox, bound: dict[str, Any]) -> None:
    with pytest.raises(NotStartedError, match="/dev/none: No such file"):
        sandbox.start(bound, "sleep", "1", devices=["/dev/none"])


def test_a_daemon_that_is_not_root(daemon: Daemon) -> None:
    with closing(Sandbox(daemon, *ordinary.prefix())) as sandbox, pytest.raises(NotStartedError, match="is not root's"):
        sandbox.begin()


def test_servers_keep_nothing_of_the_daemon(sandbox: Sandbox, hostile: Server) -> None:
    kept = {
        os.readlink(f"/proc/{sandbox.process.pid}/fd/{name}") for name in os.listdir(f"/proc/{sandbox.process.pid}/fd")
    }
    held = {
        os.readlink(f"/proc/{pid}/fd/{name}") for pid in hostile.processes() for name in os.listdir(f"/proc/{pid}/fd")
    }
    assert held & kept <= {"/dev/null", "anon_inode:[pidfd]"}  # all pidfds are called so
