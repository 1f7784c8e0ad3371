"""Hashes that chain the rows of a table: each covers the row and the hash before it, so that a row that is changed,
added, removed or moved shows at the next one. Works in an open transaction of the ledger's file.

Whoever may write the file may also write another chain: it shows mistakes and edits, and anybody who has noted a hash
can show that what was before it is unchanged.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpushare.ledger.schema import KINDS, LATER
from gpushare.ledger.sqlite_file import DamagedError

_AHEAD_NS = 24 * 3600 * 10**9
_encoded = json.JSONEncoder(separators=(",", ":")).encode

Insert = Callable[[str, int | None, str, tuple[Any, ...]], bool]
"""As LedgerFile.insert."""


def columns(table: str) -> tuple[str, ...]:
    """The columns of a table's rows that their hashes cover, besides the id."""
    return "run", *KINDS[table].columns


COLUMNS = columns("periods")


class Link(NamedTuple):
    """The last row of a part of a chain, and its hash; that is 0 before the first row, also after rows from before
    the chain."""

    row: int
    hash: bytes = bytes(32)


def following(table: str, before: bytes, row: int, values: Sequence[object]) -> bytes:
    """The hash of a row. `values`: of the table's `columns`."""
    for _ in LATER.get(table, ()):
        if values[-1]:
            break
        values = values[:-1]
    return hashlib.sha256(before + _encoded([row, *values]).encode()).digest()


def append(db: sqlite3.Connection, insert: Insert, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Adds rows to the end of a table's chain. `rows`: values of its `columns`."""
    if not rows:
        return
    head = link(db, table, "head")
    # Rows that somebody else inserted have ids too: a fault of the chain, but later rows must not be lost by it.
    last = max(head.row, db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()[0])
    names = columns(table)
    statement = f"INSERT INTO {table} (id, {', '.join(names)}, hash) VALUES ({', '.join('?' * (len(names) + 2))})"
    for number, values in enumerate(rows, last + 1):
        new = Link(number, following(table, head.hash, number, values))
        if insert(table, number, statement, (number, *values, new.hash)):
            head = new
    _set_link(db, table, "head", head)


def link(db: sqlite3.Connection, table: str, which: str) -> Link:
    """The `head` of a chain, which is its last row, or its `anchor`: what it begins after. Raises DamagedError where
    there is none."""
    row = db.execute(f"SELECT {which}_id, {which}_hash FROM chains WHERE name = ?", (table,)).fetchone()
    if row is None:
        raise DamagedError(f"the ledger is damaged: nothing is known of the chain of {table}")
    return Link(*row)


def _set_link(db: sqlite3.Connection, table: str, which: str, new: Link) -> None:
    db.execute(f"UPDATE chains SET {which}_id = ?, {which}_hash = ? WHERE name = ?", (*new, table))


def begin(db: sqlite3.Connection) -> None:
    """Makes the chains begin after the existing rows, which came from another file."""
    for table in KINDS:
        last = Link(db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()[0])
        _set_link(db, table, "anchor", last)
        _set_link(db, table, "head", last)


def drop_oldest(db: sqlite3.Connection, table: str, last: int) -> int:
    """Drops rows up to the id `last`: the chain then begins after it. Returns how many."""
    row = db.execute(f"SELECT id, hash FROM {table} WHERE id <= ? ORDER BY id DESC LIMIT 1", (last,)).fetchone()
    if row is None:
        return 0
    if row[1] is not None:  # else it is from before the chain, which begins where it did
        _set_link(db, table, "anchor", Link(*row))
    return db.execute(f"DELETE FROM {table} WHERE id <= ?", (last,)).rowcount


def older(db: sqlite3.Connection, table: str, before_ns: int) -> tuple[int, int]:
    """Ids of the first row, and of the last one up to which all ended before `before_ns`. A row written while the clock
    was ahead holds nothing up. The last is below the first where there is none."""
    query = f"SELECT COALESCE(MIN(id) - 1, (SELECT MAX(id) FROM {table})) FROM {table} WHERE to_ns >= ? AND to_ns <= ?"
    last = db.execute(query, (before_ns, time.time_ns() + _AHEAD_NS)).fetchone()[0]
    first = db.execute(f"SELECT MIN(id) FROM {table}").fetchone()[0]
    return (1, 0) if last is None or first is None else (first, last)


def forget(db: sqlite3.Connection, table: str, before_ns: int, most: int) -> int:
    """Drops rows that ended before `before_ns`, only from the beginning, where a chain may lose rows. Returns how many;
    `most` bounds the range of ids."""
    first, last = older(db, table, before_ns)
    return drop_oldest(db, table, min(last, first + most - 1)) if first <= last else 0


def fault(db: sqlite3.Connection, table: str, until: int | None = None) -> tuple[str, int, int]:
    """(the first fault in a table or empty, rows that were right before it, rows from before the chain). `until`: only
    up to this row, which exists."""
    anchor, head = link(db, table, "anchor"), link(db, table, "head")
    before = db.execute(f"SELECT COUNT(*) FROM {table} WHERE id <= ? AND hash IS NULL", (anchor.row,)).fetchone()[0]
    last, count = anchor, 0
    where = "WHERE NOT (id <= ? AND hash IS NULL) AND id <= ?"
    query = f"SELECT id, hash, {', '.join(columns(table))} FROM {table} {where} ORDER BY id"
    for row, hash_, *values in db.execute(query, (anchor.row, (1 << 63) - 1 if until is None else until)):
        if row <= last.row:
            return f"row {row} is before the beginning of the chain", count, before
        if hash_ != following(table, last.hash, row, values):
            wrong = f"row {row} is not what was written, or a row between {last.row} and it is gone"
            return wrong, count, before
        last, count = Link(row, hash_), count + 1
    if until is None and last.row != head.row:
        return f"rows after {last.row} are gone: the last one was {head.row}", count, before
    if until is None and last.hash != head.hash:
        return f"the end of the chain is not that of row {head.row}", count, before
    return "", count, before
