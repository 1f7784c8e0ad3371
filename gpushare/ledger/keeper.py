"""What the ledger has taken and its file does not have yet. For one thread, the one that waits for the disk.

Nothing here fails because of the disk, whatever it does: what cannot be written waits, merged, in memory and in the
spill, and is written when that is possible again. A damaged file is replaced.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpushare.errors import FailedError
from gpushare.ledger import salvage
from gpushare.ledger.entries import Entries, GrantRow, Period, Totals, added
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.spill import Spill
from gpushare.ledger.sqlite_file import DamagedError, check
from gpushare.ledger.usage import snapshot
from gpushare.node.devices import ContextCost

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 1.0
_RETRY_FACTOR = 10
"""After a failed write the next try waits at least RETRY_SECONDS, and at least this many times as long as the write
took."""
_SALVAGE_SECONDS = 1.0
_FORGET_SECONDS = 3600.0


class Keeper:
    """`run`: number of this run of the daemon. `gap_ns`: how long nothing was recorded before it. `rebooted`: whether
    the previous run was in another boot of the machine, so that its pids are meaningless. `readable`: whether what
    earlier runs wrote is known. `reason`: why nothing can be written now, and `since_ns`; empty when it can. `damaged`:
    files that were replaced. `open`: the rows of all grants that have not ended, by id. `parts`: of gangs, states by
    id. `forget_at`: when old rows are next to be rolled up or dropped, on the monotonic clock. `boot`: the machine's id
    of this boot."""

    def __init__(
        self, path: Path, tmpfs: Path | None, keep_ns: int | None, period_s: float = 0, told: Entries | None = None
    ) -> None:
        """Parameters as the Ledger's. `told`: what the previous run left in the journal."""
        self._period_s = period_s
        self._periods_at = 0.0
        self.run = 0
        self.gap_ns = 0
        self.rebooted = False
        self.reason = ""
        self.since_ns: int | None = None
        self.damaged: tuple[str, ...] = ()
        self.readable = False
        self.open: dict[str, GrantRow] = {}
        self.parts: dict[str, str] = {}
        self.forget_at = 0.0
        self.names = threading.Lock()
        """Held while the file may be renamed, and by any other thread that opens it: SQLite opens the log by its name
        some time after the file, and must not get another file's log."""
        self._path = path
        self._keep_ns = keep_ns
        self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._file: LedgerFile | None = None
        self.spill = Spill(tmpfs)
        """Its `note` may be called by any thread."""
        self._news = told or Entries()
        """The part of `_kept` that is not spilled."""
        self._kept = self.spill.read()
        self._kept.follow(self._news)
        self._with_periods = {period.grant_id for period in self._kept.periods.values()}
        """The grants with periods in `_kept`."""
        self._lost = 0
        self._try_at = 0.0
        self._damage = ""

    @property
    def waiting(self) -> int:
        """Rows that could not be written yet."""
        return len(self._kept)

    @property
    def safe(self) -> bool:
        """Whether a kill loses nothing of what was taken."""
        return not self._news

    @property
    def lost(self) -> int:
        """How many rows of ended grants were dropped."""
        return self._lost + self._kept.lost

    @property
    def set_aside(self) -> int:
        """How many rows could not be used."""
        return self._file.aside if self._file is not None else 0

    def start(self) -> None:
        """Opens the file and begins this run."""
        self._fenced(self._start)
        self.run = self.run or int(time.time())
        for row in self._kept.grants.values():
            self._note(row)
        self._note_parts(self._kept)
        if not self.rebooted:
            for row in self.spill.noted():
                if row.id not in self.open and self.ended_one(row.id, str) is None:
                    log.warning("grant %s is not in the ledger: its row is taken from its directory", row.id)
                    self._note(row)
                    self._kept.save(row)

    def on_tmpfs(self) -> list[GrantRow]:
        """Rows of grants without an end that are on tmpfs: all that is known before the disk has answered."""
        found = {row.id: row for row in self.spill.noted()} | self._kept.grants
        return [row for row in found.values() if row.ended_ns is None]

    def take(self, batch: Entries, *, alive: bool = False, pressing: bool = False) -> None:
        """Takes a batch, and tries to write all that waits. `alive`: the run's last sign of life is to be written too.
        `pressing`: writes at once, even before the next retry is due."""
        for row in batch.grants.values():
            self._note(row)
            if row.ended_ns is None:
                self.spill.note(row)
        self._note_parts(batch)
        self._with_periods.update(period.grant_id for period in batch.periods.values())
        self._kept.follow(batch)
        self._news.follow(batch)
        if self._damage:
            damage, self._damage = self._damage, ""
            self._fenced(lambda: self._begin_anew(damage))
        if pressing or self.reason or time.monotonic() >= self._periods_at:
            if self._kept or alive or self.reason:
                self._fenced(lambda: self._settle(pressing=pressing))
            return
        # Periods wait for later ones of their grant, on tmpfs, where they outlive a killed daemon.
        if len(self._kept) > len(self._kept.periods):
            self._fenced(lambda: self._settle(pressing=False, whole=False))
        self._hold()
        if self._news:
            self._fenced(lambda: self._settle(pressing=False))

    def forget(self) -> None:
        """Rolls up old rows and drops those that are too old, some at once: `forget_at` says when to go on."""
        self.forget_at = time.monotonic() + _FORGET_SECONDS
        self._fenced(self._forget)

    def stop(self) -> None:
        """Marks the run as ended, so that the next one finds no gap, and closes the file."""
        file = self._file
        if file is not None:
            self._fenced(lambda: file.end(self.run))
            file.close()

    # Questions.

    def ended(self, limit: int, decode: Callable[[str], T]) -> list[T]:
        """The latest grants that have ended, newest first."""
        waiting = [row for row in self._kept.grants.values() if row.ended_ns is not None]
        waiting.sort(key=lambda row: row.ended_ns or 0, reverse=True)
        found = [decode(row.state) for row in waiting[:limit]]
        found += self._read(lambda file: file.ended(limit - len(found), decode), [])
        return found

    def ended_one(self, grant_id: str, decode: Callable[[str], T]) -> T | None:
        """A grant that has ended, None where there is none."""
        row = self._kept.grants.get(grant_id)
        if row is not None:
            return decode(row.state) if row.ended_ns is not None else None
        return self._read(lambda file: file.ended_one(grant_id, decode), None)

    def totals(self, grant_id: str) -> dict[str, Totals]:
        """Sums of one grant, by device id."""
        return added(self._read(lambda file: file.totals(grant_id), {}), self._kept.totals(grant_id))

    def reading(self) -> tuple[sqlite3.Connection, list[Period]] | None:
        """A reader of the file as it is now, and the periods that it does not have; None where it cannot be read."""
        reader = self._read(lambda file: snapshot(file.path), None)
        return None if reader is None else (reader, list(self._kept.periods.values()))

    def waiting_totals(self, without: frozenset[str]) -> dict[str, Totals]:
        """Sums by tenant of what the file does not have, without these grants."""
        return self._kept.tenant_totals(without)

    def context_cost(self, device: str, driver: str) -> ContextCost | None:
        """What a context takes, None where that is not known."""
        kept = self._kept.contexts.get(f"{device} {driver}")
        if kept is not None:
            return ContextCost(*kept[2:])
        return self._read(lambda file: file.context_cost(device, driver), None)

    def devices(self, decode: Callable[[str], T]) -> list[T]:
        """All devices that the file has, the last seen first."""
        return self._read(lambda file: file.devices(decode), [])

    def move_aside(self, grant_id: str, reason: str) -> None:
        """Sets a grant's row aside; its bytes are kept."""
        row = self.open.pop(grant_id, None)
        self._kept.grants.pop(grant_id, None)
        log.error("grant %s: its row in the ledger is set aside (%s): %r", grant_id, reason, row and row.state)
        self._read(lambda file: file.set_aside("grants", grant_id, reason), None)

    def move_part_aside(self, name: str, reason: str) -> None:
        """The same of a part of a gang."""
        self.parts.pop(name, None)
        self._kept.parts.pop(name, None)
        self._read(lambda file: file.set_aside("parts", name, reason), None)

    def _read(self, read: Callable[[LedgerFile], T], otherwise: T) -> T:
        try:
            return read(self._file) if self._file is not None else otherwise
        except FailedError as error:
            self._failed(error)
        if not self._damage:
            return otherwise
        damage, self._damage = self._damage, ""
        self._fenced(lambda: self._begin_anew(damage))
        try:
            return read(self._file) if self._file is not None else otherwise
        except FailedError as error:
            self._failed(error)
            return otherwise

    # The file.

    def _fenced(self, act: Callable[[], object]) -> None:
        """Runs `act`; none of its errors ends the thread."""
        try:
            act()
        except FailedError as error:
            self._failed(error)
        except Exception as error:
            log.exception("the ledger %s", self._path)
            self._trouble(f"the ledger {self._path} cannot be used ({error!r})")

    def _failed(self, error: FailedError) -> None:
        self._trouble(str(error))
        if isinstance(error, DamagedError):
            self._damage = str(error)

    def _trouble(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s: what it is told waits in memory", reason)
        self.reason, self.since_ns = reason, self.since_ns or time.time_ns()

    def _start(self) -> None:
        try:
            file = self._open_file()
            self._take_over(file)
        except DamagedError as error:
            file = self._begin_anew(str(error))
            self._take_over(file)
        threading.Thread(target=self._check, args=(file,), name="ledger-check", daemon=True).start()

    def _open_file(self) -> LedgerFile:
        return self._opened(lambda: salvage.open_ledger(self._path, _SALVAGE_SECONDS))

    def _begin_anew(self, reason: str) -> LedgerFile:
        file = self._opened(lambda: salvage.replace(self._path, reason, _SALVAGE_SECONDS))
        self._damage = ""  # it was of the old file
        self._keep_living()
        return file

    def _opened(self, make: Callable[[], LedgerFile]) -> LedgerFile:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        with self.names:
            self._file = make()
        self.damaged = tuple(map(str, salvage.damaged(self._path)))
        return self._file

    def _take_over(self, file: LedgerFile) -> None:
        """Takes over what earlier runs left. A run that was killed has no end: the gap then begins at its last
        period."""
        for row in file.open_rows():
            self._note(row)
        self.parts = file.parts()
        self.readable = True
        last = file.last_run()
        if last is not None:
            number, boot, seen_ns = last
            seen_ns = max([seen_ns, *(period.to_ns for period in self._kept.periods.values())])
            self.gap_ns = max(0, time.time_ns() - seen_ns)
            self.rebooted = boot != self.boot
            self.run = self.run or number + 1
        elif not self.damaged:
            self.run = self.run or 1
        # No two runs may have the same number. Where the last one is not known, it is one that counting never reaches.
        try:
            self.run = self.run or int(time.time())
            file.begin(self.run, self.boot, self.gap_ns)
        except FailedError:
            self.run = max(self.run, int(time.time()))
            raise

    def _settle(self, *, pressing: bool, whole: bool = True) -> None:
        """Writes all that waits; where that fails, spills it, so that a kill does not lose it. `whole`: also the
        periods of grants that have not ended."""
        began = time.monotonic()
        if began < self._try_at and not pressing:
            self._hold()
            return
        ended, waiting = self._kept.ended(), self._kept.periods
        held: dict[str, Period] = {}
        if not whole and ended.isdisjoint(self._with_periods):  # as after the end of grants that were never used
            held, self._kept.periods = waiting, {}
        elif not whole:
            held = {key: one for key, one in waiting.items() if one.grant_id not in ended}
            self._kept.periods = {key: one for key, one in waiting.items() if key not in held}
        try:
            self._write()
        except Exception:
            self._kept.periods = waiting
            now = time.monotonic()
            self._try_at = now + max(RETRY_SECONDS, _RETRY_FACTOR * (now - began))
            self._hold()
            raise
        if self.reason:
            log.warning("the ledger %s is written again: %d rows had waited", self._path, len(self._kept))
        self._lost += self._kept.lost
        self._kept = Entries(periods=held)
        if whole:
            self._with_periods.clear()
        else:
            self._with_periods -= ended
        self.reason, self.since_ns = "", None
        if held and self.spill.settled(ended):
            self._news.drop_periods(ended)
            self._news = Entries(periods=self._news.periods)
        else:
            self._news = Entries(periods=dict(held))
            self.spill.clear()
        if whole:
            self._periods_at = began + self._period_s

    def _write(self) -> None:
        file = self._file
        if file is not None and file.replaced():
            log.warning("the ledger %s or its log was moved away or cut: it is opened again", self._path)
            file = None
            self._keep_living()  # they may have been in what is lost
        try:
            if file is None or file.unwritable or self.reason:
                file = self._open_file()
            self._write_to(file)
        except DamagedError as error:
            self._write_to(self._begin_anew(str(error)))

    def _write_to(self, file: LedgerFile) -> None:
        if file.begin(self.run, self.boot, self.gap_ns):  # not the file that this run began with
            self._keep_living()
        file.write(self.run, self._kept)

    def _hold(self) -> None:
        if not self._news or self.spill.add(self._news, self._kept):
            self._news = Entries()

    def _forget(self) -> None:
        if self._file is None or self.reason or self._file.replaced():
            return
        try:
            more = self._file.shorten(time.time_ns(), self._keep_ns)
        except DamagedError as error:
            self._begin_anew(str(error))
            return
        if more:
            self.forget_at = time.monotonic()

    def _check(self, file: LedgerFile) -> None:
        """Checks the whole file for damage once, in a thread of its own, concurrently with the daemon's start."""
        reason = ""
        try:
            with self.names:
                reason = check(self._path)
        except DamagedError as error:
            reason = str(error)
        except FailedError as error:
            log.warning("%s", error)
        if reason and self._file is file:
            self.found_damaged(reason)

    def _note_parts(self, batch: Entries) -> None:
        self.parts = {name: state for name, state in {**self.parts, **batch.parts}.items() if state}

    def _keep_living(self) -> None:
        """Writes what has not ended again, after the file was lost or may have been."""
        self._kept.grants = {**self.open, **self._kept.grants}
        self._kept.parts = {**self.parts, **self._kept.parts}

    def found_damaged(self, reason: str) -> None:
        """Reports damage that another thread found while reading: the file is replaced at the next turn."""
        self._damage = reason

    def _note(self, row: GrantRow) -> None:
        if row.ended_ns is None:
            self.open[row.id] = row
        else:
            self.open.pop(row.id, None)
