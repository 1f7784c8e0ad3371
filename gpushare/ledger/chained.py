"""The tables whose rows are chained, in an open transaction of the ledger's file."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpushare.ledger import chain
from gpushare.ledger.chain import Link, Row
from gpushare.ledger.entries import Period
from gpushare.ledger.schema import CHAINED
from gpushare.ledger.sqlite_file import DamagedError

COLUMNS = ("run", *Period.__struct_fields__)
"""The columns of a period's row that its hash covers, besides its id."""
_AHEAD_NS = 24 * 3600 * 10**9

Insert = Callable[[str, int | None, str, tuple[Any, ...]], bool]
"""As LedgerFile.insert."""


def append(db: sqlite3.Connection, insert: Insert, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Adds rows to the end of a table's chain. `rows`: values of COLUMNS."""
    if not rows:
        return
    head = link(db, table, "head")
    # Rows that somebody else inserted have ids too: a fault of the chain, but later rows must not be lost by it.
    last = max(head.row, db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()[0])
    marks = ", ".join("?" * (len(COLUMNS) + 2))
    statement = f"INSERT INTO {table} (id, {', '.join(COLUMNS)}, hash) VALUES ({marks})"
    for number, values in enumerate(rows, last + 1):
        new = Link(number, chain.following(head.hash, number, values))
        if insert(table, number, statement, (number, *values, new.hash)):
            head = new
    _set_link(db, table, "head", head)


def link(db: sqlite3.Connection, table: str, which: str) -> Link:
    """The `head` or `anchor` of a chain. Raises DamagedError where there is none."""
    query = f"SELECT {which}_id, {which}_hash FROM chains WHERE name = ?"
    row = db.execute(query, (table,)).fetchone()
    if row is None:
        raise DamagedError(f"the ledger is damaged: nothing is known of the chain of {table}")
    return Link(*row)


def _set_link(db: sqlite3.Connection, table: str, which: str, new: Link) -> None:
    query = f"UPDATE chains SET {which}_id = ?, {which}_hash = ? WHERE name = ?"
    db.execute(query, (new.row, new.hash, table))


def begin(db: sqlite3.Connection) -> None:
    """Makes the chains begin after the existing rows, which came from another file."""
    for table in CHAINED:
        last = Link(db.execute(f"SELECT COALESCE(MAX(id), 0) FROM {table}").fetchone()[0])
        _set_link(db, table, "anchor", last)
        _set_link(db, table, "head", last)


def drop_oldest(db: sqlite3.Connection, table: str, last: int) -> int:
    """Drops rows up to the id `last`: the chain then begins after it. Returns how many."""
    query = f"SELECT id, hash FROM {table} WHERE id <= ? ORDER BY id DESC LIMIT 1"
    row = db.execute(query, (last,)).fetchone()
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


def fault(db: sqlite3.Connection, table: str) -> tuple[str, int, int]:
    """(the first fault in a table or empty, rows that were right before it, rows from before the chain)."""
    anchor, head = link(db, table, "anchor"), link(db, table, "head")
    before = db.execute(f"SELECT COUNT(*) FROM {table} WHERE id <= ? AND hash IS NULL", (anchor.row,)).fetchone()[0]
    return *chain.first_fault(anchor, _rows(db, table, anchor), head), before


def fault_until(db: sqlite3.Connection, table: str, last: int) -> str:
    """The first fault in a table up to the row `last`, which exists; empty where there is none."""
    anchor = link(db, table, "anchor")
    if last <= anchor.row:  # all of it is from before the chain
        return ""
    hash_ = db.execute(f"SELECT hash FROM {table} WHERE id = ?", (last,)).fetchone()[0]
    return chain.first_fault(anchor, _rows(db, table, anchor, last), Link(last, hash_))[0]


def _rows(db: sqlite3.Connection, table: str, anchor: Link, last: int = (1 << 63) - 1) -> Iterator[Row]:
    query = (
        f"SELECT id, hash, {', '.join(COLUMNS)} FROM {table} "
        "WHERE NOT (id <= ? AND hash IS NULL) AND id <= ? ORDER BY id"
    )
    return (Row(row[0], row[2:], row[1]) for row in db.execute(query, (anchor.row, last)))
