"""How much device memory a grant's processes hold beyond what they were charged, from readings that are not of one
instant.

A driver takes memory for itself at calls of which the interposer cannot know how much it will be: code that it loads
late, page tables, graphs. What its count of the processes shows beyond the books counts against the grant's limit too.
"""

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

READINGS = 4
"""One reading proves nothing: books and driver are not read at one instant. In so many in a row a program that
allocates and frees all the while had to be met at the same point each time."""
KEPT = 20
"""After so many more in which it was not shown again it is forgotten, should a program be met so all the same."""


class Reading(NamedTuple):
    """One grant on one device. `driver_bytes`: what the driver counts for its processes. `least_bytes`, `most_bytes`:
    what the books said before and after it was asked, without and with what calls in progress may take."""

    driver_bytes: int
    least_bytes: int
    most_bytes: int


def bounds(readings: Iterable[Reading]) -> tuple[int, int]:
    """Between which numbers the memory is that was in no book in all of these readings."""
    driver, least, most = zip(*readings, strict=True)
    return min(driver) - max(most), max(driver) - min(least)


class Uncharged:
    """The last readings of each grant on each device."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, int], deque[Reading]] = {}
        self._lows: dict[tuple[str, int], deque[int]] = {}
        """What the latest readings have shown at least."""
        self._settled: dict[tuple[str, int], tuple[Reading, int]] = {}
        """Where all readings are the same, and what followed of them: most grants, most of the time."""

    def follow(self, key: tuple[str, int], reading: Reading, known: int) -> int:
        """How many bytes are uncharged: what the latest readings have shown, as far as it may still be right. `known`:
        that were up to now."""
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
