"""Questions to the ledger's tables, in its file or on tmpfs (recent.py)."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from gpushare.ledger import attachments
from gpushare.ledger.entries import MAXIMA, PERIODS, AttachmentRow, GrantRow, Totals
from gpushare.ledger.schema import CHAINED
from gpushare.ledger.sqlite_file import sums, whole
from gpushare.node.devices import ContextCost


def union(tables: Iterable[str]) -> str:
    """The periods of several tables, as one."""
    columns = ", ".join(PERIODS.columns)
    return f"({' UNION ALL '.join(f'SELECT {columns} FROM {table}' for table in tables)})"


ALL = union(CHAINED)
"""All periods of the file, of whatever length."""
_MAXIMA = [field.name for field in fields(Totals) if field.name in MAXIMA]
_SUMS = [field.name for field in fields(Totals) if field.name not in MAXIMA]
_TOTALS = f"{', '.join(f'MAX({name})' for name in _MAXIMA)}, {sums(*_SUMS)}"


def _totals(rows: Iterable[tuple[Any, ...]]) -> dict[str, Totals]:
    """By the first column; the others are _TOTALS."""
    found = {}
    for name, *numbers in rows:
        one = dict(zip((*_MAXIMA, *_SUMS), (*numbers[: len(_MAXIMA)], *whole(numbers[len(_MAXIMA) :])), strict=True))
        found[name] = Totals(**one).plus(Totals())  # which clamps
    return found


def totals(db: sqlite3.Connection, periods: str, grant_id: str) -> dict[str, Totals]:
    """Sums of a grant, by device. `periods`: the table."""
    query = f"SELECT device, {_TOTALS} FROM {periods} WHERE grant_id = ? GROUP BY 1"
    return _totals(db.execute(query, (grant_id,)))


class MovedBefore(NamedTuple):
    """What the ledger has of moves of a grant's memory. `copied_bytes`: both ways. `stalled_until_ns`: when its latest
    row with a stall ended, 0: it has none; `holder`, `holder_tenant`: of that row."""

    copied_bytes: int = 0
    stalled_until_ns: int = 0
    holder: str = ""
    holder_tenant: str = ""

    def plus(self, later: "MovedBefore") -> "MovedBefore":
        """Both together."""
        latest = later if later.stalled_until_ns >= self.stalled_until_ns else self
        return latest._replace(copied_bytes=self.copied_bytes + later.copied_bytes)


def moved(db: sqlite3.Connection, tables: Iterable[str], grant_id: str) -> MovedBefore:
    """What tables of moves have of one grant."""
    found = MovedBefore()
    for table in tables:
        # Of a row with MAX SQLite gives the other columns, too.
        query = (
            "SELECT CAST(TOTAL(out_bytes + in_bytes) AS INTEGER), "
            "COALESCE(MAX(CASE WHEN stall_ns > 0 THEN to_ns END), 0), COALESCE(holder, ''),"
            f" COALESCE(holder_tenant, '') FROM {table} WHERE grant_id = ?"
        )
        found = found.plus(MovedBefore(*db.execute(query, (grant_id,)).fetchone()))
    return found


def tenant_totals(db: sqlite3.Connection, periods: str, without: Iterable[str]) -> dict[str, Totals]:
    """Sums by tenant, without these grants. Reads every period."""
    query = (
        f"SELECT tenant, {_TOTALS} FROM {periods} "
        "WHERE grant_id NOT IN (SELECT value FROM json_each(?)) AND tenant NOT LIKE '(%' GROUP BY 1"
    )
    return _totals(db.execute(query, (json.dumps(list(without)),)))


def ended(db: sqlite3.Connection, limit: int) -> list[tuple[int, str]]:
    """Rowids and states of the latest grants that have ended, newest first."""
    query = "SELECT rowid, state FROM grants WHERE ended_ns IS NOT NULL ORDER BY ended_ns DESC LIMIT ?"
    return db.execute(query, (limit,)).fetchall()


def ended_one(db: sqlite3.Connection, grant_id: str) -> list[tuple[int, str]]:
    """The same of one grant, where it has ended."""
    return db.execute("SELECT rowid, state FROM grants WHERE id = ? AND ended_ns IS NOT NULL", (grant_id,)).fetchall()


def living(db: sqlite3.Connection) -> tuple[list[GrantRow], list[tuple[str, str]], list[AttachmentRow]]:
    """What has not ended: grants, states of parts of gangs by id, and attachments; the oldest first."""
    grants = db.execute(f"SELECT {', '.join(GrantRow._fields)} FROM grants WHERE ended_ns IS NULL ORDER BY created_ns")
    parts = db.execute("SELECT id, state FROM parts ORDER BY at_ns").fetchall()
    return [GrantRow(*row) for row in grants], parts, attachments.living(db)


def devices(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """Rowids and states of all devices ever found here, the last seen first."""
    return db.execute("SELECT rowid, state FROM devices ORDER BY seen_ns DESC, id").fetchall()


def context_cost(db: sqlite3.Connection, device: str, driver: str) -> ContextCost | None:
    """What a context takes on the device with this driver version, None where it was not measured."""
    query = "SELECT bytes, listed_bytes FROM contexts WHERE device = ? AND driver = ?"
    row = db.execute(query, (device, driver)).fetchone()
    return ContextCost(*row) if row is not None else None
