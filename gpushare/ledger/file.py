"""The ledger's SQLite file: reads and writes. Every failure is one of two: the file is damaged, or the disk cannot be
read or written at the moment. A row that cannot be used is set aside with its bytes, and the rest is kept.

WAL and synchronous=NORMAL: every committed row outlives a killed daemon; a power cut may lose the last moments, but
then no grant lives either. Times are CLOCK_REALTIME nanoseconds.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gpushare.errors import FailedError
from gpushare.ledger import attachments, chain, rollup
from gpushare.ledger.entries import Batch
from gpushare.ledger.schema import KINDS, SCHEMA_VERSION, STEPS
from gpushare.ledger.sqlite_file import UNREADABLE, DamagedError, connect, failures

log = logging.getLogger(__name__)

T = TypeVar("T")

_RUN_MAX = 1 << 52  # JSON's numbers; anything above is damage
_FORGET_ROWS = 2000
# What is wrong with one row, not with the file or the disk.
_BAD_ROW = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError, ValueError)

_PUT = {
    "grants": "INSERT INTO grants VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "phase = excluded.phase, state = excluded.state, ended_ns = excluded.ended_ns",
    "devices": "INSERT OR REPLACE INTO devices VALUES (?, ?, ?)",
    "contexts": "INSERT OR REPLACE INTO contexts VALUES (?, ?, ?, ?)",
}
_SET_ASIDE = "INSERT INTO quarantine (source, row_id, content, reason, at_ns) VALUES (?, ?, ?, ?, ?)"


class LedgerFile:
    """One open file. `unwritable`: why it can only be read, empty where it can be written as well. Every method raises
    FailedError, or DamagedError, where it fails."""

    def __init__(self, path: Path) -> None:
        """Opens or creates it. Raises DamagedError for what cannot become a ledger, FailedError for what cannot be
        opened now."""
        self.path = path
        self.unwritable = ""
        self._run: int | None = None
        self._odd: set[tuple[str, int | str]] = set()
        """Rows that cannot be used and could not be moved, since the file cannot be written."""
        with failures(path):
            # SQLite blocks on a pipe and fails on a directory: neither is opened.
            if path.exists() and not path.is_file():
                raise DamagedError(f"{path} is not a file")
            try:
                self._open_to_write()
            except FailedError as error:
                if isinstance(error, DamagedError):
                    raise
                self.unwritable = str(error)
                self._open_to_read()
            self._seen = [path.stat()]
            self._aside = int(self._db.execute("SELECT COUNT(*) FROM quarantine").fetchone()[0])

    @property
    def aside(self) -> int:
        """How many rows were set aside."""
        return self._aside + len(self._odd)

    def _open_to_write(self) -> None:
        # Rows hold tenants' names and sizes: readable by root only.
        with failures(self.path):
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
            self._db = connect(self.path)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._migrate()
            except BaseException:
                self._db.close()
                raise

    def _open_to_read(self) -> None:
        """For a disk that cannot be written. Where SQLite may not create the log's index, it reads a file without a log
        only as one that never changes."""
        log = Path(f"{self.path}-wal")
        quiet = not log.exists() or not log.stat().st_size
        self._db = connect(self.path, "?mode=ro&immutable=1" if quiet else "?mode=ro")
        try:
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        except BaseException:
            self._db.close()
            raise
        if version != SCHEMA_VERSION:
            self._db.close()
            raise FailedError(self.unwritable)

    def _migrate(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version in STEPS:
            self._db.executescript(f"BEGIN; {STEPS[version]} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise DamagedError(
                f"the ledger {self.path} has version {version}, this gpushare knows {SCHEMA_VERSION}: another one wrote"
                " it"
            )

    def close(self) -> None:
        """Closes it; the log is merged into the file where that can be done."""
        with contextlib.suppress(*UNREADABLE):
            self._db.close()

    def replaced(self) -> bool:
        """Whether somebody has, since the last write, moved the file or its log away, or truncated one of them: SQLite
        would go on with a file that has no name any more."""
        try:
            return not self._follows(self._look())
        except OSError:
            return True

    def _follows(self, now: list[os.stat_result]) -> bool:
        return len(now) >= len(self._seen) and all(
            (one.st_dev, one.st_ino) == (was.st_dev, was.st_ino) and one.st_size >= was.st_size
            for one, was in zip(now, self._seen, strict=False)
        )

    def _look(self) -> list[os.stat_result]:
        """The file, and its log where there is one; both only grow."""
        found = [self.path.stat()]
        with contextlib.suppress(FileNotFoundError):
            found.append(Path(f"{self.path}-wal").stat())
        return found

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        if self.unwritable:
            raise FailedError(self.unwritable)
        with failures(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
                with contextlib.suppress(OSError):
                    now = self._look()
                    if self._follows(now):  # else the next write has to notice
                        self._seen = now
            finally:
                if self._db.in_transaction:
                    with contextlib.suppress(*UNREADABLE):
                        self._db.execute("ROLLBACK")

    # Runs.

    def last_run(self) -> tuple[int, str, int] | None:
        """Number, boot and last sign of life of the latest run."""
        query = (
            "SELECT run, boot_id, COALESCE(ended_ns, seen_ns) FROM runs WHERE run BETWEEN 1 AND ? "
            "ORDER BY run DESC LIMIT 1"
        )
        with failures(self.path):
            row: tuple[int, str, int] | None = self._db.execute(query, (_RUN_MAX,)).fetchone()
        return row

    def moved(self, boot: str) -> int:
        """Up to which one it has the rows that were recorded in this boot of the machine (Batch.last)."""
        # A mark of the future is damage: rows that come until then would be taken for written.
        query = "SELECT COALESCE(MAX(moved), 0) FROM runs WHERE boot_id = ? AND moved <= ?"
        with failures(self.path):
            return int(self._db.execute(query, (boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME))).fetchone()[0])

    def begin(self, run: int, boot: str, gap_ns: int) -> None:
        """Records once that a run has begun."""
        if run == self._run:
            return
        now = time.time_ns()
        with self._writing():
            self._db.execute(
                "INSERT OR IGNORE INTO runs (run, pid, boot_id, started_ns, seen_ns, gap_ns) VALUES (?, ?, ?, ?, ?, ?)",
                (run, os.getpid(), boot, now, now, gap_ns),
            )
        self._run = run

    def end(self, run: int) -> None:
        """Marks the run as ended, so that the next one finds no gap."""
        now = time.time_ns()
        with self._writing():
            self._db.execute("UPDATE runs SET seen_ns = ?, ended_ns = ? WHERE run = ?", (now, now, run))

    # Rows.

    def write(self, run: int, batch: Batch) -> None:
        """Writes all of it in one transaction, with this moment as the run's last sign of life."""
        now = time.time_ns()
        with self._writing():
            for table, statement in _PUT.items():
                for row in getattr(batch, table):
                    self.insert(table, None, statement, row)
            for name, state in batch.parts:
                if state:
                    self.insert("parts", None, "INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", (name, state, now))
                else:
                    self._db.execute("DELETE FROM parts WHERE id = ?", (name,))
            chain.append(self._db, self.insert, "periods", [(run, *row) for row in batch.periods])
            chain.append(self._db, self.insert, "moves", [(run, *row) for row in batch.moves])
            attachments.write(self._db, self.insert, run, batch.attachments)
            self._db.execute("UPDATE runs SET seen_ns = ?, moved = MAX(moved, ?) WHERE run = ?", (now, batch.last, run))

    def begin_again(self) -> None:
        """Makes the chains begin after the existing rows, which came from another file. What has not ended is to be
        written again, since that file may have lost it."""
        with self._writing():
            chain.begin(self._db)
            self._db.execute("UPDATE runs SET moved = 0")

    def insert(self, table: str, row_id: int | None, statement: str, values: tuple[Any, ...]) -> bool:
        """Writes one row, within a transaction. A row that the table rejects is set aside: False."""
        try:
            self._db.execute(statement, values)
        except _BAD_ROW as error:
            content = repr(values).encode(errors="replace")
            self._db.execute(_SET_ASIDE, (table, row_id, content, str(error)[:200], time.time_ns()))
            self._aside += 1
            log.error("ledger: a row for %s is set aside (%s): %s", table, error, content[:200])  # noqa: TRY400
            return False
        return True

    def copy(self, table: str, columns: list[str], rows: Iterable[tuple[int, tuple[Any, ...]]]) -> tuple[int, int]:
        """Copies rows of another ledger, each with its rowid there; existing rows stay. Returns how many it took, and
        how many of them were set aside."""
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        before, bad = self._db.total_changes, 0
        with self._writing():
            for row_id, values in rows:
                bad += not self.insert(table, row_id, statement, values)
        return self._db.total_changes - before, bad

    def ask(self, query: Callable[..., T], *arguments: object) -> T:
        """Asks the file's tables (queries.py)."""
        with failures(self.path):
            return query(self._db, *arguments)

    def decoded(self, table: str, rows: Iterable[tuple[int, str]], decode: Callable[[str], T]) -> list[T]:
        """States from rows of rowids and states. A row that `decode` rejects is set aside."""
        found = []
        for row_id, text in rows:
            try:
                found.append(decode(text))
            except Exception as error:
                self.set_aside(table, row_id, str(error))
        return found

    def set_aside(self, table: str, row_id: int | str, reason: str) -> None:
        """Moves a row whose state cannot be used out of the way. `row_id`: its rowid, or the grant's id."""
        where = "id" if isinstance(row_id, str) else "rowid"
        query = (
            "INSERT INTO quarantine (source, row_id, content, reason, at_ns) "
            f"SELECT ?, rowid, CAST(state AS BLOB), ?, ? FROM {table} WHERE {where} = ?"
        )
        try:
            with self._writing():
                self._db.execute(query, (table, reason[:200], time.time_ns(), row_id))
                self._aside += self._db.execute(f"DELETE FROM {table} WHERE {where} = ?", (row_id,)).rowcount
            log.error("ledger: row %s of %s is set aside: %s", row_id, table, reason)
        except FailedError:
            if (table, row_id) not in self._odd:
                log.error("ledger: row %s of %s cannot be used: %s", row_id, table, reason)  # noqa: TRY400
            self._odd.add((table, row_id))

    def shorten(self, now_ns: int, keep_ns: int | None) -> bool:
        """Rolls up, and drops what is older than `keep_ns`, None: nothing. Returns whether there may be more to do."""
        more = self.roll(now_ns)
        return self.forget(now_ns - keep_ns) or more if keep_ns is not None else more

    def roll(self, now_ns: int) -> bool:
        """Rolls up some old rows of periods. Returns whether there may be more."""
        with self._writing():
            return rollup.roll(self._db, self.insert, now_ns)

    def forget(self, before_ns: int) -> bool:
        """Drops ended grants and attachments, periods, devices and rows set aside that are older than `before_ns`, some
        at once. Returns whether there may be more."""
        with self._writing():
            dropped = max(chain.forget(self._db, table, before_ns, _FORGET_ROWS) for table in KINDS)
            for table, when in (("grants", "ended_ns"), ("devices", "seen_ns"), ("quarantine", "at_ns")):
                some = f"SELECT rowid FROM {table} WHERE {when} < ? LIMIT {_FORGET_ROWS}"
                query = f"DELETE FROM {table} WHERE rowid IN ({some})"
                dropped = max(dropped, self._db.execute(query, (before_ns,)).rowcount)
        return dropped >= _FORGET_ROWS
