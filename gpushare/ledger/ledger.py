"""The durable record: grants, what they got in each period, runs of the daemon and the gaps between them.

The disk belongs to one thread (ledger/keeper.py), which takes what was saved within a second. Until then it is on tmpfs
(ledger/journal.py), where it outlives a killed daemon: saving a row waits for nobody. What cannot be written to the
disk stays there (ledger/spill.py), and no call fails because of it. Where tmpfs cannot be written either, saving a row
waits for the thread, but no longer than WAIT_SECONDS. `health` reports it.
"""

import contextlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpushare.errors import FailedError
from gpushare.ledger import file, journal, slots, usage
from gpushare.ledger.entries import Entries, GrantRow, Period, Totals, added
from gpushare.ledger.journal import Journal
from gpushare.ledger.keeper import RETRY_SECONDS, Keeper
from gpushare.ledger.sqlite_file import DamagedError
from gpushare.ledger.usage import By, Key, Span, Sums
from gpushare.node.devices import ContextCost
from gpushare.policy.usage.replay import Slot

log = logging.getLogger(__name__)

T = TypeVar("T")

WAIT_SECONDS = 0.25
"""How long a caller waits for the disk at most; it does not wait at all once the disk is late, until it answers."""
_SLOW_SECONDS = 1.0
"""A disk that no caller waits for counts as late after that time."""
_START_SECONDS = 1.8
_CLOSE_SECONDS = 2.0
_TELL_NS = 60_000_000_000
"""A slow disk is logged at most once in this time."""


@dataclass(frozen=True, slots=True)
class Health:
    """`reason`: why the ledger cannot be written now, and `since_ns`; empty when it can. `waiting`: rows that are to be
    written. `lost`: rows of ended grants that were dropped. `set_aside`: rows that could not be used. `damaged`: files
    that were replaced."""

    reason: str = ""
    since_ns: int | None = None
    waiting: int = 0
    lost: int = 0
    set_aside: int = 0
    damaged: tuple[str, ...] = ()


@dataclass
class _Job(Generic[T]):
    read: Callable[[], T]
    result: T
    done: bool = False


