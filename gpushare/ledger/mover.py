"""Moves rows from tmpfs (recent.py) to the ledger's file. For one thread, the one that waits for the disk.

Nothing here fails because of the disk, whatever it does: what cannot be written stays on tmpfs until it can. A damaged
file is replaced.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gpushare.errors import FailedError
from gpushare.ledger import queries, salvage
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.recent import Recent
from gpushare.ledger.sqlite_file import DamagedError, check
from gpushare.ledger.usage import snapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 1.0
_RETRY_FACTOR = 10
"""After a failed write the next try waits at least RETRY_SECONDS, and at least this many times as long as the write
took."""
_ROWS = 1000
"""About how many rows are written at once: questions wait meanwhile."""
_SALVAGE_SECONDS = 1.0
_FORGET_SECONDS = 3600.0


class Mover:
    """`run`: number of this run of the daemon. `gap_ns`: how long nothing was recorded before it. `boot`: the machine's
    id of this boot. `rebooted`: whether the previous run was in another boot, so that its pids are meaningless.
    `readable`: whether what earlier runs wrote is known. `reason`: why nothing can be written now, and `since_ns`;
    empty when it can. `damaged`: files that were replaced. `forget_at`: when old rows are next to be rolled up or
    dropped, on the monotonic clock."""

    def __init__(self, path: Path, recent: Recent, keep_ns: int | None, period_s: float) -> None:
        """Parameters as the Ledger's."""
        self.run = 0
        self.gap_ns = 0
        self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.rebooted = False
        self.readable = False
        self.reason = ""
        self.since_ns: int | None = None
        self.damaged: tuple[str, ...] = ()
        self.forget_at = 0.0
        self._path, self._recent, self._keep_ns, self._period_s = path, recent, keep_ns, period_s
        self._recorded_ns = max((period.to_ns for period in recent.periods()), default=0)
        self._file: LedgerFile | None = None
        self._complete_at = self._try_at = 0.0
        self._damage = ""
        """What is wrong with the file, until it is replaced."""

    @property
    def set_aside(self) -> int:
        """How many rows could not be used."""
        return self._file.aside if self._file is not None else 0

    def start(self) -> None:
        """Opens the file and begins this run."""
        with self._fenced():
            self._with_file(self._take_over)
        self.run = self.run or int(time.time())

    def turn(self, *, last: bool = False) -> bool:
        """Moves some of the rows, unless the disk failed just before. Periods are merged on tmpfs until they are due;
        in the `last` turn all are. Returns whether there are more."""
        self._recent.return_to_tmpfs()
        began = time.monotonic()
        if began < self._try_at and not last:
            return False
        due = last or began >= self._complete_at or not self._recent.on_tmpfs
        if last or (due and not self.reason):  # else those of an earlier turn wait
            self._recent.complete()
            self._complete_at = began + self._period_s
        with self._fenced():
            return self._with_file(lambda file: self._move(file, due=due))
        now = time.monotonic()
        self._try_at = now + max(RETRY_SECONDS, _RETRY_FACTOR * (now - began))
        return False

    def forget(self) -> None:
        """Rolls up old rows and drops those that are too old, some at once: `forget_at` is when to go on."""
        self.forget_at = time.monotonic() + _FORGET_SECONDS
        if self._file is None or self.reason or self._file.replaced():
            return
        with self._fenced():
            if self._with_file(lambda file: file.shorten(time.time_ns(), self._keep_ns)):
                self.forget_at = time.monotonic()

    def stop(self) -> None:
        """Moves all, marks the run as ended, so that the next one finds no gap, and closes the file."""
        while self.turn(last=True):
            pass
        if (file := self._file) is not None:
            with self._fenced():
                file.end(self.run)
            file.close()
        self._recent.close()

    def read(self, question: Callable[[LedgerFile], T], otherwise: T) -> T:
        """What `question` finds in the file; `otherwise` where that cannot be read now."""
        if self._file is not None:
            with self._fenced():
                return self._with_file(question)
        return otherwise

    def found_damaged(self, reason: str) -> None:
        """Takes note of damage that another thread found: the file is replaced at the next turn."""
        self._damage = reason

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """No error ends the thread."""
        try:
            yield
        except FailedError as error:
            self._trouble(str(error))
            if isinstance(error, DamagedError):
                self._damage = str(error)
        except Exception as error:
            log.exception("the ledger %s", self._path)
            self._trouble(f"the ledger {self._path} cannot be used ({error!r})")

    def _trouble(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s: new rows wait on tmpfs", reason)
        self.reason, self.since_ns = reason, self.since_ns or time.time_ns()

    def _with_file(self, act: Callable[[LedgerFile], T]) -> T:
        """Calls `act` with the file and, where that is damaged, with the one that replaces it."""
        damage = self._damage
        if not damage:
            try:
                return act(self._file or self._open())
            except DamagedError as error:
                damage = str(error)
        return act(self._open(damage))

    def _open(self, damage: str = "") -> LedgerFile:
        """Opens the file, or replaces it because of its damage."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        if damage:
            file = salvage.replace(self._path, damage, _SALVAGE_SECONDS)
        else:
            file = salvage.open_ledger(self._path, _SALVAGE_SECONDS)
        self._damage = ""
        self.damaged = tuple(map(str, salvage.damaged(self._path)))
        self._recent.moved(file.moved(self.boot))
        self._file = file
        return file

    def _take_over(self, file: LedgerFile) -> None:
        """Takes over what earlier runs left. A run that was killed has no end: the gap then begins at its last
        period."""
        self._recent.adopt(*file.ask(queries.living))
        self.readable = True
        last = file.last_run()
        if last is not None:
            number, boot, seen_ns = last
            self.gap_ns = max(0, time.time_ns() - max(seen_ns, self._recorded_ns))
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
        reader = snapshot(self._path)
        threading.Thread(target=self._check, args=(file, reader), name="ledger-check", daemon=True).start()

    def _check(self, file: LedgerFile, reader: sqlite3.Connection) -> None:
        """Checks the whole file for damage once, in a thread of its own, concurrently with the daemon's start."""
        reason = check(self._path, reader)
        if reason and self._file is file:
            self.found_damaged(reason)

    def _move(self, file: LedgerFile, *, due: bool) -> bool:
        """`due`: a sign of life is, too."""
        if file.replaced():
            log.warning("the ledger %s or its log was moved away or cut: it is opened again", self._path)
            file = self._open()
        elif file.unwritable or self.reason:
            file = self._open()
        file.begin(self.run, self.boot, self.gap_ns)
        batch = self._recent.batch(_ROWS)
        count = sum(map(len, batch[:-1]))
        if count or due or self.reason:
            waited = self._recent.waiting() if self.reason else 0
            file.write(self.run, batch)
            self._recent.moved(batch.last)
            if self.reason:
                log.warning("the ledger %s is written again: %d rows had waited", self._path, waited)
                self.reason, self.since_ns = "", None
        return count >= _ROWS
