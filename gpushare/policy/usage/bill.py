"""What tenants used, and what it cost, as rows of text: for the command line and the dashboard, so that both show the
same. Pure: takes answers to GET /v1/usage."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from decimal import Decimal
from typing import Any, TypeAlias

from gpushare.policy.usage import billing
from gpushare.policy.usage.billing import HOUR_NS, Prices
from gpushare.text import amounts, calendar
from gpushare.text.amounts import NOTHING, Unit
from gpushare.text.units import format_size

Row: TypeAlias = Mapping[str, Any]
"""A UsageRow, in which numbers may be left out that are 0."""

KINDS = (
    ("GUARANTEED", "guaranteed_ns"),
    ("EXTRA", "extra_ns"),
    ("BORROWED", "borrowed_ns"),
    ("LEFT OVER", "scavenged_ns"),
)
"""The kinds of time that a tenant uses; their sum is all that it used."""
_BESIDE = (("LENT", "lent_ns"), ("WAITED", "waited_ns"))
_SELDOM = frozenset(("EXTRA", "LEFT OVER"))
"""Columns that are left out where nobody has any."""
NUMBERS = (
    *(*(name for _, name in (*KINDS, *_BESIDE)), "waited_owed_ns", "waited_limit_ns", "busy_ns"),
    *("memory_byte_s", "hosted_byte_s", "moved_out_bytes", "moved_in_bytes", "stalled_ns", "stalls"),
    *("waits", "reclaims", "launches"),
)
_OF_HOLDERS = ("stalled_ns", "stalls")
NAMES = {
    "tenant": ("tenant",),
    "grant": ("grant", "tenant"),
    "device": ("device", "tenant"),
    "hour": ("hour", "tenant"),
    **{period: (period, "tenant") for period in calendar.PERIODS},
    "holder": ("tenant", "holder_tenant", "holder"),
    "origin": ("origin", "tenant"),
}
"""What a row is of, by `by`."""
_HERE = "(this node)"
_HINT = """there are no prices: with currency = "EUR" and guaranteed = 2.50 in {}, costs are shown here"""


@dataclass(frozen=True, slots=True)
class Asked:
    """How usage is to be shown. `by`: a key of NAMES; `where`: the time zone, None: this machine's."""

    by: str = "tenant"
    prices: Prices | None = None
    where: tzinfo | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Text in columns. `total`: the sum of all rows, as a row; `used`: what each row used, in ns."""

    titles: list[str]
    rows: list[list[str]]
    total: list[str]
    used: list[int] = field(default_factory=list)


def used(row: Row) -> int:
    """All device time that a row has used, in ns."""
    return sum(row.get(name, 0) for _, name in KINDS)


def added(rows: Iterable[Row]) -> dict[str, int]:
    """The sums of rows."""
    found = dict.fromkeys(NUMBERS, 0)
    for row in rows:
        for name in NUMBERS:
            found[name] += row.get(name, 0)
    return found


def cost(row: Row, prices: Prices) -> str:
    """The cost of a row as text."""
    return amounts.money(billing.cost(row, prices))


def exact(row: Row, prices: Prices) -> str:
    """The cost of a row for other programs, in millionths."""
    return str(round(billing.cost(row, prices), 6))


def unit(rows: Sequence[Row]) -> Unit:
    """The unit in which to show rows and their sum."""
    return amounts.unit(max(used(row), *(row.get(name, 0) for _, name in _BESIDE)) for row in rows)


def table(rows: Sequence[Row], asked: Asked) -> Table:
    """Rows as a table; not by holder."""
    whole = added(rows)
    columns = _columns(whole, unit([whole]), asked.prices)
    names = [name.upper() for name in NAMES[asked.by]]
    lines = [[*named(row, asked), *(text(row) for text in columns.values())] for row in rows]
    total = ["total", *[""] * (len(names) - 1), *(text(whole) for text in columns.values())]
    return Table([*names, *columns], lines, total, [used(row) for row in rows])


def texts(row: Row, whole: Row, shown: Unit, prices: Prices | None) -> dict[str, str]:
    """A row's cells by title, in a table that has `whole` in all."""
    return {title: text(row) for title, text in _columns(whole, shown, prices).items()}


