"""Rows as text of a given width: which columns a terminal has room for, and their cells. No widgets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

from rich.cells import cell_len, set_cell_size

from gpushare.text import links
from gpushare.text.overview import DeviceTime, without_directory
from gpushare.text.printable import printable
from gpushare.text.units import format_size, format_time
from gpushare.tui.model import DeviceRow, GrantRow, ProcessRow, TenantRow, history_line, widths
from gpushare.tui.processes import Host

Spans: TypeAlias = tuple[tuple[str, str], ...]
"""A line: pieces of text, each with the name of its style (gpushare/tui/styles.py)."""

NOTHING = "-"
FILLS = ("█", "▒", "/", "·")
"""Bar characters of guaranteed, borrowed, switching and idle time: distinct without colour."""
TIMES = ("guaranteed", "borrowed", "switching", "idle")
_MARKS_MAX = 4
"""Maximum characters of a name per cell of width: more could only be combining marks stacked on letters."""

Row = TypeVar("Row")


@lru_cache(maxsize=4096)  # most cells are unchanged since the last look
def fit(text: str, width: int, *, right: bool = False) -> str:
    """Fits untrusted text into exactly `width` cells, without control sequences."""
    text = printable(text[: _MARKS_MAX * width])
    size = len(text) if text.isascii() else cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + "…"[:width]
    return " " * (width - size) + text if right else text + " " * (width - size)


def joined(pieces: Sequence[tuple[str, str]]) -> Spans:
    """Merges adjacent pieces of the same style: each piece costs as much to draw as a whole line of one style."""
    found: list[tuple[str, str]] = []
    texts: list[str] = []
    last = ""
    for text, look in pieces:
        if look != last and texts:
            found.append(("".join(texts), last))
            texts.clear()
        texts.append(text)
        last = look
    if texts:
        found.append(("".join(texts), last))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column. `width`: minimum. `show`: returns a row's cell for a width. `widest`: width up to which it takes spare
    room. `rank`: columns of higher rank are dropped first. `sort`: sort key; None: not sortable. `look`: style of its
    cells."""

    title: str
    width: int
    show: Callable[[Row, int], str | Spans]
    rank: int = 0
    widest: int = 0
    right: bool = True
    sort: Callable[[Row], Any] | None = None
    look: str = ""


@dataclass(frozen=True, slots=True)
class Layout(Generic[Row]):
    """The columns that a width has room for."""

    columns: list[tuple[Column[Row], int]] = field(default_factory=list)

    def titles(self, sorted_by: str = "", *, down: bool = False) -> Spans:
        """Returns the title line; the sort column has an arrow."""
        found: list[tuple[str, str]] = []
        for column, width in self.columns:
            mine = bool(sorted_by) and column.title == sorted_by
            title = f"{column.title[: width - 1]}{'▼' if down else '▲'}" if mine else column.title
            found += [(fit(title, width, right=column.right), "sorted" if mine else "title"), (" ", "title")]
        return joined(found[:-1])

    def line(self, row: Row) -> Spans:
        """Returns the line of one row."""
        found: list[tuple[str, str]] = []
        for column, width in self.columns:
            cell = column.show(row, width)
            if isinstance(cell, str):
                found.append((fit(cell, width, right=column.right), column.look))
            else:
                found += cell
            found.append((" ", ""))
        return joined(found[:-1])

    def at(self, x: int) -> Column[Row] | None:
        """Returns the column at cell `x`; None if there is none."""
        for column, width in self.columns:
            if 0 <= x < width + 1:
                return column
            x -= width + 1
        return None


def layout(columns: Sequence[Column[Row]], width: int) -> Layout[Row]:
    """Chooses as many columns as fit, always including the first."""
    chosen = list(columns)
    while len(chosen) > 1 and sum(column.width + 1 for column in chosen) - 1 > width:
        chosen.remove(max(chosen[1:], key=lambda column: column.rank))
    given = [column.width for column in chosen]
    left = width - sum(given) - len(given) + 1
    growing = [index for index, column in enumerate(chosen) if column.widest > column.width]
    while left > 0 and growing:
        for index in list(growing):
            given[index] += min(1, left)
            left -= min(1, left)
            if given[index] >= chosen[index].widest:
                growing.remove(index)
    return Layout(list(zip(chosen, given, strict=True)))