class Ledger:
    """Called on the event loop. What was saved can be read from then on, wherever it is."""

    def __init__(
        self,
        path: Path,
        tmpfs: Path | None = None,
        keep_ns: int | None = None,
        period_s: float = 0,
    ) -> None:
        """`tmpfs`: the grants' directories, where what the disk does not have is kept. `keep_ns`: how long ended grants
        and their periods are kept, None: for ever. `period_s`: a grant's periods are merged for this long and written
        as one row; they are on tmpfs meanwhile."""
        self.path = path
        self._journal = Journal(tmpfs)
        self._keeper = Keeper(path, tmpfs, keep_ns, period_s, self._journal.read())
        self._changed = threading.Condition()
        self._fresh = Entries()
        """What the thread has not taken yet."""
        self._line: Entries | None = None
        """What is saved `together` at the moment."""
        self._old = self._journal.cut()
        """Journal files whose content the thread has taken. Only the thread uses it."""
        self._jobs: list[_Job[Any]] = []
        self._due = self._done = 0
        """How many requests to write at once were made, and how many of them are done."""
        self._alive = self._ready = self._ending = False
        self._busy_since: float | None = time.monotonic()
        """Since when the thread has been at work on the disk."""
        self._late_ns: int | None = None
        """Since when it counts as late with that."""
        self._told_ns = 0
        self._thread = threading.Thread(target=self._serve, name="ledger", daemon=True)
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready, _START_SECONDS):
                self._late()
        self.run = self._keeper.run or int(time.time())
        self._keeper.run = self.run

    @property
    def gap_ns(self) -> int:
        """How long nothing was recorded before this run."""
        return self._keeper.gap_ns

    @property
    def rebooted(self) -> bool:
        """Whether the previous run was in another boot of the machine, so that its pids are meaningless."""
        return self._keeper.rebooted

    @property
    def boot(self) -> str:
        """The machine's id of this boot."""
        return self._keeper.boot

    @property
    def readable(self) -> bool:
        """Whether what earlier runs wrote is known."""
        return self._ready and self._keeper.readable

    @property
    def health(self) -> Health:
        """How it stands at the moment."""
        with self._changed:
            self._look()
            keeper, since_ns = self._keeper, self._late_ns
            reason = f"the disk of the ledger {self.path} does not answer in time" if since_ns is not None else ""
            return Health(
                reason=keeper.reason or reason,
                since_ns=keeper.since_ns or since_ns,
                waiting=keeper.waiting + len(self._fresh) if keeper.reason or reason else 0,
                lost=keeper.lost,
                set_aside=keeper.set_aside,
                damaged=keeper.damaged,
            )

    def save(self, row: tuple[str, str | None, str, int, str, str, int, int | None]) -> None:
        """Takes one grant's row: (id, key, tenant, uid, phase, state, created_ns, ended_ns)."""
        self._take(Entries(grants={row[0]: GrantRow(*row)}))

    def save_part(self, name: str, state: str) -> None:
        """Takes the state of a part of a gang; empty: the ledger forgets it."""
        self._take(Entries(parts={name: state}))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is saved inside is written in one transaction: after a kill all of it is there, or none. Nothing inside
        may read from the disk. A nested one is part of the outer one."""
        with self._changed:  # the thread needs it to take what has come
            if self._line is not None:
                yield
                return
            self._line = Entries()
            try:
                yield
            finally:
                line, self._line = self._line, None
                self._take(line)

    def add(self, periods: Iterable[Period]) -> None:
        """Takes a period's rows, which are written with the end of the next grant, or within a second."""
        with self._changed:
            self._alive = True
            for period in periods:
                self._fresh.add(period)

    def save_devices(self, states: Mapping[str, str]) -> None:
        """Records that these devices are here now. `states`: by device id."""
        now = time.time_ns()
        self._take(Entries(devices={name: (state, now) for name, state in states.items()}))

    def set_context_cost(self, device: str, driver: str, cost: ContextCost) -> None:
        """Keeps a measured cost of a context."""
        self._take(Entries(contexts={f"{device} {driver}": (device, driver, *cost)}))

    def open_grants(self) -> list[tuple[str, str]]:
        """Ids and states of all grants that earlier runs left without an end, oldest first; while the disk does not
        answer only those on tmpfs, which are all that are in use."""
        # Not through the thread, which may be late on a busy machine: no living grant may be missed.
        rows = list(self._keeper.open.values()) if self._ready else self._keeper.on_tmpfs()
        return [(row.id, row.state) for row in sorted(rows, key=lambda row: row.created_ns)]

    def parts(self) -> dict[str, str]:
        """Parts of gangs: states by id, as earlier runs saved them; none while the disk does not answer."""
        return dict(self._keeper.parts) if self._ready else {}

    def ended_grants(self, limit: int, decode: Callable[[str], T]) -> list[T]:
        """The latest grants that have ended, newest first. A row that `decode` rejects is set aside."""
        return self._ask(lambda: self._keeper.ended(limit, decode), [])

    def ended_grant(self, grant_id: str, decode: Callable[[str], T]) -> T | None:
        """A grant that has ended, None where there is none."""
        return self._ask(lambda: self._keeper.ended_one(grant_id, decode), None)

    def set_aside(self, grant_id: str, reason: str) -> None:
        """Sets a grant's row aside that cannot be used; its bytes are kept."""
        self._ask(lambda: self._keeper.move_aside(grant_id, reason), None)

    def set_part_aside(self, name: str, reason: str) -> None:
        """The same of a part of a gang."""
        self._ask(lambda: self._keeper.move_part_aside(name, reason), None)

    def totals(self, grant_id: str) -> dict[str, Totals]:
        """Sums of one grant, by device id."""
        return self.totals_of([grant_id]).get(grant_id, {})

    def totals_of(self, grants: Collection[str]) -> dict[str, dict[str, Totals]]:
        """Sums of several grants, by grant: one request to the thread however many."""
        return self._ask(lambda: {grant: self._keeper.totals(grant) for grant in grants}, {}) if grants else {}

    def tenant_totals(self, without: Iterable[str]) -> dict[str, Totals]:
        """Sums by tenant over all periods that are kept, except those of the grants in `without`. Reads every period,
        so it is to be called in a thread."""
        left_out = frozenset(without)
        nothing: dict[str, Totals] = {}
        kept = self._ask(lambda: self._keeper.waiting_totals(left_out), nothing)
        try:
            with self._keeper.names:
                found = file.tenant_totals(self.path, json.dumps(list(left_out)))
        except FailedError as error:
            log.warning("%s", error)
            if isinstance(error, DamagedError):
                self._keeper.found_damaged(str(error))
            found = {}
        return added(found, kept)

    def usage(self, by: By, span: Span) -> dict[Key, Sums]:
        """Sums over all that is kept of a span. Reads every row of it, so it is to be called in a thread. Raises
        FailedError where the file cannot be read now, and UsageError where the answer is too long."""
        return self._reading(lambda reader, waiting: usage.added_up(self.path, reader, by, span, waiting))

    def slots(self, span: Span, cut: slots.Cut) -> list[Slot]:
        """What was used and waited in each slot of a span. Called and raises as `usage`."""
        return self._reading(lambda reader, waiting: slots.slots(self.path, reader, span, waiting, cut))

    def _reading(self, read: Callable[[sqlite3.Connection, list[Period]], T]) -> T:
        """Returns what `read` makes of the file and of what waits to be written."""
        # Both at once, so that no row is counted twice or missed.
        begun = self._ask(lambda: self._keeper.reading(), None)
        if begun is None:
            raise FailedError(f"the ledger {self.path} cannot be read now: its disk does not answer, try again")
        try:
            return read(*begun)
        except DamagedError as error:
            self._keeper.found_damaged(str(error))
            raise

    def context_cost(self, device: str, driver: str) -> ContextCost | None:
        """What a context takes on the device with this driver version, None where it was never measured."""
        return self._ask(lambda: self._keeper.context_cost(device, driver), None)

    def devices(self, decode: Callable[[str], T]) -> list[T]:
        """All devices ever found here, as `save_devices` got them; the last seen first. A row that `decode` rejects is
        set aside."""
        return self._ask(lambda: self._keeper.devices(decode), [])

    def close(self) -> None:
        """Writes what waits and marks the run as ended."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)

    def _take(self, batch: Entries) -> None:
        with self._changed:
            if self._line is not None:
                self._line.follow(batch)
                return
            self._fresh.follow(batch)
            if not self._journal.add(batch, self._fresh):
                self._flush(batch)
            elif self._fresh.periods and batch.ended():  # its last periods are only in memory
                self._wake()
            self._look()

    def _flush(self, batch: Entries) -> None:
        """Has what is only in memory written at once, and waits for that unless the disk is late."""
        number = self._wake()
        if self._late_ns is None and not self._changed.wait_for(lambda: self._done >= number, WAIT_SECONDS):
            self._late()
        if self._late_ns is not None:
            for row in batch.grants.values():
                self._keeper.spill.note(row)

    def _wake(self) -> int:
        """Has the thread write now. Returns the value of `_done` when it has."""
        self._due += 1
        self._changed.notify_all()
        return self._due

    def _look(self) -> None:
        """Checks whether the thread is late, since hardly any call waits for it."""
        since = self._busy_since
        if since is not None and self._late_ns is None and time.monotonic() - since > _SLOW_SECONDS:
            self._late()

    def _ask(self, read: Callable[[], T], otherwise: T) -> T:
        """Runs `read` in the thread, after all that was saved before; returns `otherwise` where the disk does not
        answer in time."""
        job = _Job(read, otherwise)
        with self._changed:
            if self._late_ns is not None:
                return otherwise
            self._jobs.append(job)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: job.done, WAIT_SECONDS):
                self._late()
            return job.result if job.done else otherwise

    def _late(self) -> None:
        self._late_ns = time.time_ns()
        if self._late_ns - self._told_ns > _TELL_NS:
            self._told_ns = self._late_ns
            log.warning("the disk of the ledger %s does not answer in time: what it is told waits in memory", self.path)

    # The thread.

    def _serve(self) -> None:
        self._keeper.start()
        with self._changed:
            self._ready = True
            self._changed.notify_all()
        while not self._turn():
            pass
        self._keeper.stop()

    def _turn(self) -> bool:
        """Writes what has come, and answers requests. Returns whether that was the last time."""
        keeper = self._keeper
        with self._changed:
            self._late_ns = self._busy_since = None
            pause = min(RETRY_SECONDS, max(0.0, keeper.forget_at - time.monotonic()))
            self._changed.wait_for(lambda: self._due > self._done or self._jobs or self._ending, pause)
            number, alive, ending = self._due, self._alive, self._ending
            jobs, self._jobs = self._jobs, []
            batch, self._fresh = self._fresh, Entries()
            self._old += self._journal.cut()
            self._alive = False
            self._busy_since = time.monotonic()
        keeper.take(batch, alive=alive, pressing=ending)
        if self._old and keeper.safe:
            journal.remove(self._old)
            self._old = []
        for job in jobs:
            try:
                job.result = job.read()
            except Exception:
                log.exception("the ledger %s", self.path)
        with self._changed:
            self._done = number
            for job in jobs:
                job.done = True
            self._changed.notify_all()
        if time.monotonic() >= keeper.forget_at:
            keeper.forget()
        return ending
