"""How much device memory a grant's processes hold beyond what they were charged, from readings that are not taken at
one instant.

Some calls make the driver allocate memory whose size the interposer cannot know: code that is loaded late, page tables,
graphs. What the driver counts for the processes beyond the books counts against the grant's limit too.
"""

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

READINGS = 4
"""Readings in a row that are needed. One proves nothing: books and driver are not read at one instant. A program that
allocates and frees all the while would have to be caught at the same point in each of them."""
KEPT = 20
"""Lower bounds kept: memory that this many further readings do not show again is forgotten, in case a program was
caught like that after all."""


class Reading(NamedTuple):
    """One grant on one device. `driver_bytes`: what the driver counts for its processes. `least_bytes`, `most_bytes`:
    what the books said before and after the driver was asked, without and with what calls in progress may take."""

    driver_bytes: int
    least_bytes: int
    most_bytes: int


def bounds(readings: Iterable[Reading]) -> tuple[int, int]:
    """Lower and upper bound of the memory that was in no book in all of these readings."""
    driver, least, most = zip(*readings, strict=True)
    return min(driver) - max(most), max(driver) - min(least)


class Uncharged:
    """The last readings of each grant on each device."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, int], deque[Reading]] = {}
        self._lows: dict[tuple[str, int], deque[int]] = {}
        """Lower bounds that the latest readings have shown."""
        self._settled: dict[tuple[str, int], tuple[Reading, int]] = {}
        """Where all readings are the same: the reading, and the result. Most grants, most of the time."""

    def follow(self, key: tuple[str, int], reading: Reading, known: int) -> int:
        """How many bytes are uncharged: the largest recent lower bound, at most the current upper bound. `known`: how
        many were up to now."""
        if self._settled.get(key) == (reading, known):
            return known
        readings = self._readings.setdefault(key, deque(maxlen=READINGS))
        readings.append(reading)
        if len(readings) < READINGS:
            return known
        low, high = bounds(readings)
        still = readings.count(reading) == READINGS
        # The first time `known` is what an earlier daemon has seen.
        lows = self._lows.setdefault(key, deque([known], maxlen=KEPT))
        if still:
            lows.clear()
        lows.append(low)
        found = max(0, min(max(lows), high))
        if still:
            self._settled[key] = (reading, found)
        else:
            self._settled.pop(key, None)
        return found

    def keep(self, keys: Collection[tuple[str, int]]) -> None:
        """Forgets all others."""
        if len(keys) != len(self._readings):
            wanted = set(keys)
            self._readings = {key: readings for key, readings in self._readings.items() if key in wanted}
            self._lows = {key: lows for key, lows in self._lows.items() if key in wanted}
            self._settled = {key: found for key, found in self._settled.items() if key in wanted}
