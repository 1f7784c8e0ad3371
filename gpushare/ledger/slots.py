"""The ledger's record of a span of time, hour by hour, as gpushare.policy.usage.replay takes it; or minute by minute,
and by device. Reads every row of the span: call it in a thread."""

import sqlite3
from dataclasses import dataclass, field

from gpushare.api.usage import Each, Unit
from gpushare.errors import UsageError
from gpushare.ledger.entries import IDLE
from gpushare.ledger.sqlite_file import sums, whole
from gpushare.ledger.usage import DAY_NS, HOUR_NS, MINUTE_NS, TABLES, Span, reach, within
from gpushare.policy.usage.replay import Slot

NUMBERS_MAX = 200_000
"""Most rows in an answer: tenants and devices of each slot. 64 and 8 in a year are 80,000."""

_UNIT_NS: dict[Unit, int] = {"hour": HOUR_NS, "minute": MINUTE_NS}


@dataclass(frozen=True, slots=True)
class Cut:
    """What each slot is of: an hour or minute, of the node or of one device. Rows that are longer than that count in
    the one in which they begin."""

    unit: Unit = "hour"
    each: Each = "node"

    def query(self) -> str:
        """A query for rows of begin, device, tenant, and the halves of the numbers that _Draft.count takes."""
        return " UNION ALL ".join(self._part(table) for table in TABLES)

    def _part(self, table: str) -> str:
        unit = {"hours": HOUR_NS, "days": DAY_NS}.get(table, _UNIT_NS[self.unit])
        # In slots of the node only idle time is by device: what tenants used is one number.
        device = "device" if self.each == "device" else f"CASE tenant WHEN '{IDLE}' THEN device END"
        numbers = sums("(to_ns - from_ns)", "used_ns", "waited_ns")
        return (
            f"SELECT from_ns / {unit} * {unit}, device, tenant, {numbers} FROM "
            f"(SELECT from_ns, to_ns, {device} AS device, tenant, used_ns, waited_ns FROM {table} "
            f"WHERE {within(table)}) GROUP BY 1, 2, 3"
        )


HOURS = Cut()


@dataclass(slots=True)
class _Draft:
    """`walls`: by device, how long it was recorded, from its rows of idle time: an unused device has no others, and of
    time without a daemon demand is not known."""

    walls: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)

    def count(self, tenant: str, device: str, wall: int, used: int, waited: int) -> None:
        if tenant == IDLE:
            self.walls[device] = self.walls.get(device, 0) + wall
        elif not tenant.startswith("("):
            self.used[tenant] = self.used.get(tenant, 0) + used
            self.waited[tenant] = self.waited.get(tenant, 0) + waited


def slots(reader: sqlite3.Connection, span: Span, cut: Cut = HOURS) -> list[Slot]:
    """Slots as `cut` says and, where the ledger is rolled up, of an hour or day; in order of time, then of device;
    from a snapshot. Raises UsageError beyond NUMBERS_MAX."""
    drafts: dict[tuple[int, str], _Draft] = {}
    for count, row in enumerate(reader.execute(cut.query(), reach(span) * len(TABLES))):
        begins, device, tenant, *halves = row
        draft = drafts.setdefault((begins, device if cut.each == "device" else ""), _Draft())
        draft.count(tenant, device, *whole(halves))
        if count >= NUMBERS_MAX:
            raise UsageError(f"that is more than {NUMBERS_MAX} numbers: ask for a shorter time")
    return [
        Slot(begins, max(one.walls.values()), sum(one.walls.values()), one.used, one.waited, device)
        for (begins, device), one in sorted(drafts.items())
        if any(one.walls.values())
    ]
