"""Rows as text of a given width: which columns a terminal has room for, and their cells. No widgets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

from rich.cells import cell_len, set_cell_size

from gpushare.text.overview import DeviceTime
from gpushare.text.printable import printable
from gpushare.text.units import format_size, format_time
from gpushare.tui.model import DeviceRow, GrantRow, TenantRow, history_line, widths

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


def _device_bar(row: DeviceRow, width: int) -> Spans:
    if row.fault:
        return ((fit(row.fault, width), "warning"),)
    if row.note:
        note = fit(row.note, min(width // 2, len(row.note)))
        return ((note, "warning"), (" ", ""), *bar(row.time, width - cell_len(note) - 1))
    return bar(row.time, width)


def _part(name: str) -> Callable[[DeviceRow, int], str]:
    return lambda row, _: NOTHING if row.fault else format_time(getattr(row.time, name))


DEVICES: tuple[Column[DeviceRow], ...] = (
    Column("DEV", 3, lambda row, _: str(row.index)),
    Column("NAME", 8, lambda row, _: row.name, rank=4, widest=24, right=False),
    Column("LAST SECOND", 12, _device_bar, widest=120, right=False),
    Column("█ GUAR", 6, _part("guaranteed"), rank=1, look="guaranteed"),
    Column("▒ BORR", 6, _part("borrowed"), rank=1, look="borrowed"),
    Column("/ SWITCH", 8, _part("switching"), rank=3, look="switching"),
    Column("· IDLE", 6, _part("idle"), rank=2, look="idle"),
    Column("MEMORY", 13, lambda row, _: of(row.memory_used_bytes, row.memory_bytes), rank=1),
)


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


GRANTS: tuple[Column[GrantRow], ...] = (
    Column("GRANT", 14, lambda row, _: row.id, right=False, sort=attrgetter("created_ns")),
    Column("TENANT", 8, lambda row, _: row.tenant, rank=1, widest=24, right=False, sort=attrgetter("tenant")),
    Column("DEV", 3, lambda row, _: str(row.device), rank=3, sort=attrgetter("device")),
    Column("PHASE", 9, lambda row, _: row.phase, rank=9, right=False, sort=attrgetter("phase")),
    _milli("ASKED", 5, "asked_milli", rank=2),
    _milli("GOT", 5, "got_milli", rank=0),
    _milli("ENTITLED", 8, "entitled_milli", rank=2, some=True),
    _milli("GUARANTEED", 10, "guaranteed_milli", rank=6),
    _milli("BORROWED", 8, "borrowed_milli", rank=8, some=True),
    _milli("LENT", 5, "lent_milli", rank=8, some=True),
    Column("WAITED", 6, _waited, rank=1, sort=attrgetter("waited_milli")),
    Column("WAITS", 7, lambda row, _: str(row.waits), rank=9, sort=attrgetter("waits")),
    Column("MEMORY", 11, _memory, rank=1, widest=15, sort=attrgetter("memory_bytes")),
    Column("AWAY", 7, _away, rank=7, sort=attrgetter("memory_away_bytes")),
    Column("PIDS", 5, lambda row, _: str(row.processes), rank=9, sort=attrgetter("processes")),
    Column("HISTORY", 7, _history, rank=5, widest=60, right=False),
)
TEXTS = frozenset({"GRANT", "TENANT", "DEV", "PHASE"})
"""Columns that are first sorted in ascending order; the others in descending order."""


def _state(row: TenantRow, width: int) -> Spans:
    return ((fit(row.state, width), "warning" if row.state in ("starved", "degraded") else ""),)


TENANTS: tuple[Column[TenantRow], ...] = (
    Column("TENANT", 14, lambda row, _: "  " * row.level + row.name, right=False, widest=40),
    Column("STATE", 9, _state, rank=3, right=False),
    Column("GUARANTEE", 9, lambda row, _: format_time(row.guarantee_milli), rank=1),
    Column("ENTITLED", 8, lambda row, _: format_time(row.entitled_milli)),
    Column("USED", 6, lambda row, _: format_time(row.used_milli)),
    Column("BORROWED", 8, lambda row, _: _some(row.borrowed_milli), rank=2),
    Column("LENT", 6, lambda row, _: _some(row.lent_milli), rank=2),
    Column("WAITED", 6, lambda row, _: _some(row.waited_milli), rank=2),
    Column("GRANTS", 6, lambda row, _: str(row.grants), rank=4),
)
