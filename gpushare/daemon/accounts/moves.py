"""What moving memory costs and gives, per grant: for the ledger, the metrics and the receipts of both sides. Called on
the event loop only; gpushare.policy.residency.costs counts.

Residency calls `looked` and `changed`, and Accounts takes the rows once a second. What a killed daemon had not written
yet is found where something outlives it: copied bytes in the counters of processes, a wait in their flags.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from gpushare.daemon.state.books import Instant, begin
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, instant
from gpushare.ledger.entries import HELD, Move
from gpushare.ledger.queries import MovedBefore
from gpushare.policy.residency import lent
from gpushare.policy.residency.costs import NOBODY, Account, Cause, Cut, Holder, Loan, Member, Way, cause, in_the_way
from gpushare.policy.residency.lent import Away
from gpushare.policy.residency.residency import By, Process, Residency, Where

_ORDINAL = 0
"""Of the device whose memory is moved: grants that lend have one."""
_OPEN_NS = 3_000_000_000
"""A row of a wait that ended so shortly before the daemon did was of one that was not over."""
For = Literal["room", "copy", "person"]
"""What a call waits for that waits for memory: room that others have, only the copy, or a person who held it away."""


@dataclass(slots=True)
class _Book:
    """Of one grant. `written`: up to when its rows are in the ledger. `wanted_ns`: since when its memory is wanted
    back, and `leaves_ns`: since when it leaves, monotonic."""

    written: Instant
    account: Account = field(default_factory=Account)
    away: Away | None = None
    wanted_ns: int | None = None
    leaves_ns: int | None = None


class Moves:
    """`bytes`: copied, by device, way and cause. `stalled_ns`: how long calls waited, by tenant and what for. Both are
    of this run of the daemon."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._books: dict[str, _Book] = {}
        self.bytes: Counter[tuple[str, Way, Cause]] = Counter()
        self.stalled_ns: Counter[tuple[str, For]] = Counter()

    def adopt(self) -> None:
        """Takes all grants over, once at the start, before anything of them is moved."""
        lending = [live for live in self._state if live.asked.lends and live.usage is not None]
        known = self._state.ledger.moved([live.id for live in lending])
        for live in lending:
            self._adopt(live, known.get(live.id))

    def _adopt(self, live: Live, before: MovedBefore | None) -> None:
        book, now = self._book(live), instant()
        counted = before.copied_bytes if before is not None else None
        self._count(live, live.record.residency, book.account.copies.carry(_copied(live), counted))
        is_open = before is not None and before.stalled_until_ns >= now.wall_ns - self._state.ledger.gap_ns - _OPEN_NS
        if before is not None and is_open and _wants(live):
            waited = max(0, now.wall_ns - before.stalled_until_ns)
            book.account.waited_before(now.mono_ns, waited, Holder(before.holder, before.holder_tenant))
            book.wanted_ns = now.mono_ns - waited
        if live.record.residency.where is Where.SUSPENDED:
            book.away = Away(None, live.record.residency.hosted_bytes, {})

    def _book(self, live: Live) -> _Book:
        if (found := self._books.get(live.id)) is None:
            found = self._books[live.id] = _Book(instant())
        return found

    # What residency says.

    def looked(self, live: Live, processes: Iterable[Process]) -> None:
        """Called with what the processes of a grant report, before anything is decided by it."""
        if not live.asked.lends:
            return
        book, now = self._book(live), time.monotonic_ns()
        waits = live.record.residency.where is not Where.RESIDENT and any(one.wants for one in processes)
        if waits:
            if book.wanted_ns is None and not live.record.residency.hold:
                book.wanted_ns = now
            book.account.blocked(now, self._holder(live))
        book.account.wait(now, waits=waits)

    def changed(self, live: Live, before: Residency) -> None:
        """Called when a grant's residency is another than before, and its places are not yet."""
        now, mono, book = live.record.residency, time.monotonic_ns(), self._book(live)
        if now.where is not before.where or now.ahead != before.ahead:
            self._read(live, before)
        if now.where is not before.where:
            self._arrived(live, book)
        elif before.back and not now.back:
            book.wanted_ns = None
        if now.back and book.wanted_ns is None:
            book.wanted_ns = mono
        book.account.blocked(mono, self._holder(live))
        if now.where is Where.RESIDENT:
            book.account.wait(mono, waits=False)

    def _arrived(self, live: Live, book: _Book) -> None:
        now = live.record.residency
        if now.where is Where.SUSPENDING:
            book.leaves_ns, book.wanted_ns, book.away = time.monotonic_ns(), None, None
        elif now.where is Where.SUSPENDED:
            before = {one.grant: one.on_loan_bytes for one in self._others(live)}
            book.away = Away(time.time_ns(), now.hosted_bytes, before)
        elif now.where is Where.RESUMING and book.away is not None:
            book.away.look(time.time_ns(), self._others(live))
            book.away.back_ns = time.time_ns()

    def _holder(self, live: Live) -> Holder:
        now = live.record.residency
        if now.where is not Where.SUSPENDED:
            return NOBODY
        if now.hold:
            return Holder("", HELD)
        return in_the_way(self._others(live)) if now.back and now.waits else NOBODY

    def _others(self, live: Live) -> list[Loan]:
        device = live.record.places[_ORDINAL].device
        return [loan for on, loan in _loans(self._state) if on == device and loan.grant != live.id]

    # Receipts.

    def moved_out(self, live: Live) -> str:
        """The receipt of a grant whose memory has left because it was on loan; empty for others."""
        now, place, book = live.record.residency, live.record.places[_ORDINAL], self._book(live)
        size, live.receipt = min(now.hosted_bytes, place.borrowed_bytes), ""
        if now.by is not By.PERSON and size:
            took = time.monotonic_ns() - book.leaves_ns if book.leaves_ns is not None else None
            live.receipt = lent.borrower(size, time.time_ns(), took)
        return live.receipt

    def returned(self, live: Live) -> str:
        """The receipt of a grant whose memory is back; empty: nobody had its room."""
        book = self._book(live)
        away, wanted, book.away, book.wanted_ns = book.away, book.wanted_ns, None, None
        if away is not None:
            took = time.monotonic_ns() - wanted if wanted is not None else None
            live.receipt = lent.lender(away, time.time_ns(), took)
        return live.receipt if away is not None else ""

    def meanwhile(self, live: Live) -> str:
        """Since when a grant's memory is away, and who has its room, in words; empty: it is not."""
        book = self._books.get(live.id)
        if book is None or book.away is None:
            return ""
        book.away.look(time.time_ns(), self._others(live))
        return lent.meanwhile(book.away)

    # Once a second.

    def rows(self, at: Instant, only: Live | None = None) -> list[Move]:
        """Rows for the ledger since the last call, of all grants or of one that is about to end."""
        self._follow(at.wall_ns)
        if only is not None:
            rows = self._rows(only, at)
            self._books.pop(only.id, None)
            return rows
        self._books = {name: book for name, book in self._books.items() if name in self._state}
        return [row for live in self._state if live.books for row in self._rows(live, at)]

    def _follow(self, now_ns: int) -> None:
        """Takes note of who has the room of those that are away."""
        away = {name: book.away for name, book in self._books.items() if book.away is not None}
        if not away:
            return
        loans: dict[str, list[Loan]] = {}
        for device, loan in _loans(self._state):
            if loan.on_loan_bytes:
                loans.setdefault(device, []).append(loan)
        for live in self._state:
            if live.id in away:
                others = loans.get(live.record.places[_ORDINAL].device, ())
                away[live.id].look(now_ns, [one for one in others if one.grant != live.id])

    def _rows(self, live: Live, at: Instant) -> list[Move]:
        if not live.asked.lends:
            return []
        place, book, now = live.record.places[_ORDINAL], self._book(live), live.record.residency
        if now.where is not Where.RESIDENT or now.ahead:
            self._read(live, now)
        from_ns, passed = begin(book.written, at), max(0, at.mono_ns - book.written.mono_ns)
        book.written = at
        cut, hosted = book.account.cut(at.mono_ns), (live.record.residency.hosted_bytes >> 20) * (passed // 1_000_000)
        if not (hosted or cut.copied or cut.stalled):
            return []
        base = Move(live.id, live.record.tenant, place.device, "", "", "", from_ns, at.wall_ns)
        for holder, stall in cut.stalled.items():
            waits_for: For = "person" if holder.tenant == HELD else "room" if holder.tenant else "copy"
            self.stalled_ns[base.tenant, waits_for] += stall.ns
        return list(_lines(base, cut, hosted))

    def _read(self, live: Live, state: Residency) -> None:
        """Counts what was copied in a state."""
        if live.usage is not None:
            most = live.record.places[_ORDINAL].memory_bytes
            self._count(live, state, self._book(live).account.copies.look(_copied(live), most))

    def _count(self, live: Live, state: Residency, size: int) -> None:
        place = live.record.places[_ORDINAL]
        size = min(size, place.memory_bytes)
        if size > 0:
            self._book(live).account.copied(state, size)
            self.bytes[place.device, *cause(state)] += size


def _lines(base: Move, cut: Cut, hosted_mib_ms: int) -> Iterator[Move]:
    if hosted_mib_ms:
        yield replace(base, hosted_mib_ms=hosted_mib_ms)
    for why in Cause:
        out, back = (cut.copied.get((way, why), 0) for way in (Way.OUT, Way.IN))
        if out or back:
            yield replace(base, cause=why.value, out_bytes=out, in_bytes=back)
    for (grant, tenant), stall in cut.stalled.items():
        yield replace(
            base,
            holder=grant,
            holder_tenant=tenant,
            stall_ns=stall.ns,
            stalls=stall.over,
            stall_max_ns=stall.longest_ns,
        )


def _copied(live: Live) -> dict[Member, int]:
    """By process, what it says that it has copied since it joined."""
    if live.usage is None:
        return {}
    return {
        (one.slot, one.generation): live.usage.usage(one.slot, _ORDINAL).copied_bytes for one in live.record.members
    }


def _wants(live: Live) -> bool:
    """Whether a call of its programs waits for its memory."""
    if live.usage is None or live.record.residency.where is Where.RESIDENT:
        return False
    return any(live.usage.usage(one.slot, _ORDINAL).wants for one in live.record.members)


def _loans(state: State) -> Iterator[tuple[str, Loan]]:
    """What every grant has of its devices."""
    for live in state:
        for place in live.record.places:
            yield place.device, Loan(live.id, live.record.tenant, place.here_bytes, place.on_loan_bytes)
