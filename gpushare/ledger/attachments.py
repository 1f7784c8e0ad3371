"""Attachments in the ledger's file: one table has those that live, another, which is chained, those that have ended.
Works in an open transaction, or only reads."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from gpushare.ledger import chain
from gpushare.ledger.chain import Insert
from gpushare.ledger.entries import ATTACHMENTS, LARGEST, AttachmentRow
from gpushare.ledger.schema import ATTACHED

LIVES = "ending = ''"
_COLUMNS = ", ".join(ATTACHMENTS.columns)
_PUT = f"INSERT OR REPLACE INTO attached VALUES ({', '.join('?' * len(ATTACHMENTS.columns))})"
_ID, _ENDING = ATTACHMENTS.columns.index("attachment"), ATTACHMENTS.columns.index("ending")


def write(db: sqlite3.Connection, insert: Insert, run: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """Writes attachments as they are now. An end that the table has already is not written again: a daemon that was
    killed before the relay knew of it leaves it to the next one."""
    ended = []
    for row in rows:
        if not row[_ENDING]:
            insert("attached", None, _PUT, row)
            continue
        db.execute("DELETE FROM attached WHERE attachment = ?", (row[_ID],))
        if db.execute(f"SELECT 1 FROM {ATTACHED} WHERE attachment = ?", (row[_ID],)).fetchone() is None:
            ended.append((run, *row))
    chain.append(db, insert, ATTACHED, ended)


def living(db: sqlite3.Connection) -> list[AttachmentRow]:
    """Those without an end, the oldest first."""
    return _found(db, f"SELECT {_COLUMNS} FROM attached ORDER BY from_ns", ())


def ended(db: sqlite3.Connection, limit: int, since_ns: int, grant: str) -> list[AttachmentRow]:
    """Those that have ended since then, the newest first; also on tmpfs. `grant`: only its own; empty: all."""
    own, given = (" AND grant_id = ?", [grant]) if grant else ("", [])
    query = f"SELECT {_COLUMNS} FROM {ATTACHED} WHERE NOT ({LIVES}) AND to_ns >= ?{own} ORDER BY to_ns DESC LIMIT ?"
    return _found(db, query, (min(since_ns, LARGEST), *given, limit))


def _found(db: sqlite3.Connection, query: str, given: Sequence[object]) -> list[AttachmentRow]:
    return [AttachmentRow(*row) for row in db.execute(query, given)]
