"""The counters of ended grants, kept long enough to be scraped. Pure."""

from collections import deque
from dataclasses import dataclass

from gpushare.arbiter import GrantStats
from gpushare.inject.pod import Pod

KEPT_SECONDS = 120.0
"""Two scrapes at Prometheus' default interval, one minute."""
KEPT = 256
"""Rows, one per grant and device. They bound a scrape, however many grants come and go."""


@dataclass(frozen=True, slots=True)
class Last:
    """A grant's counters on a device when it ended. `at`: monotonic seconds."""

    at: float
    grant: str
    tenant: str
    pod: Pod
    device: str
    stats: GrantStats


class LastCounters:
    """The latest rows. Rows in which nothing happened are not kept."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[Last]] = {}
        """By tenant, the oldest first."""

    def add(self, last: Last) -> None:
        """Adds a row for a grant that is about to end."""
        stats = last.stats
        if not (stats.leased_ns or stats.busy_ns or stats.wait_ns):
            return
        self._rows.setdefault(last.tenant, deque()).append(last)
        if sum(map(len, self._rows.values())) > KEPT:
            # A tenant that makes many grants loses its own rows, not those of others.
            max(self._rows.values(), key=len).popleft()

    def rows(self, now: float) -> list[Last]:
        """The rows that are kept at `now`, monotonic seconds."""
        for rows in self._rows.values():
            while rows and rows[0].at + KEPT_SECONDS <= now:
                rows.popleft()
        self._rows = {tenant: rows for tenant, rows in self._rows.items() if rows}
        return [row for rows in self._rows.values() for row in rows]
