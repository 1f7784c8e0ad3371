"""The durable record: grants, what they got in each period, runs of the daemon and the gaps between them.

What is saved is on tmpfs at once (recent.py), where it outlives a killed daemon: no call waits for a disk. The disk
belongs to one thread, which moves the rows to the ledger's file (mover.py). Where tmpfs takes nothing, saving a row
waits for that thread, but no longer than WAIT_SECONDS. `health` shows what cannot be written.
"""

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpushare.errors import FailedError
from gpushare.ledger import attachments, queries, slots, usage
from gpushare.ledger.entries import AttachmentRow, GrantRow, Move, Period, Totals, added
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.mover import RETRY_SECONDS, Mover
from gpushare.ledger.recent import Recent
from gpushare.ledger.schema import MOVING
from gpushare.ledger.sqlite_file import DamagedError, failures
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
_LOG_NS = 60_000_000_000
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
        self._recent = Recent(tmpfs)
        self._mover = Mover(path, self._recent, keep_ns, period_s)
        self._questions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ready, self._ending = threading.Event(), threading.Event()
        self._busy_since: float | None = time.monotonic()
        """Since when the thread has been at work on the disk."""
        self._late_ns: int | None = None
        """Since when it counts as late with that."""
        self._logged_ns = 0
        self._thread = threading.Thread(target=self._serve, name="ledger", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            self._late()
        self.run = self._mover.run or int(time.time())
        self._mover.run = self.run

    @property
    def gap_ns(self) -> int:
        """How long nothing was recorded before this run."""
        return self._mover.gap_ns

    @property
    def rebooted(self) -> bool:
        """Whether the previous run was in another boot of the machine, so that its pids are meaningless."""
        return self._mover.rebooted

    @property
    def boot(self) -> str:
        """The machine's id of this boot."""
        return self._mover.boot

    @property
    def readable(self) -> bool:
        """Whether what earlier runs wrote is known."""
        return self._mover.readable

    @property
    def health(self) -> Health:
        """How it stands at the moment."""
        self._notice_late()
        mover, since_ns = self._mover, self._late_ns
        reason = f"the disk of the ledger {self.path} does not answer in time" if since_ns is not None else ""
        return Health(
            reason=mover.reason or reason,
            since_ns=mover.since_ns or since_ns,
            waiting=self._recent.waiting() if mover.reason or reason else 0,
            lost=self._recent.lost,
            set_aside=mover.set_aside,
            damaged=mover.damaged,
        )

    def save(self, row: tuple[str, str | None, str, int, str, str, int, int | None]) -> None:
        """Takes one grant's row: (id, key, tenant, uid, phase, state, created_ns, ended_ns)."""
        self._recent.save(GrantRow(*row))
        self._saved()

    def save_part(self, name: str, state: str) -> None:
        """Takes the state of a part of a gang; empty: the ledger forgets it."""
        self._recent.put("parts", [(name, state)])
        self._saved()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is saved inside is written in one transaction: after a kill all of it is there, or none. Nothing inside
        may read from the disk. A nested one is part of the outer one."""
        with self._recent.together():
            yield
        self._saved()

    def add(self, periods: Iterable[Period], moves: Iterable[Move] = ()) -> None:
        """Takes a period's rows. They are written with the end of their grant, or as one with later ones."""
        self._recent.add(periods, moves)

    def save_devices(self, states: Mapping[str, str]) -> None:
        """Records that these devices are here now. `states`: by device id."""
        now = time.time_ns()
        self._recent.put("devices", [(name, state, now) for name, state in states.items()])
        self._saved()

    def set_context_cost(self, device: str, driver: str, cost: ContextCost) -> None:
        """Keeps a measured cost of a context."""
        self._recent.put("contexts", [(device, driver, *cost)])
        self._saved()

    def attachment(self, row: AttachmentRow) -> None:
        """Takes an attachment as it is now. While it lives the disk gets its latest state at the pace of periods; its
        end is written once, however often it is told."""
        self._recent.attach(row)
        self._saved()

    def attached(self) -> list[AttachmentRow]:
        """Attachments that have not ended, the oldest first: at the start, those that earlier runs left."""
        return self._recent.attached()

    def ended_attachments(self, limit: int, since_ns: int = 0, grant: str = "") -> list[AttachmentRow]:
        """The latest attachments that have ended since then, of this grant or (empty) of all, newest first."""
        which = limit, since_ns, grant
        nothing: list[AttachmentRow] = []

        def find() -> list[AttachmentRow]:
            waiting = self._recent.ask(attachments.ended, *which)
            return waiting + self._mover.read(lambda file: file.ask(attachments.ended, *which), nothing)

        found = {row.attachment: row for row in self._ask(find, nothing)}
        return sorted(found.values(), key=lambda row: -row.to_ns)[:limit]

    def open_grants(self) -> list[tuple[str, str]]:
        """Ids and states of all grants that earlier runs left without an end, oldest first. While the disk does not
        answer they are those of this boot of the machine, which include all that are in use."""
        return [(row.id, row.state) for row in self._recent.open()]

    def parts(self) -> dict[str, str]:
        """Parts of gangs, known as the grants are: states by id, the oldest first."""
        return self._recent.parts()

    def ended_grants(self, limit: int, decode: Callable[[str], T]) -> list[T]:
        """The latest grants that have ended, newest first. A row that `decode` rejects is set aside."""
        return self._ended(queries.ended, limit, decode)[:limit]

    def ended_grant(self, grant_id: str, decode: Callable[[str], T]) -> T | None:
        """A grant that has ended, None where there is none."""
        return next(iter(self._ended(queries.ended_one, grant_id, decode)), None)

    def _ended(self, query: Callable[..., list[tuple[int, str]]], which: object, decode: Callable[[str], T]) -> list[T]:
        def find() -> list[T]:
            found = [decode(state) for _, state in self._recent.ask(query, which)]
            nothing: list[T] = []
            return found + self._mover.read(
                lambda file: file.decoded("grants", file.ask(query, which), decode), nothing
            )

        return self._ask(find, [])

    def set_aside(self, grant_id: str, reason: str) -> None:
        """Sets a grant's row aside that cannot be used; its bytes are kept."""
        self._set_aside("grants", grant_id, reason)

    def set_part_aside(self, name: str, reason: str) -> None:
        """The same of a part of a gang."""
        self._set_aside("parts", name, reason)

    def _set_aside(self, table: str, row_id: str, reason: str) -> None:
        def act() -> None:  # by then the file has the row, if it can be written
            self._recent.remove(table, row_id)
            self._mover.read(lambda file: file.set_aside(table, row_id, reason), None)

        self._ask(act, None)

    def totals(self, grant_id: str) -> dict[str, Totals]:
        """Sums of one grant, by device id."""
        return self.totals_of([grant_id]).get(grant_id, {})

    def totals_of(self, grants: Collection[str]) -> dict[str, dict[str, Totals]]:
        """Sums of several grants, by grant: one request to the thread however many."""

        def find() -> dict[str, dict[str, Totals]]:
            waiting = {one: self._recent.ask(queries.totals, "periods", one) for one in grants}
            return self._mover.read(
                lambda file: {one: added(file.ask(queries.totals, queries.ALL, one), waiting[one]) for one in grants},
                waiting,
            )

        return self._ask(find, {}) if grants else {}

    def moved(self, grants: Collection[str]) -> dict[str, queries.MovedBefore]:
        """What moving the memory of each grant cost so far; empty while the disk does not answer."""

        def find() -> dict[str, queries.MovedBefore]:
            waiting = {one: self._recent.ask(queries.moved, ["moves"], one) for one in grants}
            none: dict[str, queries.MovedBefore] = {}
            return self._mover.read(
                lambda file: {one: file.ask(queries.moved, MOVING, one).plus(waiting[one]) for one in grants}, none
            )

        return self._ask(find, {}) if grants else {}

    def tenant_totals(self, without: Iterable[str]) -> dict[str, Totals]:
        """Sums by tenant over all periods that are kept, except those of the grants in `without`; while the file cannot
        be read, over those that it does not have. Reads every period, so it is to be called in a thread."""
        try:
            return self._reading(lambda reader: queries.tenant_totals(reader, usage.ALL, without))
        except FailedError as error:
            log.warning("%s", error)
            return self._recent.ask(queries.tenant_totals, "periods", without)

    def usage(self, by: By, span: Span) -> dict[Key, Sums]:
        """Sums over all that is kept of a span. Reads every row of it, so it is to be called in a thread. Raises
        FailedError where the file cannot be read now, and UsageError where the answer is too long."""
        return self._reading(lambda reader: usage.added_up(reader, by, span))

    def slots(self, span: Span, cut: slots.Cut) -> list[Slot]:
        """What was used and waited in each slot of a span. Called and raises as `usage`."""
        return self._reading(lambda reader: slots.slots(reader, span, cut))

    def _reading(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """What `read` makes of the file and of what it does not have yet (usage.snapshot). Raises FailedError."""

        # In the thread that moves rows, so that none is counted twice or missed.
        def begin() -> sqlite3.Connection | None:
            return self._mover.read(
                lambda file: usage.snapshot(file.path, self._recent.periods(), self._recent.moves()), None
            )

        reader = self._ask(begin, None)
        if reader is None:
            raise FailedError(f"the ledger {self.path} cannot be read now: its disk does not answer, try again")
        try:
            with failures(self.path), contextlib.closing(reader):
                return read(reader)
        except DamagedError as error:
            self._mover.found_damaged(str(error))
            raise

    def context_cost(self, device: str, driver: str) -> ContextCost | None:
        """What a context takes on the device with this driver version, None where it was never measured."""

        return self._recent.ask(queries.context_cost, device, driver) or self._ask(
            lambda: self._mover.read(lambda file: file.ask(queries.context_cost, device, driver), None), None
        )

    def devices(self, decode: Callable[[str], T]) -> list[T]:
        """All devices ever found here, as `save_devices` got them; the last seen first. A row that `decode` rejects is
        set aside."""

        def find(file: LedgerFile) -> list[T]:
            return file.decoded("devices", file.ask(queries.devices), decode)

        return self._ask(lambda: self._mover.read(find, []), [])

    def close(self) -> None:
        """Writes what waits and marks the run as ended."""
        self._ending.set()
        self._questions.put(_nothing)
        self._thread.join(_CLOSE_SECONDS)

    def _saved(self) -> None:
        """Waits until the disk has it where a kill would lose it otherwise, unless the disk is late."""
        if not self._recent.on_tmpfs and not self._recent.collects:
            self._ask(_nothing, None)
        self._notice_late()

    def _notice_late(self) -> None:
        """Checks whether the thread is late, since hardly any call waits for it."""
        since = self._busy_since
        if since is not None and self._late_ns is None and time.monotonic() - since > _SLOW_SECONDS:
            self._late()

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """What `question` finds in the thread, after all that was saved before was tried to be written; `otherwise`
        where the disk does not answer in time."""
        if self._late_ns is not None:
            return otherwise
        answer: Future[T] = Future()

        def find() -> None:
            try:
                answer.set_result(question())
            except Exception:
                log.exception("the ledger %s", self.path)
                answer.set_result(otherwise)

        self._questions.put(find)
        try:
            return answer.result(WAIT_SECONDS)
        except TimeoutError:
            self._late()
            return otherwise

    def _late(self) -> None:
        self._late_ns = time.time_ns()
        if self._late_ns - self._logged_ns > _LOG_NS:
            self._logged_ns = self._late_ns
            log.warning("the disk of the ledger %s does not answer in time: new rows wait on tmpfs", self.path)

    # The thread.

    def _serve(self) -> None:
        self._mover.start()
        self._ready.set()
        more = False
        while not self._ending.is_set():
            self._late_ns = self._busy_since = None
            questions = self._next_questions(0.0 if more else RETRY_SECONDS)
            self._busy_since = time.monotonic()
            more = self._mover.turn()
            for answer in questions:
                answer()
            if time.monotonic() >= self._mover.forget_at:
                self._mover.forget()
        self._mover.stop()

    def _next_questions(self, pause: float) -> list[Callable[[], object]]:
        """Waits for a question, or until there is other work."""
        pause = min(pause, max(0.0, self._mover.forget_at - time.monotonic()))
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._questions.get(timeout=pause))
            while True:
                found.append(self._questions.get_nowait())
        return found


def _nothing() -> None:
    pass
