"""The durable record: grants, what they got in each period, runs of the daemon and the gaps between them.

SQLite with WAL and synchronous=NORMAL: every committed row outlives a killed daemon; a power cut may lose the last
moments, but then no grant lives either. One connection, used by the event loop only: a commit costs about 0.1 ms.
Times are CLOCK_REALTIME nanoseconds.
"""

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from urllib.parse import quote

from gpushare.errors import FailedError

SCHEMA_VERSION = 3
_SCHEMA = """
CREATE TABLE runs (
  run INTEGER PRIMARY KEY, pid INTEGER NOT NULL, boot_id TEXT NOT NULL, started_ns INTEGER NOT NULL,
  seen_ns INTEGER NOT NULL, ended_ns INTEGER, gap_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
  id TEXT PRIMARY KEY, key TEXT, tenant TEXT NOT NULL, uid INTEGER NOT NULL, phase TEXT NOT NULL, state TEXT NOT NULL,
  created_ns INTEGER NOT NULL, ended_ns INTEGER
) STRICT;
CREATE INDEX grants_open ON grants (id) WHERE ended_ns IS NULL;
CREATE TABLE periods (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, grant_id TEXT NOT NULL, tenant TEXT NOT NULL,
  device TEXT NOT NULL, from_ns INTEGER NOT NULL, to_ns INTEGER NOT NULL, granted_ns INTEGER NOT NULL,
  used_ns INTEGER NOT NULL, busy_ns INTEGER NOT NULL, borrowed_ns INTEGER NOT NULL, lent_ns INTEGER NOT NULL,
  waited_ns INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, memory_peak_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX periods_time ON periods (to_ns);
CREATE INDEX periods_grant ON periods (grant_id);
CREATE TABLE contexts (
  device TEXT NOT NULL, driver TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (device, driver)
) STRICT;
"""
_DEVICES = "CREATE TABLE devices (id TEXT PRIMARY KEY, state TEXT NOT NULL, seen_ns INTEGER NOT NULL) STRICT;"
_RECEIPTS = " ".join(
    f"ALTER TABLE periods ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0;"
    for name in ("waits", "wait_max_ns", "reclaims", "reclaim_ns", "reclaim_max_ns")
)
# Migrations, by the version of the file that is found: that step and all later ones run.
_STEPS = {0: _SCHEMA, 1: _DEVICES, 2: _RECEIPTS}


@dataclass(frozen=True, slots=True)
class Period:
    """One grant on one device from `from_ns` to `to_ns`. `used_ns`: leased time; `busy_ns`: metered work in it.
    `waits`, `reclaims`: that ended in it; the longest, as the peak of memory, is of the daemon's run so far."""

    grant_id: str
    tenant: str
    device: str
    from_ns: int
    to_ns: int
    granted_ns: int
    used_ns: int
    busy_ns: int
    borrowed_ns: int
    lent_ns: int
    waited_ns: int
    memory_bytes: int
    memory_peak_bytes: int
    waits: int = 0
    wait_max_ns: int = 0
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a grant's periods on one device."""

    used_ns: int = 0
    busy_ns: int = 0
    borrowed_ns: int = 0
    waited_ns: int = 0
    memory_peak_bytes: int = 0
    waits: int = 0
    wait_max_ns: int = 0
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0


