"""Daemons that answer a join with something other than a share, or never answer."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pages.handmade import Grant, Simulator
from pages.joinmessages import reply
from run.driverclient import Client
from run.waiting import until

NOT_READY = 802
Start = Callable[..., Client]


@contextmanager
def in_place_of_the_daemon(
    grant: Grant, message: bytes | None, descriptors: int, seconds: float = 0
) -> Iterator[list[int]]:
    """Answers every join after a time with `message` (None: closes the connection) and this many descriptors; counts
    the joins."""
    grant.daemon_dies()
    server, joins = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), []
    server.bind(str(grant.directory / "grant.sock"))
    server.listen(8)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                joins.append(len(connection.recv(64)))
                time.sleep(seconds)
                if message is not None:
                    socket.send_fds(connection, [message], [grant.bell] * descriptors)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield joins
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


@pytest.mark.parametrize(
    ("message", "descriptors", "reason", "tries"),
    [
        (reply(magic=1), 1, "not a gpushare daemon of this version", 1),
        (reply()[:-1], 1, "not a gpushare daemon of this version", 1),
        (reply(error=3, text=b"the cupboard is bare"), 0, "refused this process: the cupboard is bare", 1),
        (reply(error=3, text=b"x" * 104), 0, "refused this process: xxx", 1),
        (reply(error=2), 0, "no reason given", 1),
        (reply(), 0, "no usable slot or descriptor", 1),
        (reply(slot=1024), 1, "no usable slot or descriptor", 1),
        (reply(slot=1024), 3, "no usable slot or descriptor", 1),
        # The daemon may come back, so the join is retried for a while.
        pytest.param(None, 0, "closed the connection", 2, marks=pytest.mark.slow),
    ],
)
def test_odd_answers(
    grant: Grant, start: Start, message: bytes | None, descriptors: int, reason: str, tries: int
) -> None:
    with in_place_of_the_daemon(grant, message, descriptors) as joins:
        client = start(grant)
        assert client("init").result == NOT_READY
        assert descriptors_of(client) == ["0", "1", "2"]
        [line] = client.end().splitlines()
    assert line.startswith("gpushare: this process gets no GPU: ")
    assert reason in line
    assert set(joins) == {16}
    assert len(joins) == 1 if tries == 1 else len(joins) >= tries


@pytest.mark.slow
def test_a_busy_daemon_is_asked_once(grant: Grant, start: Start) -> None:
    """Whoever asks again takes a second place in the queue, and for a moment a slot that others are refused."""
    with in_place_of_the_daemon(grant, reply(slot=1024), 1, seconds=4) as joins:
        client = start(grant)
        assert client("init").result == NOT_READY
    assert "no usable slot or descriptor" in client.end()
    assert len(joins) == 1


@pytest.mark.slow
def test_a_daemon_that_goes_after_a_long_wait_may_come_back(grant: Grant, start: Start) -> None:
    with in_place_of_the_daemon(grant, None, 0, seconds=6) as joins:
        client = start(grant)
        client.say("init")
        until(lambda: joins, "it has asked")
    (grant.directory / "grant.sock").unlink()
    grant.daemon_returns()
    assert client.hear().result == 0
    assert client.end() == ""


def descriptors_of(client: Client) -> list[str]:
    return sorted(os.listdir(f"/proc/{client.pid}/fd"))


def test_a_daemon_that_gives_another_slot(grant: Grant, sim: Simulator, start: Start) -> None:
    """After a restart, a process continues with its slot, or without a daemon; never with the slot of another
    process."""
    client = start(grant)
    client.ok("init", "retain 0", "alloc 1000000")
    held = descriptors_of(client)
    with in_place_of_the_daemon(grant, reply(slot=7), 1) as joins:
        until(lambda: len(joins) >= 2, "it tried to join again")
        until(lambda: len(descriptors_of(client)) <= len(held), "what was refused is closed")
        client.ok("alloc 1000000")
    (grant.directory / "grant.sock").unlink()
    grant.daemon_returns()
    until(lambda: grant.connections == 1, "it joined the daemon that knows it")
    client.ok("free 0")
    assert sim.books()["devices"][0]["peak_bytes"] <= 2 << 30


def test_a_new_connection_takes_the_old_ones_number(grant: Grant, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0")
    ours = [name for name in descriptors_of(client) if int(name) >= 512]
    assert len(ours) >= 2
    grant.daemon_dies()
    grant.daemon_returns()
    until(lambda: grant.connections == 1, "it joined again")
    assert [name for name in descriptors_of(client) if int(name) >= 512] == ours, "under the numbers it had"
    client.ok("alloc 512")
