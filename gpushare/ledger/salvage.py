"""Replaces a damaged ledger: it is moved aside and kept, and a new one begins with the rows that can still be read.

The new file is completed under another name first. A kill at any moment leaves the old file, or the new one, or a swap
that the next start finishes.
"""

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gpushare.ledger.file import LedgerFile
from gpushare.ledger.schema import ATTACHED, CHAINED, MOVING
from gpushare.ledger.sqlite_file import UNREADABLE, DamagedError, connect, failures

log = logging.getLogger(__name__)

DAMAGED_KEPT = 3
_ROWS = 1000  # in one transaction
_LOGS = ("-wal", "-journal", "-shm")
# What living workloads need comes first and is never cut short.
_ORDER = (
    ("runs", ""),
    ("grants", "WHERE ended_ns IS NULL"),
    ("parts", ""),
    ("attached", ""),
    ("devices", ""),
    ("contexts", ""),
    ("periods", "WHERE grant_id IN (SELECT id FROM grants WHERE ended_ns IS NULL)"),
    ("moves", "WHERE grant_id IN (SELECT id FROM grants WHERE ended_ns IS NULL)"),
    ("grants", ""),
    ("periods", ""),
    ("hours", ""),
    ("days", ""),
    ("moves", ""),
    ("move_hours", ""),
    ("move_days", ""),
    (ATTACHED, ""),
    ("quarantine", ""),
)
_HISTORY = ("grants", *CHAINED, *MOVING, ATTACHED, "quarantine")
_LATER = (*MOVING, "attached", ATTACHED)
"""Tables that an earlier version does not have."""


def damaged(path: Path) -> list[Path]:
    """Ledgers that were moved aside, the oldest first."""
    found = path.parent.glob(f"{path.name}.damaged-*")
    return sorted(name for name in found if not name.name.endswith(_LOGS))


def open_ledger(path: Path, seconds: float) -> LedgerFile:
    """The ledger, or a new one in the place of one that cannot be used. `seconds`: time limit for reading the rows of
    that.

    Raises FailedError where the disk cannot be read or written at the moment.
    """
    with failures(path):
        _finish(path)
        _clear_logs(path)
    try:
        return LedgerFile(path)
    except DamagedError as error:
        return replace(path, str(error), seconds)


def replace(path: Path, reason: str, seconds: float) -> LedgerFile:
    """Moves the file aside and begins a new one. Raises FailedError where that cannot be done now."""
    log.error("%s", reason)
    making, made = _names(path)
    with failures(path):
        _remove(making)
    fresh = LedgerFile(making)
    try:
        taken, bad, whole = _salvage(path, fresh, time.monotonic() + seconds)
        fresh.begin_again()
    finally:
        fresh.close()
    with failures(path):
        making.rename(made)
        aside = _finish(path)
    log.error(
        "the ledger %s is moved to %s; of its rows %d are kept, %d of them as bytes only%s",
        path,
        aside,
        taken,
        bad,
        "" if whole else ": it has more that could not be read, or not in time",
    )
    return LedgerFile(path)


def _names(path: Path) -> tuple[Path, Path]:
    """Paths of the new ledger: while it is made, and when it is complete."""
    return path.with_name(f"{path.name}.making"), path.with_name(f"{path.name}.new")


def _remove(path: Path) -> None:
    for name in (path, *(Path(f"{path}{suffix}") for suffix in _LOGS)):
        name.unlink(missing_ok=True)


def _clear_logs(path: Path) -> None:
    """Moves aside what is not a file in the place of SQLite's logs: SQLite blocks on a pipe and fails on a
    directory."""
    for name in (Path(f"{path}{suffix}") for suffix in _LOGS):
        if os.path.lexists(name) and not stat.S_ISREG(name.lstat().st_mode):
            aside = name.with_name(f"{name.name}.odd-{time.time_ns()}")
            log.error("%s is not a file: it is moved to %s", name, aside)
            name.rename(aside)


def _finish(path: Path) -> Path | None:
    """Puts the new ledger, where there is a complete one, in the place of the old one. It must never be opened with the
    old one's log."""
    _, made = _names(path)
    if not made.exists():
        return None
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
    aside = path.with_name(f"{path.name}.damaged-{stamp}.{nanoseconds:09}")
    for suffix in (*_LOGS, ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")  # noqa: PTH104 - of names, not of paths
    made.rename(path)
    for old in damaged(path)[:-DAMAGED_KEPT]:
        with contextlib.suppress(OSError):  # a directory that stood in the ledger's place stays
            _remove(old)
    return aside


def _salvage(path: Path, fresh: LedgerFile, deadline: float) -> tuple[int, int, bool]:
    """Copies what can be read. Returns how many rows it took, how many of them were set aside, and whether that is
    all."""
    taken = bad = 0
    whole = True
    if not path.is_file():
        return taken, bad, False
    try:
        old = connect(path)
    except UNREADABLE:
        return taken, bad, False
    with contextlib.closing(old):
        for table, where in _ORDER:
            columns = _columns(old, table) & fresh.ask(_columns, table)
            if not columns:
                whole = whole and table in _LATER
                continue
            # Ids in quarantine mean nothing, and the new ledger assigns its own.
            names = sorted(columns - {"id"} if table == "quarantine" else columns - {"hash"})
            rows = _Rows(old, f"{table} {where}", names)
            stream = iter(rows)
            while chunk := list(islice(stream, _ROWS)):
                more, odd = fresh.copy(table, names, chunk)
                taken, bad = taken + more, bad + odd
                if table in _HISTORY and not where and time.monotonic() > deadline:
                    whole = False
                    break
            whole = whole and rows.whole
    return taken, bad, whole


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    try:
        return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    except UNREADABLE:
        return set()


class _Rows:
    """Rows of one table with their rowids: the newest first and, where a damaged page ends that, from the other end."""

    def __init__(self, db: sqlite3.Connection, table: str, columns: list[str]) -> None:
        self.whole = True
        self._db = db
        self._query = f"SELECT rowid, {', '.join(columns)} FROM {table} ORDER BY rowid"

    def __iter__(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        lowest: int | None = None
        try:
            for row in self._db.execute(f"{self._query} DESC"):
                lowest = row[0]
                yield row[0], row[1:]
        except UNREADABLE:
            self.whole = False
        else:
            return
        with contextlib.suppress(*UNREADABLE):
            for row in self._db.execute(f"{self._query} ASC"):
                if lowest is not None and row[0] >= lowest:
                    return
                yield row[0], row[1:]
