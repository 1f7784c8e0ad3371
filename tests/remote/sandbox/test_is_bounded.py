"""A carrier's server takes more than it may."""

import errno
from typing import Any

import pytest
from remote.sandboxes import Sandbox, Server

pytestmark = pytest.mark.promise("server-is-bounded")

KILLED = 1009


@pytest.fixture(scope="session")
def neighbour(sandbox: Sandbox, bound: dict[str, Any]) -> Server:
    return sandbox.hostile(bound)


def test_memory(hostile: Server, neighbour: Server) -> None:
    assert hostile.error("eat", 24) == 0
    assert hostile.error("eat", 256) == KILLED
    assert hostile.error("eat", 24) == 0  # it goes on
    assert neighbour.error("eat", 24) == 0


@pytest.mark.parametrize("file", ["/tmp/f", "/dev/shm/f"])
def test_files_in_memory(hostile: Server, neighbour: Server, file: str) -> None:
    assert hostile.error("fill", file, 16) == 0
    assert hostile.error("fill", file, 256) == errno.ENOSPC
    assert hostile.error("eat", 24) == 0
    assert neighbour.error("fill", file, 16) == 0


def test_processes(hostile: Server, neighbour: Server) -> None:
    assert hostile.error("forks", 500) < 64
    assert hostile.error("forks", 8) == 8
    assert neighbour.error("forks", 8) == 8


def test_memory_that_its_main_process_takes(sandbox: Sandbox, neighbour: Server, bound: dict[str, Any]) -> None:
    greedy = (
        "import socket; s = socket.create_server(('127.0.0.1', 7434)); s.accept(); s.accept(); x = bytearray(1 << 29)"
    )
    server = sandbox.start(bound, "/usr/bin/python3", "-c", greedy)
    connection = server.connect()
    assert connection is not None
    with connection:
        assert server.connector.recv(1) == b""  # it was ended, and so its supervisor ends
    server.hang_up()
    assert neighbour.error("eat", 24) == 0
