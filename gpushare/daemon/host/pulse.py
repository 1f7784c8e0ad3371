"""The daemon's loop as others see it: how long its turns take, and a sign of life for systemd."""

import asyncio
import os
import selectors
import socket
import time
from collections import deque
from contextlib import suppress

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
"""Upper bounds in seconds."""
_WINDOW_SECONDS = 10.0
_WINDOWS = 6


class Latency:
    """How long the loop's turns took: the longest that anything else had to wait. Seconds."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self.below = [0] * len(BUCKETS)
        self._longest: deque[tuple[float, float]] = deque(maxlen=_WINDOWS)

    def add(self, seconds: float, now: float) -> None:
        """Adds a turn that ended at `now`."""
        self.count += 1
        self.total += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.below[index] += 1
                break
        if not self._longest or now - self._longest[-1][0] > _WINDOW_SECONDS:
            self._longest.append((now, seconds))
        elif seconds > self._longest[-1][1]:
            self._longest[-1] = (self._longest[-1][0], seconds)

    def longest(self, now: float) -> float:
        """The longest turn of the last minute."""
        since = now - _WINDOW_SECONDS * _WINDOWS
        return max((seconds for began, seconds in self._longest if began >= since), default=0.0)


class _Selector(selectors.DefaultSelector):
    """Measures each turn of the loop: the time between two waits."""

    def __init__(self, latency: Latency) -> None:
        super().__init__()
        self._latency, self._began = latency, 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        now = time.monotonic()
        if self._began:
            self._latency.add(now - self._began, now)
        found = super().select(timeout)
        self._began = time.monotonic()
        return found


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose turns are measured."""

    def __init__(self, latency: Latency) -> None:
        super().__init__(_Selector(latency))


def notify(message: str) -> None:
    """Sends a message of systemd's protocol: READY, STOPPING, WATCHDOG."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out, suppress(OSError):
        out.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


async def beat() -> None:
    """Tells systemd that the loop turns, twice per watchdog interval, without end. Only waits if systemd does not ask
    for it."""
    asked, of = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not asked.isdecimal() or not int(asked) or of not in ("", str(os.getpid())):
        await asyncio.Event().wait()
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(asked) / 2e6)
