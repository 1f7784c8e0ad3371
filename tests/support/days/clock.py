"""Virtual time: an event loop that runs what is due, in order, and the clocks that go with it."""

import asyncio
import heapq
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

S, MS = 10**9, 10**6
_START_NS = 1000 * S
_WALL_NS = 1_700_000_000 * S


class Killed(BaseException):
    """The daemon is killed here. No handler of its own may see it, so it is no Exception."""


class Due:
    """A call at a time; as asyncio.TimerHandle."""

    __slots__ = ("_dead", "arguments", "call", "loop")

    def __init__(self, loop: "Loop | None", call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.loop, self.call, self.arguments, self._dead = loop, call, arguments, False

    def cancel(self) -> None:
        self._dead = True

    @property
    def dead(self) -> bool:
        return self._dead or (self.loop is not None and self.loop.dead)


class Clock:
    """`now_ns`: monotonic. `after`: called after each call, with nothing under way."""

    def __init__(self) -> None:
        self.now_ns = _START_NS
        self._heap: list[tuple[int, int, Due]] = []
        self._number = 0
        self.after: Callable[[], None] = lambda: None

    def at(self, ns: int, call: Callable[..., object], *arguments: Any, loop: "Loop | None" = None) -> Due:
        due = Due(loop, call, arguments)
        self._number += 1
        heapq.heappush(self._heap, (max(ns, self.now_ns), self._number, due))
        return due

    def later(self, ns: int, call: Callable[..., object], *arguments: Any) -> Due:
        return self.at(self.now_ns + ns, call, *arguments)

    def run_until(self, ns: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Runs what is due up to this time, or until `stop`."""
        heap = self._heap
        while heap and heap[0][0] <= ns and not stop():
            when, _, due = heapq.heappop(heap)
            if not due.dead:
                self.now_ns = when
                if due.loop is not None:
                    due.loop.run(due.call, due.arguments)
                else:
                    due.call(*due.arguments)
                self.after()
        if not stop():
            self.now_ns = max(self.now_ns, ns)


class Loop:
    """The event loop of one life of the daemon. `run`: runs a call of the daemon. `dead`: nothing of it runs any
    more."""

    def __init__(self, clock: Clock, run: Callable[..., Any]) -> None:
        self._clock, self._run, self.dead = clock, run, False

    def run(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._run(call, *arguments)

    def time(self) -> float:
        return self._clock.now_ns / 1e9

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> Due:
        return self._clock.at(self._clock.now_ns, call, *arguments, loop=self)

    def call_later(self, delay: float, call: Callable[..., object], *arguments: Any) -> Due:
        # Rounded up: a timer is never early.
        return self._clock.at(self._clock.now_ns + int(delay * 1e9) + 1, call, *arguments, loop=self)

    def call_at(self, when: float, call: Callable[..., object], *arguments: Any) -> Due:
        return self._clock.at(int(when * 1e9), call, *arguments, loop=self)


class _Time:
    """The module `time`, as the daemon's modules see it."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic_ns(self) -> int:
        return self._clock.now_ns

    def monotonic(self) -> float:
        return self._clock.now_ns / 1e9

    def time_ns(self) -> int:
        return _WALL_NS + self._clock.now_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def clock_gettime_ns(self, _: int) -> int:
        return self._clock.now_ns


@contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Gives the daemon's modules this clock instead of the real one."""
    found = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(("gpushare.daemon.", "gpushare.policy.")) and getattr(module, "time", None) is time
    ]
    fake = _Time(clock)
    for module in found:
        module.time = fake  # type: ignore[attr-defined]
    before = asyncio._get_running_loop()
    try:
        yield
    finally:
        asyncio._set_running_loop(before)
        for module in found:
            module.time = time  # type: ignore[attr-defined]


def spread(rng: random.Random, low: float, high: float) -> float:
    """A number between these, each order of magnitude as likely as another."""
    return float(low * (high / low) ** rng.random())