def of(used: int, limit: int) -> str:
    """Formats bytes as `1.5/8GiB`, in the unit of the limit."""
    text = format_size(limit)
    number = text.rstrip("KMGTiB")
    unit = limit / float(number) if float(number) else 1.0
    return f"{used / unit:.2f}".rstrip("0").rstrip(".") + f"/{text}"


def _some(milli: int) -> str:
    return format_time(milli) if milli else NOTHING


def bar(time: DeviceTime, width: int) -> Spans:
    """Returns the bar of a device's last second."""
    parts = zip(TIMES, FILLS, widths(time, width), strict=True)
    return tuple((fill * size, name) for name, fill, size in parts if size)


def age(seconds: float) -> str:
    """Formats a duration in its largest unit: `59s`, `59m`, `47h`, `99d`."""
    for unit, size, most in (("s", 1, 60), ("m", 60, 3600), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def _device_bar(row: DeviceRow, width: int) -> Spans:
    if row.fault:
        return ((fit(row.fault, width), "warning"),)
    if row.note:
        note = fit(row.note, min(width // 2, len(row.note)))
        return ((note, "warning"), (" ", ""), *bar(row.time, width - cell_len(note) - 1))
    return bar(row.time, width)


def _part(name: str) -> Callable[[DeviceRow, int], str]:
    return lambda row, _: NOTHING if row.fault else format_time(getattr(row.time, name))


def _device_memory(row: DeviceRow, width: int) -> Spans:
    text = fit(of(row.memory_used_bytes, row.memory_bytes), 13, right=True)
    room = width - len(text) - 1
    if room < _BAR_LEAST:
        return ((fit(text.lstrip(), width, right=True), ""),)
    full = min(room, -(-row.memory_used_bytes * room // max(1, row.memory_bytes)))
    return (("█" * full, "memory"), ("·" * (room - full), "idle"), (" ", ""), (text, ""))


_BAR_LEAST = 6


def _sensor(name: str, unit: str) -> Callable[[DeviceRow, int], str]:
    def show(row: DeviceRow, _: int) -> str:
        found = row.sensors.get(name)
        return NOTHING if found is None else f"{found}{unit}"

    return show


def _slowed(row: DeviceRow, why: str) -> str:
    return "warning" if why in row.sensors.get("slowed_by", ()) else ""


def _temperature(row: DeviceRow, width: int) -> Spans:
    text = _sensor("temperature_celsius", "C")(row, width)
    return ((fit(text, width, right=True), _slowed(row, "heat")),)


def _power(row: DeviceRow, width: int) -> Spans:
    draw, limit = row.sensors.get("power_milliwatts"), row.sensors.get("power_limit_milliwatts")
    text = NOTHING if draw is None else f"{draw / 1000:.0f}" + (f"/{limit / 1000:.0f}W" if limit is not None else "W")
    return ((fit(text, width, right=True), _slowed(row, "power")),)


DEVICES: tuple[Column[DeviceRow], ...] = (
    Column("DEV", 3, lambda row, _: str(row.index)),
    Column("NAME", 8, lambda row, _: row.name, rank=7, widest=24, right=False),
    Column("LAST SECOND", 16, _device_bar, widest=100, right=False),
    Column("█ GUAR", 6, _part("guaranteed"), rank=1, look="guaranteed"),
    Column("▒ BORR", 6, _part("borrowed"), rank=1, look="borrowed"),
    Column("/ SWITCH", 8, _part("switching"), rank=6, look="switching"),
    Column("· IDLE", 6, _part("idle"), rank=2, look="idle"),
    Column("MEMORY", 13, _device_memory, rank=1, widest=40),
    Column("UTIL", 4, _sensor("utilization_percent", "%"), rank=3),
    Column("TEMP", 4, _temperature, rank=2),
    Column("POWER", 8, _power, rank=2),
    Column("CLOCK", 7, _sensor("sm_clock_mhz", "MHz"), rank=5),
    Column("MEMCLK", 7, _sensor("memory_clock_mhz", "MHz"), rank=9),
    Column("FAN", 4, _sensor("fan_percent", "%"), rank=8),
)
_MEASURED = {
    "UTIL": "utilization_percent",
    "TEMP": "temperature_celsius",
    "POWER": "power_milliwatts",
    "CLOCK": "sm_clock_mhz",
    "MEMCLK": "memory_clock_mhz",
    "FAN": "fan_percent",
}


def device_columns(devices: Sequence[DeviceRow]) -> list[Column[DeviceRow]]:
    """Returns the columns for these devices: without those that no driver fills."""
    known = {name for device in devices for name, found in device.sensors.items() if found is not None}
    return [column for column in DEVICES if _MEASURED.get(column.title) in (None, *known)]


def _history(row: GrantRow, width: int) -> Spans:
    return ((history_line(row.history, row.guaranteed_milli, width), "history"),)


def _waited(row: GrantRow, width: int) -> Spans:
    return ((fit(_some(row.waited_milli), width, right=True), "warning" if row.waited_milli >= 500 else ""),)


def _milli(title: str, width: int, name: str, rank: int, *, some: bool = False) -> Column[GrantRow]:
    """Makes a column of a field in milli. `some`: show 0 as NOTHING."""
    show, get = _some if some else format_time, attrgetter(name)
    return Column(title, width, lambda row, _: show(get(row)), rank, sort=get)


def _memory(row: GrantRow, _: int) -> str:
    """On the device."""
    return of(row.memory_bytes, row.memory_limit_bytes)


def _away(row: GrantRow, _: int) -> str:
    """In host memory."""
    return format_size(row.memory_away_bytes) if row.memory_away_bytes else NOTHING


def _link(row: GrantRow, width: int) -> Spans:
    return ((fit(row.link or NOTHING, width), "warning" if row.link_class in links.SLOW else ""),)


def _program(row: GrantRow, _: int) -> str:
    program = without_directory(row.program)
    if row.phase == "active":
        return program or NOTHING
    return f"({row.phase}) {program}".rstrip()


GRANTS: tuple[Column[GrantRow], ...] = (
    Column("GRANT", 14, lambda row, _: row.id, right=False, sort=attrgetter("created_ns")),
    Column("TENANT", 8, lambda row, _: row.tenant, rank=1, widest=24, right=False, sort=attrgetter("tenant")),
    Column("USER", 8, lambda row, _: row.user or NOTHING, rank=6, right=False, sort=attrgetter("user")),
    Column("PROGRAM", 12, _program, rank=2, widest=40, right=False, sort=attrgetter("program")),
    Column(
        "CONTAINER", 9, lambda row, _: row.place or NOTHING, rank=8, widest=32, right=False, sort=attrgetter("place")
    ),
    Column("FROM", 8, lambda row, _: row.hosts or NOTHING, rank=4, widest=24, right=False, sort=attrgetter("hosts")),
    Column("LINK", 10, _link, rank=4, widest=18, right=False),
    Column("AGE", 3, lambda row, _: age(row.age_seconds), rank=7, sort=attrgetter("age_seconds")),
    Column("DEV", 3, lambda row, _: str(row.device), rank=3, sort=attrgetter("device")),
    Column("PHASE", 9, lambda row, _: row.phase, rank=13, right=False, sort=attrgetter("phase")),
    _milli("ASKED", 5, "asked_milli", rank=2),
    Column("GOT", 5, lambda row, _: format_time(row.got_milli), sort=attrgetter("lately_milli")),
    _milli("ENTITLED", 8, "entitled_milli", rank=5, some=True),
    _milli("GUARANTEED", 10, "guaranteed_milli", rank=8),
    _milli("EXTRA", 5, "extra_milli", rank=9, some=True),
    _milli("BORROWED", 8, "borrowed_milli", rank=9, some=True),
    _milli("LENT", 5, "lent_milli", rank=9, some=True),
    Column("WAITED", 6, _waited, rank=1, sort=attrgetter("waited_milli")),
    Column("WAITS", 7, lambda row, _: str(row.waits), rank=12, sort=attrgetter("waits")),
    Column("MEMORY", 11, _memory, rank=1, widest=13, sort=attrgetter("memory_bytes")),
    Column("AWAY", 7, _away, rank=10, sort=attrgetter("memory_away_bytes")),
    Column("PIDS", 4, lambda row, _: str(len(row.pids)), rank=11, sort=lambda row: len(row.pids)),
    Column("HISTORY", 7, _history, rank=4, widest=60, right=False),
)


def grant_columns(grants: Sequence[GrantRow]) -> list[Column[GrantRow]]:
    """Returns the columns for these grants, without those that would be empty of containers and of other machines."""
    empty = set() if any(row.place for row in grants) else {"CONTAINER"}
    empty |= set() if any(row.hosts for row in grants) else {"FROM", "LINK"}
    return [column for column in GRANTS if column.title not in empty]


BY_GOT = next(column for column in GRANTS if column.title == "GOT")
TEXTS = frozenset({"GRANT", "TENANT", "USER", "PROGRAM", "CONTAINER", "FROM", "DEV", "PHASE"})
"""Columns that are first sorted in ascending order; the others in descending order."""


def host_line(host: Host | None) -> str:
    """Returns what is known of the node's own processors and memory."""
    if host is None:
        return ""
    cpu = f"cpu {host.cpu_milli / 10:.0f}%  " if host.cpu_milli is not None else ""
    return f"  {cpu}load {host.load:.1f}  memory {of(host.memory_used_bytes, host.memory_bytes)}"


def process_line(row: ProcessRow, width: int) -> Spans:
    """Returns the line of a process below its grant."""
    process, use = row.process, row.use
    branch = fit(f" {row.branch}{row.pid}", max(14, len(row.branch) + len(str(row.pid)) + 1))
    user = process.user if process is not None else NOTHING
    got = format_time(use.got_milli) if use is not None and use.got_milli is not None else NOTHING
    held = format_size(use.memory_bytes) if use is not None else NOTHING
    cpu = f"{process.cpu_milli / 10:.0f}%" if process is not None and process.cpu_milli is not None else NOTHING
    memory = format_size(process.memory_bytes) if process is not None else NOTHING
    parts = (
        *((branch, "quiet"), (f" {fit(user, 8)}", ""), (f" {got:>6} {held:>9}", ""), ("  cpu ", "quiet")),
        *((f"{cpu:>4} {memory:>9}", ""), (f" {age(process.age_seconds) if process is not None else NOTHING:>4}  ", "")),
    )
    left = width - sum(len(text) for text, _ in parts)
    program = process.program if process is not None else "not a process that is seen from here"
    return joined([*parts, (fit(program, left), "") if left > 0 else ("", "")])


def _state(row: TenantRow, width: int) -> Spans:
    return ((fit(row.state, width), "warning" if row.state in ("starved", "degraded") else ""),)


TENANTS: tuple[Column[TenantRow], ...] = (
    Column("TENANT", 14, lambda row, _: "  " * row.level + row.name, right=False, widest=40),
    Column("STATE", 9, _state, rank=3, right=False),
    Column("GUARANTEED", 10, lambda row, _: format_time(row.guarantee_milli), rank=1),
    Column("ENTITLED", 8, lambda row, _: format_time(row.entitled_milli)),
    Column("USED", 6, lambda row, _: format_time(row.used_milli)),
    Column("BORROWED", 8, lambda row, _: _some(row.borrowed_milli), rank=2),
    Column("LENT", 6, lambda row, _: _some(row.lent_milli), rank=2),
    Column("WAITED", 6, lambda row, _: _some(row.waited_milli), rank=2),
    Column("GRANTS", 6, lambda row, _: str(row.grants), rank=4),
)
