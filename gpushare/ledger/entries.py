"""Entries for the ledger, and how they wait while the disk cannot be written: merged, so that they stay small and the
sums stay right. Pure: no file, no clock."""

from collections.abc import Set
from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import NamedTuple

from msgspec import Struct
from msgspec import field as struct_field
from msgspec.structs import replace

LARGEST = (1 << 62) - 1
"""Larger numbers are written as this one: two of it still fit the file's and the API's 64 bits."""
KEPT_MAX = 50_000
"""Most rows of each kind that wait: some 100 MB of grants, which is days of a busy node without a disk."""
IDLE, SWITCHING, GAP = "(idle)", "(switching)", "(no daemon)"
"""In place of grant and tenant, in rows of what a device was not used for. No tenant's name begins like that."""
REST = "(several)"
"""In place of the grants whose periods were merged beyond KEPT_MAX."""


class GrantRow(NamedTuple):
    """A grant as the ledger keeps it. `state`: its record as JSON. `ended_ns` None: it has not ended."""

    id: str
    key: str | None
    tenant: str
    uid: int
    phase: str
    state: str
    created_ns: int
    ended_ns: int | None


class Period(Struct, frozen=True):
    """One grant on one device from `from_ns` to `to_ns`. `used_ns`: leased time; `busy_ns`: metered work in it.
    `waits`, `reclaims`: how many ended in it; the longest of them, like the peak of memory, is of the daemon's run so
    far. `scavenged_ns`: the part of `borrowed_ns` that a tenant of weight 0 borrowed. `memory_mib_ms`: MiB times ms.
    `waited_owed_ns`, `waited_limit_ns`: the parts of `waited_ns` while it was owed guaranteed time, and while it had
    used all that its limit allows; during the rest it had had its guarantee. `launches`: kernels, graphs and other
    work.

    Of a device, rows of IDLE, SWITCHING and GAP say what no grant used: with them `used_ns` adds up to its wall time.
    """

    grant_id: str
    tenant: str
    device: str
    from_ns: int
    to_ns: int
    granted_ns: int
    used_ns: int
    busy_ns: int
    borrowed_ns: int
    lent_ns: int
    waited_ns: int
    memory_bytes: int
    memory_peak_bytes: int
    waits: int = 0
    wait_max_ns: int = 0
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0
    scavenged_ns: int = 0
    memory_mib_ms: int = 0
    waited_owed_ns: int = 0
    waited_limit_ns: int = 0
    launches: int = 0


NUMBERS = tuple(name for name, kind in Period.__annotations__.items() if kind is int)
_numbers = attrgetter(*NUMBERS)
_LATEST = ("memory_bytes",)
MAXIMA = ("to_ns", "memory_peak_bytes", "wait_max_ns", "reclaim_max_ns")
SUMS = tuple(name for name in NUMBERS if name not in ("from_ns", *_LATEST, *MAXIMA))
_sums, _maxima = attrgetter(*SUMS), attrgetter(*MAXIMA)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a grant's periods on one device."""

    used_ns: int = 0
    busy_ns: int = 0
    borrowed_ns: int = 0
    waited_ns: int = 0
    memory_peak_bytes: int = 0
    waits: int = 0
    wait_max_ns: int = 0
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0

    def plus(self, other: "Totals | Period") -> "Totals":
        """Both together."""
        both = {
            field.name: max(getattr(self, field.name), getattr(other, field.name))
            if field.name in MAXIMA
            else getattr(self, field.name) + getattr(other, field.name)
            for field in fields(Totals)
        }
        return Totals(**{name: clamp(value) for name, value in both.items()})


def added(one: dict[str, Totals], other: dict[str, Totals]) -> dict[str, Totals]:
    """Both together."""
    return {**one, **{name: one.get(name, Totals()).plus(total) for name, total in other.items()}}


def clamp(value: int) -> int:
    """The nearest number that the ledger takes."""
    return min(max(0, value), LARGEST)