class Ledger:
    """The SQLite file: grants, periods, runs of the daemon, devices. Writing raises FailedError when the disk does."""

    def __init__(self, path: Path) -> None:
        """Opens or makes it and begins this run. Raises FailedError when it is damaged or not ours."""
        self.path = path
        try:
            # Rows hold tenants' names and sizes: readable by root only.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
            self.run, self.gap_ns = self._begin()
        except (sqlite3.Error, OSError) as error:
            raise FailedError(f"the ledger {path} cannot be used ({error}): move it away to start a new one") from None

    def _migrate(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if 0 <= version < SCHEMA_VERSION:
            steps = " ".join(_STEPS[step] for step in range(version, SCHEMA_VERSION))
            self._db.executescript(f"BEGIN; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise FailedError(
                f"the ledger {self.path} has version {version}, this gpushare knows {SCHEMA_VERSION}: "
                "install the gpushare that wrote it, or move it away"
            )

    def _begin(self) -> tuple[int, int]:
        """Begins a run: its number, and the gap in ns, during which nothing was recorded. A run that was killed has
        no end: the gap then begins at its last period."""
        now = time.time_ns()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        last = self._db.execute("SELECT run, seen_ns, ended_ns FROM runs ORDER BY run DESC LIMIT 1").fetchone()
        gap = max(0, now - (last[2] or last[1])) if last is not None else 0
        cursor = self._db.execute(
            "INSERT INTO runs (pid, boot_id, started_ns, seen_ns, gap_ns) VALUES (?, ?, ?, ?, ?)",
            (os.getpid(), boot, now, now, gap),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid, gap

    def rebooted(self) -> bool:
        """Whether the previous run was in another boot of the machine, so that its pids are meaningless."""
        rows = self._db.execute("SELECT boot_id FROM runs ORDER BY run DESC LIMIT 2").fetchall()
        return len(rows) == 2 and rows[0] != rows[1]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A full or broken disk is an error of one request, not of the daemon."""
        try:
            yield
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise FailedError(f"the ledger {self.path} cannot be written: {error}") from None

    def save(self, grant: tuple[str, str | None, str, int, str, str, int, int | None]) -> None:
        """Writes one row: (id, key, tenant, uid, phase, state, created_ns, ended_ns). Raises FailedError."""
        with self._writing():
            self._db.execute(
                "INSERT INTO grants VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "phase = excluded.phase, state = excluded.state, ended_ns = excluded.ended_ns",
                grant,
            )

    def open_grants(self) -> list[str]:
        """States of all grants without an end, oldest first."""
        query = "SELECT state FROM grants WHERE ended_ns IS NULL ORDER BY created_ns"
        return [row[0] for row in self._db.execute(query)]

    def ended_grants(self, limit: int) -> list[str]:
        """States of the latest that have ended, newest first."""
        query = "SELECT state FROM grants WHERE ended_ns IS NOT NULL ORDER BY ended_ns DESC LIMIT ?"
        return [row[0] for row in self._db.execute(query, (limit,))]

    def ended_grant(self, grant_id: str) -> str | None:
        """The state of one that has ended, None where there is none."""
        row = self._db.execute("SELECT state FROM grants WHERE id = ? AND ended_ns IS NOT NULL", (grant_id,)).fetchone()
        return row[0] if row is not None else None

    def add(self, periods: Iterable[Period]) -> None:
        """Writes a period's rows in one transaction, with this moment as the run's last sign of life."""
        names = ", ".join(Period.__dataclass_fields__)
        marks = ", ".join("?" * (len(Period.__dataclass_fields__) + 1))
        with self._writing():
            self._db.execute("BEGIN")
            self._db.executemany(
                f"INSERT INTO periods (run, {names}) VALUES ({marks})",  # noqa: S608 - names of our own dataclass
                [(self.run, *astuple(period)) for period in periods],
            )
            self._db.execute("UPDATE runs SET seen_ns = ? WHERE run = ?", (time.time_ns(), self.run))
            self._db.execute("COMMIT")

    def totals(self, grant_id: str) -> dict[str, Totals]:
        """Sums of one grant, by device id."""
        query = (
            "SELECT device, SUM(used_ns), SUM(busy_ns), SUM(borrowed_ns), SUM(waited_ns), MAX(memory_peak_bytes), "
            "SUM(waits), MAX(wait_max_ns), SUM(reclaims), SUM(reclaim_ns), MAX(reclaim_max_ns) "
            "FROM periods WHERE grant_id = ? GROUP BY device"
        )
        return {row[0]: Totals(*row[1:]) for row in self._db.execute(query, (grant_id,))}

    def tenant_totals(self, without: Iterable[str]) -> dict[str, Totals]:
        """Sums by tenant over all periods that are kept, except those of the grants in `without`.

        Reads every period, so it is to be called in a thread; it opens a connection of its own.
        """
        query = (
            "SELECT tenant, SUM(used_ns), SUM(busy_ns), SUM(borrowed_ns), SUM(waited_ns), MAX(memory_peak_bytes), "
            "SUM(waits), MAX(wait_max_ns), SUM(reclaims), SUM(reclaim_ns), MAX(reclaim_max_ns) "
            "FROM periods WHERE grant_id NOT IN (SELECT value FROM json_each(?)) GROUP BY tenant"
        )
        with contextlib.closing(sqlite3.connect(f"file:{quote(os.fspath(self.path))}?mode=ro", uri=True)) as reader:
            return {row[0]: Totals(*row[1:]) for row in reader.execute(query, (json.dumps(list(without)),))}

    def context_bytes(self, device: str, driver: str) -> int | None:
        """What a context takes on the device with this driver version, None where it was never measured."""
        row = self._db.execute(
            "SELECT bytes FROM contexts WHERE device = ? AND driver = ?", (device, driver)
        ).fetchone()
        return row[0] if row is not None else None

    def set_context_bytes(self, device: str, driver: str, size: int) -> None:
        """Keeps a measured cost of a context."""
        self._db.execute("INSERT OR REPLACE INTO contexts VALUES (?, ?, ?)", (device, driver, size))

    def devices(self) -> list[str]:
        """States of all devices ever found here, as `save_devices` got them; the last seen first."""
        return [row[0] for row in self._db.execute("SELECT state FROM devices ORDER BY seen_ns DESC, id")]

    def save_devices(self, states: Mapping[str, str]) -> None:
        """Records that these devices are here now. `states`: by device id."""
        now = time.time_ns()
        with self._writing():
            self._db.executemany(
                "INSERT OR REPLACE INTO devices VALUES (?, ?, ?)",
                [(name, state, now) for name, state in states.items()],
            )

    def forget(self, before_ns: int) -> None:
        """Drops closed grants and periods older than that, and devices that were not seen since."""
        self._db.execute("DELETE FROM periods WHERE to_ns < ?", (before_ns,))
        self._db.execute("DELETE FROM grants WHERE ended_ns < ?", (before_ns,))
        self._db.execute("DELETE FROM devices WHERE seen_ns < ?", (before_ns,))

    def close(self) -> None:
        """Marks the run as ended, so that the next one finds no gap."""
        now = time.time_ns()
        try:
            with self._writing():
                self._db.execute("UPDATE runs SET seen_ns = ?, ended_ns = ? WHERE run = ?", (now, now, self.run))
        finally:
            self._db.close()
