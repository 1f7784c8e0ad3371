"""Sums over a span of time in the ledger. Reads every row of the span: call it in a thread."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Literal

from gpushare.errors import UsageError
from gpushare.ledger.entries import Period, values
from gpushare.ledger.queries import union
from gpushare.ledger.schema import CHAINED
from gpushare.ledger.sqlite_file import connect, failures, sums, whole

By = Literal["tenant", "grant", "device", "hour", "charge"]
TABLES = (*CHAINED, "waiting")
"""Tables of periods that a `snapshot` has."""
ALL = union(TABLES)
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


def snapshot(path: Path, waiting: Iterable[Period] = ()) -> sqlite3.Connection:
    """A reader of the file as it is now, whatever is written meanwhile. `waiting`: what the file does not have yet, in
    a table of that name. Raises FailedError."""
    with failures(path):
        reader = connect(path, "?mode=ro")
        try:
            reader.execute("PRAGMA temp_store = MEMORY")
            reader.execute("CREATE TEMP TABLE waiting AS SELECT * FROM periods LIMIT 0")
            names = Period.__struct_fields__
            put = f"INSERT INTO waiting ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            reader.executemany(put, map(values, waiting))
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM chains LIMIT 1").fetchone()
        except BaseException:
            reader.close()
            raise
    return reader


def added_up(reader: sqlite3.Connection, by: By, span: Span) -> dict[Key, Sums]:
    """Sums by key, from a `snapshot`. Raises UsageError where there are more than ROWS_MAX."""
    try:
        return _read(reader, by, span, ", ".join(f"SUM({name})" for name in _SOURCES), lambda numbers: numbers)
    except sqlite3.OperationalError as error:
        if "overflow" not in str(error):
            raise
        return _read(reader, by, span, sums(*_SOURCES), whole)  # numbers that no clock can have measured


def _read(
    reader: sqlite3.Connection, by: By, span: Span, columns: str, numbers: Callable[[Sequence[int]], Sequence[int]]
) -> dict[Key, Sums]:
    found: dict[Key, Sums] = {}
    width = _KEYS[by].count(",") + 1
    for row in reader.execute(*_query(by, span, columns)):
        name, values = row[:width], numbers(row[width:])
        if name in found:  # in another table
            found[name].add(values)
        else:
            found[name] = Sums(*values)
        if len(found) > ROWS_MAX:
            raise UsageError(f"that is more than {ROWS_MAX} rows: ask for a shorter time, or one tenant")
    return found


def _query(by: By, span: Span, columns: str) -> tuple[str, list[object]]:
    mine = "" if span.tenant is None else " AND (tenant = ? OR substr(tenant, 1, ?) = ?)"
    values: list[object] = [span.since_ns, span.until_ns]
    if span.tenant is not None:
        values += [span.tenant, len(span.tenant) + 1, f"{span.tenant}/"]
    groups = ", ".join(str(i + 1) for i in range(_KEYS[by].count(",") + 1))
    # Table by table, since grouping sorts the rows with all their columns.
    parts = [
        f"SELECT {_key(by, table)}, {columns} FROM {table} WHERE to_ns > ? AND to_ns <= ?{mine} GROUP BY {groups}"
        for table in TABLES
    ]
    return " UNION ALL ".join(parts), values * len(TABLES)


def shown_time(ns: int) -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
