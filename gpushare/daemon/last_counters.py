"""The counters of grants that have ended, for as long as it takes until they have been scraped. Pure."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.arbiter import GrantStats
from gpushare.inject.pod import Pod

KEPT_SECONDS = 120.0
"""Two scrapes at Prometheus' default interval, one minute."""
KEPT = 256
"""Rows: of each grant one for each of its devices. A scrape gets no longer than that, however many come and go."""


@dataclass(frozen=True, slots=True)
class Last:
    """What a grant had got on a device when it ended. `at`: monotonic seconds."""

    at: float
    grant: str
    tenant: str
    pod: Pod
    device: str
    stats: GrantStats


class LastCounters:
    """The latest rows. Those in which nothing happened are not kept: nobody misses them."""

    def __init__(self) -> None:
        self._rows: deque[Last] = deque(maxlen=KEPT)

    def add(self, last: Last) -> None:
        """Of a grant that is about to end."""
        stats = last.stats
        if stats.leased_ns or stats.busy_ns or stats.wait_ns:
            self._rows.append(last)

    def rows(self, now: float) -> Iterator[Last]:
        """Those that are kept at this time, monotonic seconds."""
        while self._rows and self._rows[0].at + KEPT_SECONDS <= now:
            self._rows.popleft()
        return iter(tuple(self._rows))
