"""How much device memory a grant's processes hold beyond what they were charged, from readings that are not of one
instant.

A driver takes memory for itself at calls of which the interposer cannot know how much it will be: code that it loads
late, page tables, graphs. What its count of the processes shows beyond the books counts against the grant's limit too.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

READINGS = 5
"""One reading proves nothing: books and driver are not read at one instant. In so many in a row, of which the audit
makes 20 a second, a program that allocates and frees all the while had to be met at the same point each time."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One grant on one device. `driver_bytes`: what the driver counts for its processes. `least_bytes`, `most_bytes`:
    what the books said around that question, without and with what calls in progress may take."""

    driver_bytes: int
    least_bytes: int
    most_bytes: int


def bounds(readings: Iterable[Reading]) -> tuple[int, int]:
    """Between which numbers the memory is that was in no book in all of these readings."""
    found = list(readings)
    low = min(one.driver_bytes for one in found) - max(one.most_bytes for one in found)
    high = max(one.driver_bytes for one in found) - min(one.least_bytes for one in found)
    return low, high


class Uncharged:
    """The last readings of each grant on each device."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, int], deque[Reading]] = {}

    def follow(self, key: tuple[str, int], reading: Reading, known: int) -> int:
        """The bytes that are uncharged from now on. `known`: up to now; it stays while it may be right."""
        readings = self._readings.setdefault(key, deque(maxlen=READINGS))
        readings.append(reading)
        if len(readings) < READINGS:
            return known
        low, high = bounds(readings)
        return max(0, min(max(known, low), high))

    def keep(self, keys: Iterable[tuple[str, int]]) -> None:
        """Forgets all others."""
        wanted = set(keys)
        self._readings = {key: readings for key, readings in self._readings.items() if key in wanted}
