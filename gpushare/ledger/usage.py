"""Sums over a span of time in the ledger. Reads every row of the span: call it in a thread."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Literal

from gpushare.errors import UsageError
from gpushare.ledger.entries import LARGEST, MOVES, PERIODS, Move, Period
from gpushare.ledger.queries import union
from gpushare.ledger.schema import CHAINED, MOVING
from gpushare.ledger.sqlite_file import connect, failures, sums, whole

By = Literal["tenant", "grant", "device", "hour", "period", "charge", "holder", "origin"]
TABLES = (*CHAINED, "waiting")
_MOVES = (*MOVING, "waiting_moves")
"""Tables of periods and of moves that a `snapshot` has."""
ALL = union(TABLES)
ROWS_MAX = 60_000
"""Most rows in an answer: 64 tenants in each hour of a month are 46,080."""
MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS


@dataclass(frozen=True, slots=True)
class Span:
    """Rows that count after `since_ns`, and not after `until_ns` (`within`). `tenant`: only it and those below it.
    `cuts`: where periods begin, in ascending order; needed by period."""

    since_ns: int
    until_ns: int
    tenant: str | None = None
    cuts: tuple[int, ...] = ()


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
    extra_ns: int = 0
    hosted_mib_ms: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    stall_ns: int = 0
    stalls: int = 0

    def count(self, row: Period | Move) -> None:
        """Adds a row."""
        if isinstance(row, Move):
            self.add(MOVES.sums, MOVES.of_sums(row))
        else:
            self.wall_ns += row.to_ns - row.from_ns
            self.add(_SUMMED, _summed(row))

    def add(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        """Adds numbers to the sums of these names."""
        for name, number in zip(names, numbers, strict=True):
            if number:
                setattr(self, name, getattr(self, name) + number)


_SUMMED = tuple(field.name for field in fields(Sums) if field.name in PERIODS.sums)
_summed = attrgetter(*_SUMMED)
_SOURCES = {"wall_ns": "(to_ns - from_ns)"} | {name: name for name in _SUMMED}
"""What is added up of periods, by the name of the sum."""
_MOVED = {name: name for name in MOVES.sums}
Key = tuple[str | int, ...]
"""By `by`: a tenant; a grant and its tenant; a device and the tenant; the start of an hour and the tenant; that of a
period and the tenant; that of a day, and tenant, grant and device; a tenant whose programs waited for memory, and whose
memory they waited for: the tenant and the grant; client machines (Period.origin) and the tenant."""
_KEYS = {
    "tenant": "tenant",
    "grant": "grant_id, tenant",
    "device": "device, tenant",
    "hour": f"from_ns / {HOUR_NS} * {HOUR_NS}, tenant",
    "period": "PERIOD, tenant",
    "charge": f"from_ns / {DAY_NS} * {DAY_NS}, tenant, grant_id, device",
    "holder": "tenant, holder_tenant, holder",
    "origin": "origin, tenant",
}


def _counts(table: str) -> str:
    """The moment at which a row counts. A row of hours may end after its hour, as the last of its minutes does: it
    counts where it begins. A row of a day (UTC) counts at noon, which nearly everywhere is on the same local day. Time
    without a daemon, which can be of many days, counts at its end."""
    if table in (CHAINED[2], MOVING[2]):
        return f"MAX(from_ns / {DAY_NS} * {DAY_NS} + {DAY_NS // 2}, to_ns - {DAY_NS})"
    return f"MAX(from_ns, to_ns - {DAY_NS})" if table in (CHAINED[1], MOVING[1]) else "(to_ns - 1)"


def within(table: str) -> str:
    """The condition for rows of a table to count in a span, and not in the one before or after it. Parameters:
    `reach`."""
    return f"to_ns > ? AND to_ns <= ? AND {_counts(table)} >= ? AND {_counts(table)} < ?"


def reach(span: Span) -> list[int]:
    """Parameters of `within`: where the index is read, and what counts."""
    return [max(0, span.since_ns - DAY_NS), min(LARGEST, span.until_ns + 2 * DAY_NS), span.since_ns, span.until_ns]


def _key(by: By, table: str) -> str:
    """Columns of the key. The hours of a row of days are not known: it counts in the first one."""
    if by == "origin" and table in _MOVES:  # of moves it is not known
        return "'', tenant"
    begins = f"(SELECT at FROM cuts WHERE at <= {_counts(table)} ORDER BY at DESC LIMIT 1)"
    key = _KEYS[by].replace("PERIOD", f"IFNULL({begins}, (SELECT at FROM cuts ORDER BY at LIMIT 1))")
    return key.replace(str(HOUR_NS), str(DAY_NS)) if table in (CHAINED[-1], MOVING[-1]) and by == "hour" else key


def snapshot(path: Path, waiting: Iterable[Period] = (), moves: Iterable[Move] = ()) -> sqlite3.Connection:
    """A reader of the file as it is now, whatever is written meanwhile. `waiting`, `moves`: what the file does not have
    yet, in tables `waiting` and `waiting_moves`. Raises FailedError."""
    with failures(path):
        reader = connect(path, "?mode=ro")
        try:
            reader.execute("PRAGMA temp_store = MEMORY")
            for table, like, kind, rows in (
                ("waiting", "periods", PERIODS, waiting),
                ("waiting_moves", "moves", MOVES, moves),
            ):
                reader.execute(f"CREATE TEMP TABLE {table} AS SELECT * FROM {like} LIMIT 0")
                put = f"INSERT INTO {table} ({', '.join(kind.columns)}) VALUES ({', '.join('?' * len(kind.columns))})"
                reader.executemany(put, map(kind.values, rows))
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM chains LIMIT 1").fetchone()
        except BaseException:
            reader.close()
            raise
    return reader


def added_up(reader: sqlite3.Connection, by: By, span: Span) -> dict[Key, Sums]:
    """Sums by key, from a `snapshot`; by holder only of waits for memory. Raises UsageError where there are more than
    ROWS_MAX."""
    found: dict[Key, Sums] = {}
    if by == "period":
        reader.execute("CREATE TEMP TABLE IF NOT EXISTS cuts (at INTEGER PRIMARY KEY)")
        reader.executemany("INSERT OR IGNORE INTO cuts VALUES (?)", [(at,) for at in span.cuts or (span.since_ns,)])
    for tables, sources in ((TABLES, _SOURCES), (_MOVES, _MOVED)):
        if by == "holder" and tables is TABLES:
            continue
        columns = sources.values()
        try:
            rows = _read(reader, tables, by, span, ", ".join(f"SUM({name})" for name in columns), lambda row: row)
        except sqlite3.OperationalError as error:
            if "overflow" not in str(error):
                raise
            rows = _read(reader, tables, by, span, sums(*columns), whole)  # numbers that no clock can have measured
        for name, numbers in rows:
            found.setdefault(name, Sums()).add(tuple(sources), numbers)
            if len(found) > ROWS_MAX:
                raise UsageError(f"that is more than {ROWS_MAX} rows: ask for a shorter time, or one tenant")
    return found


def _read(
    reader: sqlite3.Connection,
    tables: Sequence[str],
    by: By,
    span: Span,
    columns: str,
    numbers: Callable[[Sequence[int]], Sequence[int]],
) -> list[tuple[Key, Sequence[int]]]:
    """Keys and sums; a key has several where it is in several tables. At most ROWS_MAX keys, and one more."""
    width, found, keys = _KEYS[by].count(",") + 1, list[tuple[Key, Sequence[int]]](), set[Key]()
    for row in reader.execute(*_query(tables, by, span, columns)):
        found.append((row[:width], numbers(row[width:])))
        keys.add(row[:width])
        if len(keys) > ROWS_MAX:
            break
    return found


def _query(tables: Sequence[str], by: By, span: Span, columns: str) -> tuple[str, list[object]]:
    mine = "" if span.tenant is None else " AND (tenant = ? OR substr(tenant, 1, ?) = ?)"
    mine += " AND (stall_ns > 0 OR stalls > 0)" if by == "holder" else ""
    values: list[object] = [*reach(span)]
    if span.tenant is not None:
        values += [span.tenant, len(span.tenant) + 1, f"{span.tenant}/"]
    groups = ", ".join(str(i + 1) for i in range(_KEYS[by].count(",") + 1))
    # Table by table, since grouping sorts the rows with all their columns.
    parts = [
        f"SELECT {_key(by, table)}, {columns} FROM {table} WHERE {within(table)}{mine} GROUP BY {groups}"
        for table in tables
    ]
    return " UNION ALL ".join(parts), values * len(tables)


def shown_time(ns: int) -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
