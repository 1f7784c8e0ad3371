"""Rows of the ledger, and how two of them become one. Pure: no file, no clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

LARGEST = (1 << 62) - 1
"""Larger numbers are written as this one: two of it still fit the file's and the API's 64 bits."""
IDLE, SWITCHING, GAP = "(idle)", "(switching)", "(no daemon)"
"""In place of grant and tenant, in rows of what a device was not used for. No tenant's name begins like that."""
REST = "(several)"
"""In place of the grants whose periods were merged because too many waited for the disk."""


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
    far. `scavenged_ns`: the part of `borrowed_ns` that a tenant of weight 0 borrowed. `memory_bytes`: held at
    the end, wherever it was. `memory_mib_ms`: MiB on the device times ms.
    `waited_owed_ns`, `waited_limit_ns`: the parts of `waited_ns` while it was owed guaranteed time, and while it had
    used all that its limit allows; during the rest it had had its guarantee. `launches`: kernels, graphs and other
    work. `extra_ns`: of what it used and did not borrow, what it had beyond `granted_ns`, out of what no grant has
    asked for of its tenant's guarantee. `lent_ns`: of `granted_ns` and what it could have had of that, what others
    borrowed. `origin`: the client machines whose programs the grant served in it (`origins`); empty: this node's own.

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
    extra_ns: int = 0
    origin: str = ""


class Move(Struct, frozen=True):
    """What it cost one grant on one device, from `from_ns` to `to_ns`, that its memory was moved: for one `cause` or
    one holder, and only where there was something.

    `hosted_mib_ms`: MiB in host memory times ms. `out_bytes`, `in_bytes`: copied to host memory and back because of
    `cause` (policy.residency.costs.Cause). `stall_ns`: for how long calls of its programs waited for the memory, in
    `stalls` waits that are over, the longest `stall_max_ns`; `holder`, `holder_tenant`: the grant whose memory stood in
    the way, and its tenant; empty: nobody's, it was only the copy; tenant HELD: a person had it stay away.
    """

    grant_id: str
    tenant: str
    device: str
    cause: str
    holder: str
    holder_tenant: str
    from_ns: int
    to_ns: int
    hosted_mib_ms: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    stall_ns: int = 0
    stalls: int = 0
    stall_max_ns: int = 0


class AttachmentRow(Struct, frozen=True):
    """One client machine's use of a grant, as gpushare.api.remote.Attachment has it: from `from_ns` until `to_ns` or,
    while `ending` is empty, at least until then. `rtt_us`: of its link, as last measured."""

    attachment: str
    grant_id: str
    tenant: str
    carrier: str
    origin: str
    address: str
    uid: int
    link: str
    checked: str
    from_ns: int
    to_ns: int
    ending: str
    bytes_in: int
    bytes_out: int
    rtt_us: int


HELD = "(held)"
_ORIGINS_NAMED = 3
Row = TypeVar("Row", Period, Move, AttachmentRow)


class Kind:
    """The columns of a kind of row. Rows that have all of `texts` in common can become one, with `sums`, `maxima` and
    the `latest` of both. `values`: a row's, in the order of its fields."""

    def __init__(self, struct: type[Struct], maxima: tuple[str, ...], latest: tuple[str, ...] = ()) -> None:
        self.columns, kinds = struct.__struct_fields__, struct.__annotations__
        self.texts = tuple(name for name in self.columns if kinds[name] is not int)
        self.numbers = tuple(name for name in self.columns if kinds[name] is int)
        self.maxima, self.latest = ("to_ns", *maxima), latest
        self.sums = tuple(name for name in self.numbers if name not in ("from_ns", *latest, *self.maxima))
        self.values = attrgetter(*self.columns)
        self.of_numbers, self.of_sums, self.of_maxima = (
            attrgetter(*names) for names in (self.numbers, self.sums, self.maxima)
        )


PERIODS = Kind(Period, ("memory_peak_bytes", "wait_max_ns", "reclaim_max_ns"), ("memory_bytes",))
MOVES = Kind(Move, ("stall_max_ns",))
ATTACHMENTS = Kind(AttachmentRow, ())
values = PERIODS.values
"""A period's values, in the order of its fields."""
NUMBERS, MAXIMA, SUMS = PERIODS.numbers, PERIODS.maxima, PERIODS.sums


def kind_of(row: Period | Move | AttachmentRow) -> Kind:
    """A row's kind."""
    if isinstance(row, AttachmentRow):
        return ATTACHMENTS
    return PERIODS if isinstance(row, Period) else MOVES


def origins(names: Iterable[str]) -> str:
    """Client machines as one text, whatever order they come in; of many only how many they are."""
    found = sorted(set(names))
    return ", ".join(found) if len(found) <= _ORIGINS_NAMED else f"{len(found)} hosts"


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


def sound(row: Row) -> Row:
    """The row as the ledger takes it, its only way in: numbers are 0 to LARGEST, and no row ends before it begins."""
    kind = kind_of(row)
    given = kind.of_numbers(row)
    if min(given) >= 0 and max(given) <= LARGEST and row.from_ns <= row.to_ns:
        return row
    numbers = {name: clamp(getattr(row, name)) for name in kind.numbers}
    numbers["to_ns"] = max(numbers["to_ns"], numbers["from_ns"])
    return replace(row, **numbers)


def joined(first: Row, second: Row) -> Row:
    """One row for two with the same texts: `second` is the later one."""
    kind = kind_of(first)
    numbers = dict(zip(kind.sums, map(add, kind.of_sums(first), kind.of_sums(second)), strict=True))
    numbers |= zip(kind.maxima, map(max, kind.of_maxima(first), kind.of_maxima(second)), strict=True)
    return sound(replace(second, from_ns=min(first.from_ns, second.from_ns), **numbers))


class Batch(NamedTuple):
    """Rows that are written together. `grants`: as GrantRow. `periods`, `moves`, `attachments`: values of them.
    `devices`: id, state, and when it was seen. `contexts`: device, driver, and the cost (node.devices.ContextCost).
    `parts`: of gangs, id and state; empty: it is forgotten. `last`: the place of these rows in the order of all that
    was recorded in this boot of the machine, 0 where they have none."""

    grants: Sequence[tuple[object, ...]] = ()
    periods: Sequence[tuple[object, ...]] = ()
    moves: Sequence[tuple[object, ...]] = ()
    devices: Sequence[tuple[object, ...]] = ()
    contexts: Sequence[tuple[object, ...]] = ()
    parts: Sequence[tuple[object, ...]] = ()
    attachments: Sequence[tuple[object, ...]] = ()
    last: int = 0
