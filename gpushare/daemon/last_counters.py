"""The counters of grants that have ended, for as long as it takes until they have been scraped. Pure."""

from collections import deque
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
        self._rows: dict[str, deque[Last]] = {}
        """By tenant, the oldest first."""

    def add(self, last: Last) -> None:
        """Of a grant that is about to end."""
        stats = last.stats
        if not (stats.leased_ns or stats.busy_ns or stats.wait_ns):
            return
        self._rows.setdefault(last.tenant, deque()).append(last)
        if sum(map(len, self._rows.values())) > KEPT:
            # Who makes many grants loses its own rows by that, not those of others.
            max(self._rows.values(), key=len).popleft()

    def rows(self, now: float) -> list[Last]:
        """Those that are kept at this time, monotonic seconds."""
        for rows in self._rows.values():
            while rows and rows[0].at + KEPT_SECONDS <= now:
                rows.popleft()
        self._rows = {tenant: rows for tenant, rows in self._rows.items() if rows}
        return [row for rows in self._rows.values() for row in rows]