def _columns(whole: Row, shown: Unit, prices: Prices | None) -> dict[str, Callable[[Row], str]]:
    """The text of each column by its title, without those that are empty in most tables and in this one."""

    def time(name: str) -> Callable[[Row], str]:
        return lambda row: shown.text(row.get(name, 0))

    found: dict[str, Callable[[Row], str]] = {"USED": lambda row: shown.text(used(row))}
    found |= {title: time(name) for title, name in KINDS if whole[name] or title not in _SELDOM}
    found |= {title: time(name) for title, name in _BESIDE}
    found["MEMORY"] = lambda row: _memory(row.get("memory_byte_s", 0))
    if whole["hosted_byte_s"]:
        found["HOSTED"] = lambda row: _memory(row.get("hosted_byte_s", 0))
    if whole["moved_out_bytes"] or whole["moved_in_bytes"]:
        found["MOVED"] = _moved
    if whole["stalled_ns"]:
        found["STALLED"] = time("stalled_ns")
    if prices:
        found[f"COST {prices.currency}"] = lambda row: cost(row, prices)
    return found


def named(row: Row, asked: Asked) -> list[str]:
    """What a row is of, as text."""
    if asked.by == "hour":
        return [calendar.iso(row.get("begins_ns", 0), asked.where), row.get("tenant", "")]
    if asked.by in calendar.PERIODS:
        return [calendar.named(row.get("begins_ns", 0), asked.by, asked.where), row.get("tenant", "")]
    names = [row.get(name, "") for name in NAMES[asked.by]]
    return [names[0] or _HERE, *names[1:]] if asked.by == "origin" else names


def records(found: Row, rows: Sequence[Row], asked: Asked) -> Iterator[list[object]]:
    """Rows as CSV has them, a header first: exact numbers, and between which moments each row is."""
    holders = asked.by == "holder"
    prices = None if holders else asked.prices  # nobody pays for having waited
    numbers = _OF_HOLDERS if holders else NUMBERS
    names, hours = NAMES[asked.by], [] if holders else ["gpu_hours"]
    yield ["begins", "ends", *names, *hours, *numbers, *(("cost", "currency") if prices else ())]
    for row in rows:
        begins, ends = (calendar.iso(at, asked.where) for at in span(found, row, asked))
        amount = [] if holders else [f"{Decimal(used(row)) / HOUR_NS:.6f}"]
        priced = (exact(row, prices), prices.currency) if prices else ()
        yield [begins, ends, *named(row, asked), *amount, *(row.get(name, 0) for name in numbers), *priced]


def span(found: Row, row: Row, asked: Asked) -> tuple[int, int]:
    """Between which moments a row is, in ns; never beyond those of the question."""
    since, until = found["since_ns"], found["until_ns"]
    begins = row.get("begins_ns", 0)
    if asked.by == "hour":
        return begins, begins + HOUR_NS
    if asked.by not in calendar.PERIODS:
        return since, until
    _, *following = calendar.cuts(begins, begins + 40 * 24 * HOUR_NS, asked.by, asked.where)
    return max(since, begins), min(until, following[0])


def devices(spent: Row, prices: Prices | None) -> str:
    """What the devices were used for, in one sentence. `spent`: a DeviceTime."""
    wall = spent["wall_ns"]
    if not wall:
        return "devices: nothing is recorded"
    shown = amounts.unit([wall])
    parts = [("used", spent["used_ns"]), ("idle", spent["idle_ns"]), ("switching", spent["switching_ns"])]
    parts += [("without a daemon", spent["missed_ns"])] if spent["missed_ns"] else []
    texts = [f"{100 * ns / wall:.1f} % {name}" for name, ns in parts]
    notes = []
    if prices and spent["idle_ns"]:
        notes.append(f"{idle_cost(spent, prices)} {prices.currency} at the price of guaranteed time")
    if spent["idle_with_waiters_ns"]:
        notes.append(f"{shown.text(spent['idle_with_waiters_ns'])} of it while grants waited")
    texts[1] += f" ({shown.text(spent['idle_ns'])}{''.join(f', {note}' for note in notes)})" if notes else ""
    return f"devices: {', '.join(texts)}; of {shown.text(wall)}"


def idle_cost(spent: Row, prices: Prices) -> str:
    """What idle time would have cost as guaranteed time, as text."""
    return cost({"guaranteed_ns": spent["idle_ns"]}, prices)


def hint(path: object) -> str:
    """How to set prices. `path`: of the default price list."""
    return _HINT.format(path)


def _memory(byte_s: int) -> str:
    """Returns memory over time as text, in GiB hours."""
    if not byte_s:
        return NOTHING
    return f"{hours:.2f}GiBh" if (hours := byte_s / (3600 << 30)) >= 0.005 else "<0.01GiBh"


def _moved(row: Row) -> str:
    size = row.get("moved_out_bytes", 0) + row.get("moved_in_bytes", 0)
    return format_size(size) if size else NOTHING
