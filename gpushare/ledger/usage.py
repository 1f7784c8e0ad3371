"""Sums over a span of time in the ledger. Reads every row of the span: call it in a thread."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Literal

from gpushare.errors import UsageError
from gpushare.ledger.entries import Period
from gpushare.ledger.schema import CHAINED
from gpushare.ledger.sqlite_file import connect, failures

By = Literal["tenant", "grant", "device", "hour", "charge"]
ROWS_MAX = 60_000
"""Most rows in an answer: 64 tenants in each hour of a month are 46,080."""
MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS


@dataclass(frozen=True, slots=True)
class Span:
    """Rows that end after `since_ns`, and not after `until_ns`. `tenant`: only it and those below it."""

    since_ns: int
    until_ns: int
    tenant: str | None = None

    def has(self, period: Period) -> bool:
        """Whether a row is in it."""
        mine = self.tenant is None or period.tenant == self.tenant or period.tenant.startswith(f"{self.tenant}/")
        return mine and self.since_ns < period.to_ns <= self.until_ns


@dataclass(slots=True)
class Sums:
    """Sums of some rows. `wall_ns`: how long they were."""

    wall_ns: int = 0
    used_ns: int = 0
    busy_ns: int = 0
    borrowed_ns: int = 0
    scavenged_ns: int = 0
    lent_ns: int = 0
    waited_ns: int = 0
    waited_owed_ns: int = 0
    waited_limit_ns: int = 0
    memory_mib_ms: int = 0
    waits: int = 0
    reclaims: int = 0
    launches: int = 0

    def count(self, period: Period) -> None:
        """Adds a row."""
        self.wall_ns += period.to_ns - period.from_ns
        for name, number in zip(_SUMMED, _summed(period), strict=True):
            if number:
                setattr(self, name, getattr(self, name) + number)

    def add(self, values: Iterable[int]) -> None:
        """Adds other sums, in the order of the fields."""
        for field, value in zip(fields(Sums), values, strict=True):
            setattr(self, field.name, getattr(self, field.name) + value)


_SUMMED = tuple(field.name for field in fields(Sums) if field.name != "wall_ns")
_summed = attrgetter(*_SUMMED)
_SOURCES = ("(to_ns - from_ns)", *_SUMMED)
Key = tuple[str | int, ...]
"""By `by`: a tenant; a grant and its tenant; a device and the tenant; the start of an hour and the tenant; that of a
day, and tenant, grant and device."""
_KEYS = {
    "tenant": "tenant",
    "grant": "grant_id, tenant",
    "device": "device, tenant",
    "hour": f"from_ns / {HOUR_NS} * {HOUR_NS}, tenant",
    "charge": f"from_ns / {DAY_NS} * {DAY_NS}, tenant, grant_id, device",
}


def _key(by: By, table: str) -> str:
    """Columns of the key. The hours of a row of days are not known: it counts in the first one."""
    return _KEYS[by].replace(str(HOUR_NS), str(DAY_NS)) if table == "days" else _KEYS[by]


def key(by: By, period: Period) -> Key:
    """The key of a row."""
    match by:
        case "tenant":
            return (period.tenant,)
        case "grant":
            return (period.grant_id, period.tenant)
        case "device":
            return (period.device, period.tenant)
        case "hour":
            return (period.from_ns // HOUR_NS * HOUR_NS, period.tenant)
        case "charge":
            return (period.from_ns // DAY_NS * DAY_NS, period.tenant, period.grant_id, period.device)


def snapshot(path: Path) -> sqlite3.Connection:
    """A reader of the file as it is now, whatever is written meanwhile. Raises FailedError."""
    with failures(path):
        reader = connect(path, "?mode=ro")
        try:
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM chains LIMIT 1").fetchone()
        except BaseException:
            reader.close()
            raise
    return reader


def added_up(
    path: Path, reader: sqlite3.Connection, by: By, span: Span, waiting: Iterable[Period] = ()
) -> dict[Key, Sums]:
    """Sums by key, of the file and of what waits to be written. Closes the reader. Raises FailedError, and UsageError
    where there are more than ROWS_MAX."""
    with failures(path), contextlib.closing(reader):
        try:
            found = _read(reader, by, span, ", ".join(f"SUM({name})" for name in _SOURCES), lambda sums: sums)
        except sqlite3.OperationalError as error:
            if "overflow" not in str(error):
                raise
            # Numbers that no clock can have measured: each half of the 64 bits is summed separately.
            halves = ", ".join(f"SUM({name} >> 32), SUM({name} & 4294967295)" for name in _SOURCES)
            found = _read(reader, by, span, halves, _whole)
    for period in waiting:
        if span.has(period):
            found.setdefault(key(by, period), Sums()).count(period)
    if len(found) > ROWS_MAX:
        raise UsageError(f"that is more than {ROWS_MAX} rows: ask for a shorter time, or one tenant")
    return found


def _whole(halves: Sequence[int]) -> list[int]:
    return [(halves[i] << 32) + halves[i + 1] for i in range(0, len(halves), 2)]


def _read(
    reader: sqlite3.Connection, by: By, span: Span, sums: str, whole: Callable[[Sequence[int]], Sequence[int]]
) -> dict[Key, Sums]:
    """Returns at most one more than ROWS_MAX."""
    found: dict[Key, Sums] = {}
    width = _KEYS[by].count(",") + 1
    for row in reader.execute(*_query(by, span, sums)):
        name, numbers = row[:width], whole(row[width:])
        if name in found:  # in another table
            found[name].add(numbers)
        else:
            found[name] = Sums(*numbers)
        if len(found) > ROWS_MAX:
            break
    return found


def _query(by: By, span: Span, sums: str) -> tuple[str, list[object]]:
    mine = "" if span.tenant is None else " AND (tenant = ? OR substr(tenant, 1, ?) = ?)"
    values: list[object] = [span.since_ns, span.until_ns]
    if span.tenant is not None:
        values += [span.tenant, len(span.tenant) + 1, f"{span.tenant}/"]
    groups = ", ".join(str(i + 1) for i in range(_KEYS[by].count(",") + 1))
    # Table by table, since grouping sorts the rows with all their columns.
    parts = [
        f"SELECT {_key(by, table)}, {sums} FROM {table} WHERE to_ns > ? AND to_ns <= ?{mine} GROUP BY {groups}"  # noqa: S608
        for table in CHAINED
    ]
    return " UNION ALL ".join(parts), values * len(CHAINED)


def shown_time(ns: int) -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
