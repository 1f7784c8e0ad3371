"""Moves the memory of grants to host memory and back: carries out what gpushare.policy.residency decides. Called on the
event loop only.

A change is saved to the ledger before the page's word tells the grant's processes of it. A restarted daemon takes every
grant over in the state that the ledger and the page agree on (`adopt`).
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from gpushare.api.types import Name
from gpushare.binding.page_words import Residency as Word
from gpushare.daemon.accounts.moves import Moves
from gpushare.daemon.residency import reports
from gpushare.daemon.residency.protocols import Pool, Recall, Transitions
from gpushare.daemon.residency.reports import ORDINAL
from gpushare.daemon.state import placement
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.errors import CannotMoveError, RefusedError
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.residency import states as policy
from gpushare.policy.residency.residency import advance
from gpushare.policy.residency.states import By, News, Where
from gpushare.text.units import format_size

log = logging.getLogger(__name__)

_REST = 5
"""A grant is not looked at for as many times as long as the last look took."""
_REST_MOST_S = 1.0
_AGAIN_S = 1.0
"""Between two looks at a grant whose memory is not where it is to stay, in addition to those when room may have become
free and when a process says that its words have changed: one that is out of descriptors, or in another root directory,
cannot say so."""
OUTCOMES = ("moved", "failed", "refused")
"""How a suspend ends; those that are refused have not begun."""
WAIT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def _always(live: Live) -> int:
    """Bytes of the host pool that are reserved for a grant as long as it lives: its way out, where it has no other."""
    return sum(place.memory_bytes for place in live.record.places) if live.asked.borrows_by_moving else 0


class Residency:
    """`suspends`: number of suspends, by who wanted them and by outcome. `waits`: how long grants waited for their
    memory: counts by bucket of WAIT_BUCKETS_S, their number and their sum in ns."""

    def __init__(self, state: State, transitions: Transitions, pool: Pool, move_s: float, moves: Moves) -> None:
        self._state, self._transitions, self._pool, self._moves = state, transitions, pool, moves
        self.move_ns = round(move_s * 1e9)
        self._cannot: dict[str, Callable[[str], None]] = {}
        """By grant: told when its memory does not leave."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._looking: set[str] = set()
        self._rests: dict[str, float] = {}
        """Until when a grant is not looked at again, by the loop's clock."""
        self._began: dict[str, tuple[int, int]] = {}
        """Since when grants come in, and how many bytes of them."""
        self._wanted_ns: dict[str, int] = {}
        """Since when grants wait for their memory."""
        self._closed = False
        self.recall: Recall
        """Set once it is made, with an engine that is made of this (daemon/node.py)."""
        self.suspends: Counter[tuple[str, str]] = Counter()
        self.waits: Counter[float] = Counter()
        self.waited_ns = self.waited = 0

    def admit(self, live: Live) -> None:
        """Reserves host memory for a new grant that may only be moved when what it borrows is wanted back. Raises
        RefusedError where there is too little."""
        if least := _always(live):
            self._pool.reserve(live.id, least)

    # What people and reclaims ask.

    def suspend(self, live: Live, by: By, *, hold: bool = False, cannot: Callable[[str], None] | None = None) -> None:
        """Moves the grant's memory to host memory; one that is moved already, or is being moved, is left alone. `hold`:
        until a person resumes it, whatever it wants. `cannot`: told why, where it does not leave after all.

        Raises CannotMoveError with the reason.
        """
        try:
            self._check(live)
            movable = reports.sums(live).movable_bytes
            if cannot is not None and live.record.residency.where is Where.SUSPENDED:
                raise RefusedError("it is in host memory already, and what it still has on loan cannot be moved")  # noqa: TRY301
            if cannot is not None:
                self._cannot[live.id] = cannot
            free = reports.free(live) if by is not By.PERSON else 0
            fixed = reports.fixed_now(live)
            self._send(live, policy.Suspend(time.monotonic_ns(), by, hold, movable, fixed, free))
        except RefusedError as refusal:
            self._cannot.pop(live.id, None)
            self.suspends[by, "refused"] += 1
            raise CannotMoveError(f"the memory of grant {live.id} stays where it is: {refusal}") from None

    def _check(self, live: Live) -> None:
        if not live.asked.lends:
            raise RefusedError("it keeps its memory (idle_memory keep): create it with idle_memory lend")
        if live.record.phase is not Phase.ACTIVE:
            raise RefusedError(f"it is {live.record.phase}, nothing runs in it")

    def copy_ahead(self, live: Live, movable_bytes: int) -> None:
        """Lets idle processes copy so much of their memory to the host; 0: no more. Raises RefusedError where there is
        too little host memory."""
        self._send(live, policy.CopyAhead(movable_bytes))

    def resume(self, live: Live) -> None:
        """Moves the grant's memory back, as soon as there is room. Raises CannotMoveError for a grant that lends
        none."""
        if not live.asked.lends:
            raise CannotMoveError(f"grant {live.id} keeps its memory on the device: there is nothing to resume")
        self._send(live, policy.Resume(time.monotonic_ns()))

    # What happens.

    def looked(self, live: Live) -> None:
        """Called when a process of the grant says that its words have changed, and when one has joined or ended. It is
        looked at in the loop's next turn, or later: processes that say so all the time have a part of the loop's
        time."""
        if live.record.residency.where is not Where.RESIDENT and live.id not in self._looking and not self._closed:
            loop = asyncio.get_running_loop()
            self._looking.add(live.id)
            loop.call_at(self._rests.get(live.id, loop.time()), self._look, live)

    def _look(self, live: Live) -> None:
        self._looking.discard(live.id)
        if live.id in self._state and not self._closed:
            loop = asyncio.get_running_loop()
            began = loop.time()
            processes = reports.processes(live)
            self._moves.looked(live, processes)
            leaves = live.record.residency.where is Where.SUSPENDING
            leave_ns = self.recall.leaves_ns(live) if leaves else 0
            self._send(live, policy.Looked(time.monotonic_ns(), processes, reports.free(live), leave_ns))
            self._rests[live.id] = loop.time() + min(_REST_MOST_S, _REST * (loop.time() - began))

    def placed(self) -> None:
        """Called when a grant takes room, before that is written: processes of suspended grants must not come back to
        it by themselves; nor, whatever room there is, those of a grant that is held."""
        suspended = [live for live in self._state if live.record.residency.where is Where.SUSPENDED]
        hosted: Counter[str] = Counter()
        for live in suspended:
            hosted[live.record.places[ORDINAL].device] += live.record.places[ORDINAL].hosted_bytes
        for live in suspended:
            device = live.record.places[ORDINAL].device
            if live.limits is not None:
                free = hosted[device] <= placement.free_on(self._state.promises, device)
                live.limits.set_room(ORDINAL, kept=free and not live.record.residency.hold)
        for live in self._state:
            if live.limits is not None and live.record.residency.leaving:
                live.limits.set_room(ORDINAL, kept=False)  # others come in as it leaves

    def freed(self, live: Live) -> None:
        """Called with a grant that has ended or has other places."""
        if live.record.phase.ended:
            self._forget(live)
        self.placed()
        self._look_again()

    def _look_again(self) -> None:
        """There may be room for those that want to come back."""
        for other in self._state:
            if other.record.residency.back:
                self.looked(other)

    def _forget(self, live: Live) -> None:
        self._stop_timer(live.id)
        self._wanted_ns.pop(live.id, None)
        self._began.pop(live.id, None)
        self._rests.pop(live.id, None)
        if live.record.residency.where is not Where.RESIDENT:
            self._pool.release(live.id)
            self.recall.is_back(live)
        if (cannot := self._cannot.pop(live.id, None)) is not None:
            cannot("it has ended")

    def adopt(self) -> None:
        """Takes all grants over, once at the start."""
        for live in self._state:
            if least := _always(live):
                self._reserve(live, least, is_needed=False)
            if not live.asked.lends or live.limits is None:
                continue
            word = live.limits.residency(ORDINAL)
            came = live.limits.room(ORDINAL) and reports.returned(live)
            hosted, now = reports.is_hosted(word), time.monotonic_ns()
            ahead = reports.is_prepared(word)
            self._send(live, policy.Restarted(now, reports.epoch_of(word), hosted, came, ahead), starting=True)
            self.looked(live)
        self.placed()

    def close(self) -> None:
        """Called when the daemon stops: memory stays where it is."""
        self._closed = True
        for grant in list(self._timers):
            self._stop_timer(grant)

    # What is done.

    def _send(self, live: Live, event: policy.Event, *, starting: bool = False) -> None:
        before = live.record.residency
        after, steps = advance(before, event, self.move_ns)
        if after == before and not steps:
            return
        for step in steps:
            if isinstance(step, policy.Reserve):
                self._reserve(live, max(step.size, _always(live)), is_needed=not starting)
        if after.where is not before.where:
            after = replace(after, since_ns=now_ns())
        live.record.residency = after
        self._moves.changed(live, before)
        if after.where is not before.where:
            log.debug("residency grant=%s from=%s to=%s why=%r", live.id, before.where, after.where, after.why)
        if after.where is Where.RESUMING is not before.where:
            self._began[live.id] = time.monotonic_ns(), reports.sums(live).hosted_bytes
        if after.back and not before.back:
            self._wanted_ns.setdefault(live.id, time.monotonic_ns())
        try:
            for step in steps:
                self._step(live, step)
        finally:
            self._set_timer(live)
        if before.back and after.where is before.where and not after.back:
            self._wanted_ns.pop(live.id, None)
            self.recall.is_back(live)
        if after.hold != before.hold:
            self.placed()
        if any(isinstance(step, policy.AskRoom) for step in steps):
            self._find_room(live)
        elif after.where is not before.where:
            self.looked(live)
        elif after.waits != before.waits:
            self._transitions.publish(live, "changed")

    def _reserve(self, live: Live, size: int, *, is_needed: bool) -> None:
        try:
            self._pool.reserve(live.id, size)
        except RefusedError as refusal:
            if is_needed:
                raise
            log.warning("grant %s has memory in a host pool that is too small for it now: %s", live.id, refusal)

    def _release(self, live: Live) -> None:
        if least := _always(live):
            self._reserve(live, least, is_needed=False)
        else:
            self._pool.release(live.id)

    def _step(self, live: Live, step: policy.Instruction) -> None:
        match step:
            case policy.Record():
                self._state.save(live.record)
            case policy.Release():
                self._release(live)
            case policy.Count(hosted):
                [place] = live.record.places
                self._transitions.move(live, [replace(place, hosted_bytes=min(hosted, place.memory_bytes))])
            case policy.Write(hosted, ahead):
                self._write(live, Word.HOSTED if hosted else Word.PREPARED if ahead else Word.RESIDENT)
            case policy.Tell(news):
                self._tell(live, news)
            case policy.Reserve() | policy.AskRoom():
                pass

    def _write(self, live: Live, word: Word) -> None:
        if live.limits is None:
            return
        # Another epoch than the record's where a step before this one has failed: the page's is what processes answer.
        epoch = reports.epoch_of(live.limits.set_residency(ORDINAL, word))
        live.record.residency = replace(live.record.residency, epoch=epoch)
        self._ring(live)

    def _ring(self, live: Live) -> None:
        """Lets the arbiter look at the grant at once: it takes its lease, or gives it one again."""
        if live.bell is not None:
            with contextlib.suppress(OSError):
                os.eventfd_write(live.bell, 1)

    def _find_room(self, live: Live) -> None:
        why, early = self.recall.hinders(live)
        self._send(live, policy.Room(time.monotonic_ns(), why, early))
        if not why:
            self.recall.is_back(live)

    def _tell(self, live: Live, news: News) -> None:
        if news is News.LEAVING:
            self._look_again()
            return
        now, cannot = live.record.residency, self._cannot.pop(live.id, None)
        name: Name = ""
        stays = ""
        if news is News.MOVED:
            name = "MemoryMoved"
            self.suspends[now.by, "moved"] += 1
            text = f"{format_size(now.hosted_bytes)} of its memory are in host memory now"
            self._decide(live, text, self._moves.moved_out(live))
            if rest := live.record.places[ORDINAL].on_loan_bytes:
                stays = f"{text}, and {format_size(rest)} of what it has on loan cannot be moved"
        elif news is News.FAILED:
            self._take_back(live)
            self.suspends[now.by, "failed"] += 1
            stays = now.why
            self._decide(live, f"its memory stays on the device: {stays}")
        elif news is News.RETURNED:
            name = "MemoryReturned"
            self._count_return(live)
            self._count_wait(live)
            self._decide(live, "its memory is on the device again", self._moves.returned(live))
        self._ring(live)
        self._transitions.publish(live, "changed", name)
        if cannot is not None and stays:
            cannot(stays)  # last: it may end the grant

    def _take_back(self, live: Live) -> None:
        """Called with a grant that stays after all: those that are coming in to its room look for other room."""
        if live.record.residency.where is not Where.SUSPENDED:
            return
        device = live.record.places[ORDINAL].device
        for other in self._state:
            if other.record.residency.early and other.record.places[ORDINAL].device == device:
                with contextlib.suppress(RefusedError):  # without host memory it waits where it is
                    self._send(other, policy.Taken(time.monotonic_ns(), reports.sums(other).movable_bytes))

    def _decide(self, live: Live, text: str, receipt: str = "") -> None:
        now, place = live.record.residency, live.record.places[ORDINAL]
        rule = "guarantee" if now.by is By.RUNG else "other"
        self._state.decisions.add(
            live.id,
            "moved",
            rule,
            f"{text}: {receipt}" if receipt else text,
            device=place.index,
            memory_bytes=place.memory_bytes,
            hosted_bytes=now.hosted_bytes,
        )

    def _count_return(self, live: Live) -> None:
        if (began := self._began.pop(live.id, None)) is not None:
            since_ns, size = began
            self.recall.moved(live, size, time.monotonic_ns() - since_ns)

    def _count_wait(self, live: Live) -> None:
        if (since := self._wanted_ns.pop(live.id, None)) is not None:
            waited = time.monotonic_ns() - since
            self.waited += 1
            self.waited_ns += waited
            for bound in WAIT_BUCKETS_S:
                self.waits[bound] += waited <= bound * 1e9

    # Time.

    def _set_timer(self, live: Live) -> None:
        self._stop_timer(live.id)
        now = live.record.residency
        if now.where is not Where.RESIDENT and not self._closed:
            delay = _AGAIN_S
            if now.deadline_ns is not None:
                delay = min(delay, max(0, now.deadline_ns - time.monotonic_ns()) / 1e9)
            self._timers[live.id] = asyncio.get_running_loop().call_later(delay, self._clock, live)

    def _clock(self, live: Live) -> None:
        del self._timers[live.id]
        self._look(live)
        if live.id in self._state and live.id not in self._timers:
            self._set_timer(live)

    def _stop_timer(self, grant: str) -> None:
        if (timer := self._timers.pop(grant, None)) is not None:
            timer.cancel()
