"""Verifies that a ledger is what was written: every row's hash, and that each device's rows add up to its wall time."""

import contextlib
from pathlib import Path
from typing import Any

from gpushare.errors import UsageError
from gpushare.ledger import chain, rollup
from gpushare.ledger.entries import GAP, IDLE
from gpushare.ledger.queries import ALL
from gpushare.ledger.schema import ATTACHED, CHAINED, KINDS, MOVING, SCHEMA_VERSION
from gpushare.ledger.sqlite_file import connect, failures
from gpushare.ledger.usage import shown_time

_ERROR = 0.001
_LEAST_NS = 100 * 10**9
"""The sums of a device with less are not checked: its rows end at other moments than those of its idle time."""


def verify(path: Path) -> dict[str, Any]:
    """{"ok", "fault", "lines", "tables", "devices"}. Reads the whole file. Raises UsageError where it is not a ledger
    of this version, FailedError where it cannot be read."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    with failures(path), contextlib.closing(connect(path, "?mode=ro")) as db:
        db.execute("BEGIN")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise UsageError(f"{path} is a ledger of version {version}, this gpushare knows {SCHEMA_VERSION}")
        tables = {table: _table(db, table) for table in KINDS}
        devices = _devices(db)
        gaps = _gaps(db)
    faults = [f"{name}: {table['fault']}" for name, table in tables.items() if table["fault"]]
    faults += [
        f"device {device}: its rows add up to {one['used_ns'] / 1e9:.3f} s of {one['wall_ns'] / 1e9:.3f} s"
        for device, one in devices.items()
        if one["wall_ns"] >= _LEAST_NS and abs(one["used_ns"] - one["wall_ns"]) > _ERROR * one["wall_ns"]
    ]
    lines = [
        f"{name}: {table['rows']} rows as they were written, the last one {table['head']}"
        + (f"; {table['before']} from before the chain" if table["before"] else "")
        for name, table in tables.items()
        if not table["fault"] and (table["rows"] or name not in (*MOVING, ATTACHED))
    ]
    lines += [
        f"device {device}: {one['used_ns'] / 1e9:.1f} s of {one['wall_ns'] / 1e9:.1f} s accounted for"
        for device, one in devices.items()
    ]
    lines += gaps
    return {"ok": not faults, "fault": "; ".join(faults), "lines": lines, "tables": tables, "devices": devices}


def _table(db: Any, table: str) -> dict[str, Any]:
    fault, rows, before = chain.fault(db, table)
    head = chain.link(db, table, "head")
    return {"fault": fault, "rows": rows, "before": before, "head": f"{head.row} {head.hash.hex()[:16]}"}


def _gaps(db: Any) -> list[str]:
    """When no daemon was there to record; where rolled up, for how long."""
    found = []
    for step in (one for one in reversed(rollup.STEPS) if one.target in CHAINED):
        query = (
            f"SELECT MIN(from_ns), MAX(used_ns) FROM {step.target} WHERE tenant = ? "
            f"GROUP BY from_ns / {step.unit_ns} ORDER BY 1"
        )
        found += [
            f"no daemon for {used / 1e9:.1f} s of the {step.target.removesuffix('s')} of {shown_time(begin)}"
            for begin, used in db.execute(query, (GAP,))
        ]
    query = "SELECT from_ns, to_ns FROM periods WHERE tenant = ? GROUP BY from_ns, to_ns ORDER BY from_ns"
    rows = db.execute(query, (GAP,))
    return found + [f"no daemon from {shown_time(begin)} to {shown_time(end)}" for begin, end in rows]


def _devices(db: Any) -> dict[str, dict[str, int]]:
    wall = "SUM(CASE WHEN tenant IN (?, ?) THEN (to_ns - from_ns) / 1000 ELSE 0 END)"
    # Rows before the first one of idle time were written by an earlier version.
    first = f"SELECT COALESCE(MIN(from_ns), 0) FROM {ALL} WHERE tenant = ?"
    # Later rows are those of ended grants: the idle time beside them waits in the daemon for up to a minute.
    last = f"SELECT MAX(to_ns) FROM {ALL} WHERE tenant = ?"
    where = f"from_ns >= ({first}) AND from_ns < ({last})"
    query = f"SELECT device, SUM(used_ns / 1000), {wall} FROM {ALL} WHERE {where} GROUP BY device"
    rows = db.execute(query, (IDLE, GAP, IDLE, IDLE))
    return {device: {"used_ns": used * 1000, "wall_ns": wall * 1000} for device, used, wall in rows}