def sound(period: Period) -> Period:
    """The period as the ledger takes it, its only way in: numbers are 0 to LARGEST, and no period ends before it
    begins."""
    given = _numbers(period)
    if min(given) >= 0 and max(given) <= LARGEST and period.from_ns <= period.to_ns:
        return period
    numbers = {name: clamp(getattr(period, name)) for name in NUMBERS}
    numbers["to_ns"] = max(numbers["to_ns"], numbers["from_ns"])
    return replace(period, **numbers)


def joined(first: Period, second: Period) -> Period:
    """One period for two of one grant and device: `second` is the later one."""
    numbers = dict(zip(SUMS, map(add, _sums(first), _sums(second)), strict=True))
    numbers |= zip(MAXIMA, map(max, _maxima(first), _maxima(second)), strict=True)
    return sound(replace(second, from_ns=min(first.from_ns, second.from_ns), **numbers))


class Entries(Struct):
    """What is to be written. `grants`: by id. `periods`: by device and grant. `devices`: states and when they were
    seen, by id. `contexts`: device, driver and cost (node.devices.ContextCost), by device and driver. `parts`: of
    gangs, states by id; empty: to be deleted. `lost`: how many grants' rows were dropped."""

    grants: dict[str, GrantRow] = struct_field(default_factory=dict)
    periods: dict[str, Period] = struct_field(default_factory=dict)
    devices: dict[str, tuple[str, int]] = struct_field(default_factory=dict)
    contexts: dict[str, tuple[str, str, int, int]] = struct_field(default_factory=dict)
    parts: dict[str, str] = struct_field(default_factory=dict)
    lost: int = 0

    def __bool__(self) -> bool:
        return bool(self.grants or self.periods or self.devices or self.contexts or self.parts)

    def __len__(self) -> int:
        return len(self.grants) + len(self.periods) + len(self.devices) + len(self.contexts) + len(self.parts)

    def add(self, period: Period) -> None:
        """Merges it with the waiting period of the same grant and device. Beyond KEPT_MAX it is merged with others of
        its tenant: the tenant's sums stay right, the grant's do not."""
        key = f"{period.device} {period.grant_id}"
        if key not in self.periods and len(self.periods) >= KEPT_MAX:
            period = replace(period, grant_id=REST)
            key = f"{period.device} {period.tenant} {REST}"
        before = self.periods.get(key)
        if before is not None and before.to_ns != period.from_ns and period.grant_id != REST:
            # The clock was set between them, or another run of the daemon wrote the first.
            self.periods[f"{key} {before.from_ns}"] = self.periods.pop(key)
            before = None
        self.periods[key] = joined(before, period) if before is not None else sound(period)

    def save(self, row: GrantRow) -> None:
        """Replaces an older row of the grant. Beyond KEPT_MAX the row of a grant that has ended is dropped."""
        if row.id not in self.grants and len(self.grants) >= KEPT_MAX:
            ended = next((name for name, kept in self.grants.items() if kept.ended_ns is not None), row.id)
            self.grants.pop(ended, None)
            self.lost += 1
            if ended == row.id:
                return
        self.grants[row.id] = row

    def ended(self) -> frozenset[str]:
        """The grants that have ended."""
        return frozenset(row.id for row in self.grants.values() if row.ended_ns is not None)

    def drop_periods(self, grants: Set[str]) -> None:
        """Forgets the periods of these grants."""
        self.periods = {key: period for key, period in self.periods.items() if period.grant_id not in grants}

    def follow(self, later: "Entries") -> None:
        """Merges in entries that came later."""
        for row in later.grants.values():
            self.save(row)
        for period in later.periods.values():
            self.add(period)
        self.devices |= later.devices
        self.contexts |= later.contexts
        self.parts |= later.parts
        self.lost += later.lost

    def totals(self, grant_id: str) -> dict[str, Totals]:
        """Sums of one grant, by device id."""
        found: dict[str, Totals] = {}
        for period in self.periods.values():
            if period.grant_id == grant_id:
                found[period.device] = found.get(period.device, Totals()).plus(period)
        return found

    def tenant_totals(self, without: frozenset[str]) -> dict[str, Totals]:
        """Sums by tenant, without these grants."""
        found: dict[str, Totals] = {}
        for period in self.periods.values():
            if period.grant_id not in without and not period.tenant.startswith("("):
                found[period.tenant] = found.get(period.tenant, Totals()).plus(period)
        return found
