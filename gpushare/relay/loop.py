"""One thread's events: descriptors, timers, and what other threads ask for. Both ends of a link run on it."""

import contextlib
import heapq
import itertools
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable

IN, OUT, ERR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR
_EVENTS_MAX = 256
"""Most events of one turn."""
_AWAKE_NS = 150_000
"""For how long the loop waits awake where connections are joined and its last wait was as short. A core that sleeps
takes 30 us and more to wake up, and each call of a program that waits for its answer wakes both relays twice."""

Happened = Callable[[int], None]


class Timer:
    """Something that is to happen once."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """It will not happen. Harmless afterwards."""
        self._act = None

    def fire(self) -> None:
        """It happens now, unless it has or was cancelled."""
        act, self._act = self._act, None
        if act is not None:
            act()


class Loop:
    """All methods but `call` and `stop` belong to the thread that runs it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.events = 1
        """How many descriptors are handled in this turn: each has this part of what one may take."""
        self.splices = 0
        """How many connections are joined on it: all of them together hold a bounded amount."""
        self._poll = select.epoll()
        self._handlers: dict[int, tuple[int, Happened]] = {}
        self._new: set[int] = set()
        """Descriptors watched since this turn began: events of it are of former ones with their numbers."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._asked: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopped = False
        self._soon = False
        """Whether the last wait ended within _AWAKE_NS: then the next may, too."""
        self.watch(self._bell, IN, self._rung)

    # Descriptors.

    def watch(self, descriptor: int, events: int, happened: Happened) -> None:
        """Calls `happened` with the events of a descriptor from now on, level-triggered. `events` 0: with none, not
        even its end, until this is called again."""
        before = self._handlers.get(descriptor)
        if events == 0:
            self.forget(descriptor)
            return
        if before is None:
            self._poll.register(descriptor, events)
            self._new.add(descriptor)
        elif before[0] != events:
            self._poll.modify(descriptor, events)
        self._handlers[descriptor] = (events, happened)

    def forget(self, descriptor: int) -> None:
        """Watches it no more; to be called before it is closed. An unknown one is ignored."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # Time.

    def after(self, seconds: float, act: Callable[[], None]) -> Timer:
        """Calls `act` once that many seconds have gone by."""
        timer = Timer(act)
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), timer))
        return timer

    # Other threads.

    def call(self, act: Callable[[], None]) -> None:
        """Has `act` called in the loop's thread, soon. May be called from any thread."""
        self._asked.append(act)
        self._ring()

    def stop(self) -> None:
        """Makes `run` return. May be called from any thread."""
        self._stopped = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.eventfd_write(self._bell, 1)

    def _rung(self, _: int) -> None:
        os.eventfd_read(self._bell)
        for _ in range(len(self._asked)):
            try:
                self._asked.popleft()()
            except Exception:  # or nothing that others ask for would be done any more
                sys.excepthook(*sys.exc_info())

    # Turns.

    def run(self) -> None:
        """Serves until `stop`."""
        while not self._stopped:
            self.turn(None)

    def turn(self, seconds: float | None) -> None:
        """Handles what has happened; waits for it for at most so long; None: until something does."""
        self._new.clear()
        found = self._found(self._wait(seconds))
        self.events = len(found) or 1
        for descriptor, events in found:
            handler = self._handlers.get(descriptor)
            if handler is not None and descriptor not in self._new:
                try:
                    handler[1](events)
                except Exception:
                    # A defect, which a stranger may have found: it costs this connection, not all others.
                    self.forget(descriptor)
                    sys.excepthook(*sys.exc_info())
        if self._timers:
            self._fire()

    def _found(self, seconds: float | None) -> list[tuple[int, int]]:
        """What has happened, or happens within so long; None: without end."""
        began = time.monotonic_ns()
        found = self._awake(began + _AWAKE_NS) if self._soon and self.splices and seconds != 0 else []
        if not found:
            found = self._poll.poll(seconds, _EVENTS_MAX)
        self._soon = bool(found) and time.monotonic_ns() - began < _AWAKE_NS
        return found

    def _awake(self, until_ns: int) -> list[tuple[int, int]]:
        """What happens until then; does not sleep meanwhile."""
        found: list[tuple[int, int]] = []
        while not found and time.monotonic_ns() < until_ns:
            os.sched_yield()  # who is to answer may have no other core
            found = self._poll.poll(0, _EVENTS_MAX)
        return found

    def _wait(self, seconds: float | None) -> float | None:
        if not self._timers:
            return seconds
        left = max(0.0, self._timers[0][0] - self.now())
        return left if seconds is None else min(left, seconds)

    def _fire(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            try:
                heapq.heappop(self._timers)[2].fire()
            except Exception:
                sys.excepthook(*sys.exc_info())

    def close(self) -> None:
        """Frees the loop's own descriptors; those that it watches stay open."""
        self._poll.close()
        os.close(self._bell)
