"""What the ledger has of a span of time, hour by hour, as gpushare.policy.replay takes it. Reads every row of the span:
for a thread."""

import contextlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.errors import UsageError
from gpushare.ledger.entries import IDLE, Period
from gpushare.ledger.schema import CHAINED
from gpushare.ledger.sqlite_file import failures
from gpushare.ledger.usage import DAY_NS, HOUR_NS, Span
from gpushare.policy.replay import Slot

NUMBERS_MAX = 200_000
"""In an answer: tenants and devices of each slot. 64 and 8 in a year are 80,000."""


@dataclass(slots=True)
class _Draft:
    """`walls`: by device, how long it was recorded, which its idle time's rows say: a device that nobody used has no
    others, and while no daemon was there, nobody knows who wanted it."""

    walls: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)

    def count(self, tenant: str, device: str, wall: int, used: int, waited: int) -> None:
        if tenant == IDLE:
            self.walls[device] = self.walls.get(device, 0) + wall
        elif not tenant.startswith("("):
            self.used[tenant] = self.used.get(tenant, 0) + used
            self.waited[tenant] = self.waited.get(tenant, 0) + waited


def slots(path: Path, reader: sqlite3.Connection, span: Span, waiting: Iterable[Period] = ()) -> list[Slot]:
    """Of each hour and, where that is rolled up, of each day. Closes the reader. Raises FailedError, and UsageError
    where there is too much of it."""
    drafts: dict[int, _Draft] = {}
    with failures(path), contextlib.closing(reader):
        for count, row in enumerate(reader.execute(_QUERY, (span.since_ns, span.until_ns) * len(CHAINED))):
            begins, tenant, device, *halves = row
            numbers = ((halves[i] << 32) + halves[i + 1] for i in range(0, len(halves), 2))
            drafts.setdefault(begins, _Draft()).count(tenant, device, *numbers)
            if count >= NUMBERS_MAX:
                raise UsageError(f"that is more than {NUMBERS_MAX} numbers: ask for a shorter time")
    for period in waiting:
        if span.has(period):
            draft = drafts.setdefault(period.from_ns // HOUR_NS * HOUR_NS, _Draft())
            wall = period.to_ns - period.from_ns
            draft.count(period.tenant, period.device, wall, period.used_ns, period.waited_ns)
    return [
        Slot(begins, max(draft.walls.values()), sum(draft.walls.values()), draft.used, draft.waited)
        for begins, draft in sorted(drafts.items())
        if any(draft.walls.values())
    ]


def _part(table: str) -> str:
    unit = DAY_NS if table == "days" else HOUR_NS
    # SUM() fails on overflow, so each half of the 64 bits is added up by itself.
    sums = ", ".join(
        f"SUM({one} >> 32), SUM({one} & 4294967295)" for one in ("(to_ns - from_ns)", "used_ns", "waited_ns")
    )
    return (
        f"SELECT from_ns / {unit} * {unit}, tenant, CASE tenant WHEN '{IDLE}' THEN device END, {sums} FROM {table} "  # noqa: S608
        "WHERE to_ns > ? AND to_ns <= ? GROUP BY 1, 2, 3"
    )


_QUERY = " UNION ALL ".join(map(_part, CHAINED))
