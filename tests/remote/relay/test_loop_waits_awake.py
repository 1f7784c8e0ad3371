"""Where messages come soon after one another, a relay does not sleep between them; else it does."""

import select
import socket
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from gpushare.relay import loop
from gpushare.relay.loop import IN, Loop

STEP_NS = 10_000


class Clock:
    """In place of the module `time`, for the loop: each look at the clock takes STEP_NS."""

    def __init__(self) -> None:
        self.ns = 0

    def monotonic_ns(self) -> int:
        self.ns += STEP_NS
        return self.ns


class Counted:
    """An epoll object that counts how often it is asked."""

    def __init__(self, poll: Any) -> None:
        self._poll, self.asked = poll, 0

    def poll(self, *arguments: Any) -> Any:
        self.asked += 1
        return self._poll.poll(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)


class Exchange:
    """A loop with one connection, of which it believes that it is joined with another."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.near, self.far = socket.socketpair()
        self.loop.watch(self.near.fileno(), IN, self._read)
        self.counted = Counted(self.loop._poll)
        self.loop._poll = cast(select.epoll, self.counted)
        self.loop.splices = 1

    def _read(self, _: int) -> None:
        self.near.recv(1)

    def polls(self, *, message: bool) -> int:
        """How often one turn asks, in which a message comes at once, or none within 2 ms."""
        before = self.counted.asked
        if message:
            self.far.send(b"x")
        self.loop.turn(0.002)
        return self.counted.asked - before

    def close(self) -> None:
        self.loop.close()
        self.near.close()
        self.far.close()


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange()
    yield made
    made.close()


def test_after_a_message_that_came_soon(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time", Clock())
    assert exchange.polls(message=True) == 1
    assert exchange.polls(message=False) == loop._AWAKE_NS // STEP_NS, "awake for so long, and once asleep"
    assert exchange.polls(message=False) == 1


def test_after_a_long_wait_it_sleeps(exchange: Exchange) -> None:
    exchange.polls(message=True)
    exchange.polls(message=False)
    assert [exchange.polls(message=False) for _ in range(20)] == [1] * 20


def test_without_joined_connections_it_sleeps(exchange: Exchange) -> None:
    exchange.loop.splices = 0
    for _ in range(20):
        assert exchange.polls(message=True) == 1
        assert exchange.polls(message=False) == 1


def test_between_messages_that_come_seldom_it_takes_no_time(exchange: Exchange) -> None:
    began = time.thread_time()
    for _ in range(50):
        exchange.polls(message=True)
        exchange.polls(message=False)
    assert time.thread_time() - began < 0.05, "of 100 ms of waiting at least"
