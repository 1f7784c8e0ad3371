"""Rows that the ledger's file does not have yet, and those of all grants and parts of gangs that have not ended: a
SQLite database on tmpfs.

A change is a transaction of some microseconds and needs no disk; from then on it outlives a killed daemon. While tmpfs
takes nothing, the database is in memory.
"""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gpushare.errors import FailedError
from gpushare.ledger.entries import ATTACHMENTS, PERIODS, REST, AttachmentRow, Batch, GrantRow, Move, Period, sound
from gpushare.ledger.recent_rows import KINDS, LIVES, MERGE, PUT, SCHEMA, TABLES, by_tenant
from gpushare.ledger.sqlite_file import connect, failures

log = logging.getLogger(__name__)

T = TypeVar("T")
Change = Callable[[sqlite3.Connection, int], object]
"""Changes rows; the number is their `seq`."""

KEPT_MAX = 50_000
"""Most ended grants, and most of their periods, that wait for the disk: some 100 MB, which is days of a busy node."""
_FULL = 1
"""Of auto_vacuum."""
_CHECK_EVERY = 1000
"""How many changes are made between two checks of KEPT_MAX."""


class Recent:
    """Any thread may call it; no call waits for a disk. `on_tmpfs`: whether all of it outlives a killed daemon. `lost`:
    how many rows of ended grants were dropped because too many waited."""

    def __init__(self, directory: Path | None) -> None:
        """`directory`: the parent of the grants' directories, on tmpfs. None: all is kept in memory."""
        self.on_tmpfs = False
        self.lost = 0
        self._path = directory / "ledger.recent" if directory is not None else None
        self._lock = threading.RLock()
        self._together: list[Change] | None = None
        self._in_file = self._taken = 0
        """Up to which `seq` the file has the rows, and up to which the ledger's thread is writing them."""
        self._changes = 0
        self._db = _in_memory()
        if self._path is not None:
            self._begin(self._path)
        newest = ", ".join(f"(SELECT COALESCE(MAX(seq), 0) FROM {name})" for name in TABLES)
        self._seq = int(self._rows(f"SELECT MAX({newest})")[0][0])
        if self._seq > time.clock_gettime_ns(time.CLOCK_BOOTTIME):  # of an earlier boot: the directory is on a disk
            self._seq = 0
            for name in TABLES:
                self._rows(f"UPDATE {name} SET seq = 1 WHERE seq > 1")
        self.complete()  # what an earlier run recorded is not merged with what this one does

    @property
    def collects(self) -> bool:
        """Whether it is inside `together`."""
        return self._together is not None

    # Changes.

    def save(self, row: GrantRow) -> None:
        """Puts a grant's row in the place of an earlier one. With its end its periods are complete."""

        def change(db: sqlite3.Connection, seq: int) -> None:
            db.execute(PUT["grants"], (*row, seq))
            if row.ended_ns is not None:
                for name in KINDS:
                    db.execute(f"UPDATE {name} SET seq = ? WHERE grant_id = ? AND seq IS NULL", (seq, row.id))

        self._change(change)

    def put(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Puts rows of another table in the place of earlier ones."""
        found = list(rows)
        self._change(lambda db, seq: db.executemany(PUT[table], [(*row, seq) for row in found]))

    def add(self, periods: Iterable[Period], moves: Iterable[Move] = ()) -> None:
        """Merges each period with the one of its grant and device that ended when it began, and each move with one that
        has the same texts."""
        found: dict[str, list[Any]] = {"periods": list(map(sound, periods)), "moves": list(map(sound, moves))}

        def change(db: sqlite3.Connection, _: int) -> None:
            for table, kind in KINDS.items():
                merge, given = MERGE[table]
                for row in found[table]:
                    if not db.execute(merge, given(row)).rowcount:  # the first one, or the clock was set
                        db.execute(PUT[table], (*kind.values(row), None))

        self._change(change)

    def attach(self, row: AttachmentRow) -> None:
        """Puts an attachment in the place of an earlier state of it."""
        given = ATTACHMENTS.values(sound(row))
        self._change(lambda db, seq: db.execute(PUT["attachments"], (*given, seq if row.ending else None)))

    def complete(self) -> None:
        """Makes all periods and moves complete, so that they go to the file; so do attachments that live."""

        def change(db: sqlite3.Connection, seq: int) -> None:
            for name in (*KINDS, "attachments"):
                db.execute(f"UPDATE {name} SET seq = ? WHERE seq IS NULL", (seq,))

        self._change(change)

    def remove(self, table: str, row_id: str) -> None:
        """Removes the row of a grant or a part."""
        self._change(lambda db, _: db.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,)))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is changed inside is one transaction, at its end. A nested one is a part of the outer one."""
        with self._lock:  # another thread's changes are no part of it
            if self._together is not None:
                yield
                return
            self._together = []
            try:
                yield
            finally:
                changes, self._together = self._together, None
                self._change(*changes)

    def _change(self, *changes: Change) -> None:
        with self._lock:
            if self._together is not None:
                self._together += changes
                return
            seq = self._seq = max(self._seq + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            self._do(lambda db: _transaction(db, seq, changes))
            self._changes += 1
            if self._changes % _CHECK_EVERY == 0:
                self._do(lambda db: _transaction(db, self._seq, [self._shed]))

    def _shed(self, db: sqlite3.Connection, seq: int) -> None:
        """Drops the oldest of too many ended grants, and merges the oldest of too many periods and moves by tenant: the
        tenants' sums stay right, the grants' do not. Leaves out what is being written, which would count twice."""
        beyond = "seq > ?1 ORDER BY seq LIMIT max(0, (SELECT COUNT(*) FROM {0} WHERE {1} seq > ?1) - ?2)".format
        limits = (self._taken, KEPT_MAX)
        for name in ("grants", "attachments"):
            ended = f"NOT ({LIVES[name]}) AND"
            some = f"SELECT rowid FROM {name} WHERE {ended} {beyond(name, ended)}"
            self.lost += db.execute(f"DELETE FROM {name} WHERE rowid IN ({some})", limits).rowcount
        for name in KINDS:
            oldest = f"SELECT rowid, * FROM {name} WHERE grant_id != '{REST}' AND {beyond(name, '')}"
            rows = db.execute(oldest, limits).fetchall()
            if rows:
                rows += db.execute(f"SELECT rowid, * FROM {name} WHERE grant_id = ? AND seq > ?", (REST, self._taken))
                db.executemany(f"DELETE FROM {name} WHERE rowid = ?", [row[:1] for row in rows])
                merged = by_tenant(name, [row[1:-1] for row in rows])
                db.executemany(PUT[name], [(*row, seq) for row in merged])

    # Questions.

    def ask(self, query: Callable[..., T], *arguments: object) -> T:
        """Asks the database, whose tables have the columns of the file's."""
        with self._lock:
            return self._do(lambda db: query(db, *arguments))

    def _rows(self, query: str, *given: object) -> list[Any]:
        return self.ask(lambda db: db.execute(query, given).fetchall())

    def open(self) -> list[GrantRow]:
        """Rows of all grants that have not ended, oldest first."""
        rows = self._rows(f"SELECT * FROM grants WHERE {LIVES['grants']} ORDER BY created_ns")
        return [GrantRow(*row[:-1]) for row in rows]

    def parts(self) -> dict[str, str]:
        """Parts of gangs: states by id, the oldest first."""
        return dict(self._rows(f"SELECT id, state FROM parts WHERE {LIVES['parts']} ORDER BY seq, rowid"))

    def attached(self) -> list[AttachmentRow]:
        """Attachments that have not ended, the oldest first."""
        rows = self._rows(f"SELECT * FROM attachments WHERE {LIVES['attachments']} ORDER BY from_ns")
        return [AttachmentRow(*row[:-1]) for row in rows]

    def periods(self) -> list[Period]:
        """All that the file does not have."""
        return [Period(*row[:-1]) for row in self._rows("SELECT * FROM periods")]

    def moves(self) -> list[Move]:
        """All that the file does not have."""
        return [Move(*row[:-1]) for row in self._rows("SELECT * FROM moves")]

    def waiting(self) -> int:
        """How many rows the file does not have."""
        counts = " + ".join(f"(SELECT COUNT(*) FROM {name} WHERE seq IS NULL OR seq > ?1)" for name in TABLES)
        return int(self._rows(f"SELECT {counts}", self._in_file)[0][0])

    # The way to the file.

    def batch(self, most: int) -> Batch:
        """The oldest rows that the file does not have, whole transactions. They stay until `moved`."""
        waiting = " UNION ALL ".join(f"SELECT seq FROM {name} WHERE seq > ?1" for name in TABLES)
        last = f"SELECT MAX(seq) FROM (SELECT seq FROM ({waiting}) ORDER BY seq LIMIT ?2)"
        with self._lock:
            self._taken = self._rows(last, self._in_file, most)[0][0] or self._in_file
            query = "SELECT * FROM {} WHERE seq > ? AND seq <= ? ORDER BY seq".format
            rows = {name: self._rows(query(name), self._in_file, self._taken) for name in TABLES}
        return Batch(**{name: [row[:-1] for row in found] for name, found in rows.items()}, last=self._taken)

    def moved(self, last: int) -> None:
        """Drops what the file has, which is all up to the `seq` `last`, except what has not ended. Where the file was
        replaced it may have less than before: the rest is then in the next batch again."""
        self._in_file = last

        def change(db: sqlite3.Connection, _: int) -> None:
            for name in TABLES:
                living = f" AND NOT ({LIVES[name]})" if name in LIVES else ""
                db.execute(f"DELETE FROM {name} WHERE seq <= ?{living}", (last,))

        self._change(change)

    def adopt(
        self, grants: Iterable[GrantRow], parts: Iterable[tuple[str, str]], attached: Iterable[AttachmentRow]
    ) -> None:
        """Takes what earlier runs left in the file without an end, in the place of what was moved there."""
        rows: dict[str, list[tuple[object, ...]]] = {"grants": [*grants], "parts": [*parts]}
        rows["attachments"] = list(map(ATTACHMENTS.values, attached))

        def change(db: sqlite3.Connection, _: int) -> None:
            for name, found in rows.items():
                db.execute(f"DELETE FROM {name} WHERE seq <= ?", (self._in_file,))
                db.executemany(PUT[name].replace("REPLACE", "IGNORE"), [(*row, 1) for row in found])

        self._change(change)

    # Where it is.

    def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Calls `act` with the database; once more where tmpfs fails, with that in memory."""
        try:
            return act(self._db)
        except sqlite3.Error as error:
            if not self.on_tmpfs:
                raise
            log.warning("%s cannot be used (%s): what the ledger's file does not have is in memory", self._path, error)
            stored, self._db, self.on_tmpfs = self._db, _in_memory(), False
            _rescue(stored, self._db)
            return act(self._db)

    def _begin(self, path: Path) -> None:
        """Goes on with what an earlier run left."""
        try:
            with failures(path):
                path.parent.mkdir(mode=0o711, exist_ok=True)
                _take_fresh(path)
                self._db = _on_tmpfs(path)
                self.on_tmpfs = True
        except FailedError as error:
            log.warning("%s: what can be read of it is in memory", error)
            with contextlib.suppress(sqlite3.Error):
                _rescue(_to_read(path), self._db)

    def return_to_tmpfs(self) -> None:
        """Goes on on tmpfs, where that is possible again. Until then the older database stays there, unless the file
        has all of it: it may be what tmpfs is full of."""
        if self.on_tmpfs or self._path is None:
            return
        fresh = _fresh(self._path)
        with self._lock, contextlib.suppress(FailedError), failures(self._path):
            if not self.waiting():
                _remove(self._path)
            try:
                with contextlib.closing(_on_tmpfs(fresh)) as db:
                    self._db.backup(db)
                    # Fails where there is room for SQLite's log alone. The end of a connection says nothing of that.
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                _remove(self._path)
                fresh.rename(self._path)
            except BaseException:
                _remove(fresh)
                raise
            self._db, self.on_tmpfs = _on_tmpfs(self._path), True

    def close(self) -> None:
        """Closes the database, and removes its file where the ledger's file has all of it and no grant lives."""
        with self._lock:
            left = self.waiting() or self._rows("SELECT 1 FROM grants LIMIT 1")
            self._db.close()
            self._db, self.on_tmpfs = _in_memory(), False
            if not left and self._path is not None:
                _remove(self._path)


def _fresh(path: Path) -> Path:
    """What is to replace the database on tmpfs."""
    return path.with_suffix(".new")


def _take_fresh(path: Path) -> None:
    """Goes on with one that was to replace the old one, which is gone already. It is whole where it has no log."""
    fresh = _fresh(path)
    if not path.exists() and fresh.exists() and not Path(f"{fresh}-wal").exists():
        Path(f"{path}-wal").unlink(missing_ok=True)
        fresh.rename(path)


def _in_memory() -> sqlite3.Connection:
    return _prepared(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))


def _on_tmpfs(path: Path) -> sqlite3.Connection:
    """Opens or creates it; an exception of SQLite shows its damage."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    # Without locks, since the daemon has one; so the log needs no file for its index.
    return _prepared(connect(path, "?vfs=unix-none"))


def _to_read(path: Path) -> sqlite3.Connection:
    """Opens what an earlier run left, with its log unless that is damaged."""
    db = connect(path, "?mode=ro&vfs=unix-none")
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("SELECT 1 FROM grants").fetchone()
    except sqlite3.Error:
        db.close()
        return connect(path, "?mode=ro&immutable=1")
    return db


def _prepared(db: sqlite3.Connection) -> sqlite3.Connection:
    found = ""
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        if db.execute("PRAGMA auto_vacuum").fetchone()[0] != _FULL:  # it writes, and there may be no room for that
            db.execute("PRAGMA auto_vacuum = FULL")
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 250;")
        _transaction(db, 0, [_made])
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    finally:
        if found != "ok":
            db.close()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    return db


def _made(db: sqlite3.Connection, _: int) -> None:
    """Makes the tables. Those of an earlier version, which have fewer columns, are made anew with their rows."""
    older = {}
    for name, columns in TABLES.items():
        has = {row[1] for row in db.execute(f"PRAGMA table_info({name})")}
        if has and not has.issuperset(columns):
            none = {column: "''" if column in PERIODS.texts else "0" for column in (*columns, "seq")}
            values = ", ".join(column if column in has else none[column] for column in none)
            older[name] = db.execute(f"SELECT {values} FROM {name} ORDER BY rowid").fetchall()
            db.execute(f"DROP TABLE {name}")
    for statement in filter(None, SCHEMA.split(";")):
        db.execute(statement)
    for name, rows in older.items():
        db.executemany(PUT[name], rows)


def _transaction(db: sqlite3.Connection, seq: int, changes: Iterable[Change]) -> None:
    db.execute("BEGIN")
    try:
        for change in changes:
            change(db, seq)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _rescue(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copies what can be read, and closes the old one."""
    for table in TABLES:
        with contextlib.suppress(sqlite3.Error):
            new.executemany(PUT[table], old.execute(f"SELECT * FROM {table}"))
    with contextlib.suppress(sqlite3.Error):
        old.close()


def _remove(path: Path) -> None:
    for suffix in ("", "-wal"):
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{suffix}")  # noqa: PTH108 - a name, not a path
