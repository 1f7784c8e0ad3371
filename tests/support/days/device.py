"""The judge of the days: what is really on a device, and what its link carries. It believes nobody."""

from collections import deque
from collections.abc import Callable

from days.clock import Clock, S


class Device:
    """`capacity`: bytes for grants. `used`: what is mapped there, `dying`: of that, by processes that have been killed.
    `out`, `into`: the two directions of its link."""

    def __init__(self, clock: Clock, name: str, capacity: int, rate: int) -> None:
        self.name, self.capacity, self.rate = name, capacity, rate
        self.used = self.dying = self.changes = 0
        self.out, self.into = Link(clock, rate), Link(clock, rate)

    def take(self, size: int) -> bool:
        """False: there is no room."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        self.changes += 1
        return True

    def give(self, size: int) -> None:
        self.used -= size
        self.changes += 1
        assert self.used >= 0


class Link:
    """One direction. Moves share it piece by piece."""

    def __init__(self, clock: Clock, rate: int) -> None:
        self._clock, self._rate = clock, rate
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._busy = False
        self.carried = 0

    def carry(self, size: int, done: Callable[[], None]) -> None:
        """Calls `done` when so many bytes are over."""
        self._queue.append((size, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            size, done = self._queue.popleft()
            self._clock.later(size * S // self._rate, self._over, size, done)

    def _over(self, size: int, done: Callable[[], None]) -> None:
        self.carried += size
        self._next()
        done()
