"""What is done where borrowers of a device's memory stand in each other's way: where work waits for memory, and nothing
that is on the device has any, for more of the time than moving memory may take. Pure: times are arguments.

Turns are as long as the moves ask for (room.py), so this is for what that does not foresee, such as a link that others
use. Owners have no part in it: they always fit together.
"""

import enum
from dataclasses import dataclass
from fractions import Fraction

WINDOW_NS = 60 * 10**9
BAD_WINDOWS = 2
"""In a row, before more is done."""
CALM_WINDOWS = 5
"""In a row, before less is done."""
FACTOR_MOST = 8
"""Turns for moves of a second are 20 s then, and no turn is made longer than two minutes (room.py)."""


class Measure(enum.IntEnum):
    """What is done, each together with those before it."""

    NONE = 0
    LONGER_TURNS = 1
    NO_NEW_LOANS = 2
    PARK = 3
    """The lowest borrower stays in host memory until others are idle."""


@dataclass(frozen=True, slots=True)
class Level:
    """`factor`: by how much turns are longer."""

    measure: Measure = Measure.NONE
    factor: int = 1


class Pressure:
    """Of one device. `share`: of the time, what may be lost."""

    def __init__(self, share: Fraction) -> None:
        self._share = share
        self._passed = self._stalled = 0
        self._bad = self._calm = 0
        self.level = Level()
        self.last: Fraction | None = None
        """The share that was lost in the last window; None: none is over yet."""

    def passed(self, ns: int, *, stalled: bool) -> bool:
        """So much time has passed, in which work waited and nothing on the device could run, or not. Returns whether
        what is to be done has changed."""
        self._passed += ns
        self._stalled += ns if stalled else 0
        if self._passed < WINDOW_NS:
            return False
        self.last = Fraction(self._stalled, self._passed)
        self._passed = self._stalled = 0
        bad = self.last > self._share
        self._bad, self._calm = (self._bad + 1, 0) if bad else (0, self._calm + 1)
        before = self.level
        if self._bad == BAD_WINDOWS:
            self._bad, self.level = 0, _more(before)
        elif self._calm == CALM_WINDOWS:
            self._calm, self.level = 0, _less(before)
        return self.level != before


def _more(now: Level) -> Level:
    if now.measure <= Measure.LONGER_TURNS and now.factor * 2 <= FACTOR_MOST:
        return Level(Measure.LONGER_TURNS, now.factor * 2)
    return Level(Measure(min(Measure.PARK, max(now.measure + 1, Measure.NO_NEW_LOANS))), now.factor)


def _less(now: Level) -> Level:
    if now.measure > Measure.LONGER_TURNS:
        left = Measure(now.measure - 1)
        return Level(left if now.factor > 1 or left > Measure.LONGER_TURNS else Measure.NONE, now.factor)
    factor = max(1, now.factor // 2)
    return Level(Measure.LONGER_TURNS if factor > 1 else Measure.NONE, factor)
