"""Carries out what gpushare.policy.loans.recall decides: grants are asked to give back memory that they have on loan,
by an event, a file in their directory and a signal, and are ended where they allow that. Called on the event loop only.

A restarted daemon knows of no wants: owners that still want memory ask again, and the borrowers' grace begins anew.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from gpushare.api.plan import Victim
from gpushare.api.share import Eviction
from gpushare.api.types import Name
from gpushare.daemon.grants.loans import Back, Node, Together, Wanted, key_back, key_of, names, on_loan
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.state.asked import Asked, rung_word
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.state.watch import Change
from gpushare.errors import OnLoanError, RefusedError
from gpushare.inject import grantfiles
from gpushare.policy.grants import lifecycle
from gpushare.policy.loans.recall import Ask, End, Over, Step
from gpushare.policy.loans.reclaim import Rung
from gpushare.text.units import format_size

log = logging.getLogger(__name__)

_MILD = frozenset({Rung.DEMOTE, Rung.SUSPEND})
"""Rungs that need an engine."""
_PLANNED = "plan"


class Engine(Protocol):
    """Carries out a rung that is milder than `evict`: frees memory of a grant without its help, and makes its places
    smaller accordingly (Transitions.move)."""

    limit_ns: int
    """How long it may take."""

    def start(self, live: Live, cannot: Callable[[str], None]) -> None:
        """Begins; `cannot` is called with the reason if that fails."""


class Evictions:
    """`engines`: by rung; a rung without one is left out. `asked`: evictions in progress, by grant. `ended`: number of
    ended ones, by last rung and outcome. `told`: called with a grant that is asked to end or to shrink."""

    def __init__(self, state: State, transitions: Transitions, engines: Mapping[Rung, Engine] | None = None) -> None:
        self._state, self._transitions = state, transitions
        self._engines = dict(engines or {})
        self._wanted: dict[str, Wanted] = {}
        self._node = Node(state, self._wanted, _MILD - self._engines.keys())
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._gone: list[str] = []
        self._changed = self._busy = self._closed = False
        self.asked: dict[str, Eviction] = {}
        self.told: Callable[[Live, Eviction], None] = lambda _live, _asked: None
        self.ended: Counter[tuple[str, str]] = Counter()
        state.recalls.clocks = {rung: engine.limit_ns for rung, engine in self._engines.items()}

    def start(self) -> None:
        """Removes the eviction files of an earlier run."""
        for live in self._state:
            with contextlib.suppress(OSError):
                grantfiles.remove_eviction(self._state.layout, live.id)

    def served_first(self, before: Callable[[str], Iterable[tuple[str, Wanted]]]) -> None:
        """`before`: by the key of a want, with their keys, wants that are served before it from memory of grants that
        do nothing: what those leave is not there for it."""
        self._node.before = before

    def close(self) -> None:
        """Asks nobody any more: removes the eviction files."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.start()

    # What owners do.

    def asked_for(self, key: str) -> set[str]:
        """The grants that are asked to give something back for this want."""
        want = self._state.recalls.wants.get(key)
        return want.victims if want is not None and want.failed_ns is None else set()

    def refused(self, peer: Peer, wanted: Together, asker: str, refusal: RefusedError) -> RefusedError:
        """Returns the answer to the owner: the refusal itself, or that others are asked to give back what it wants."""
        if type(refusal) is not RefusedError or not any(map(on_loan, self._state)):
            return refusal
        key, recalls = key_of(peer, wanted, asker), self._state.recalls
        self._wanted.setdefault(key, wanted)
        self._act(recalls.wanted(time.monotonic_ns(), key, wanted.tenant, self._node))
        want = recalls.wants.get(key)
        if want is None:
            return refusal
        if want.failed_ns is not None:
            return RefusedError(f"{refusal}; it is on loan to {names(want.refused)}, which gave nothing back in time")
        left = max((one.deadline_ns - now_ns() for one in self.asked.values() if one.grant in want.victims), default=0)
        return OnLoanError(
            f"{refusal}; it is on loan to {names(want.victims)}, asked to give it back within"
            f" {max(0, left) / 1e9:.1f} s: ask again until then"
        )

    def wanted_back(self, live: Live, away: Collection[str]) -> str:
        """Called, again and again, with a suspended grant that wants its room back and finds others there. `away`:
        grants whose memory can be moved for it at once. Returns in words for whom it waits."""
        key, recalls = key_back(live), self._state.recalls
        self._wanted.setdefault(key, Back(live))
        self._node.away = away
        try:
            self._act(recalls.wanted(time.monotonic_ns(), key, live.record.tenant, self._node))
        finally:
            self._node.away = ()
        want = recalls.wants.get(key)
        if want is None:
            return "nobody has it on loan"
        if want.failed_ns is not None:
            return f"it is on loan to {names(want.refused)}, which gave nothing back in time"
        return f"it is on loan to {names(want.victims)}, asked to give it back"

    def is_back(self, live: Live) -> None:
        """Called with a grant that wants no room back any more."""
        key = key_back(live)
        if key in self._wanted:
            self._act(self._state.recalls.served(key, time.monotonic_ns(), self._node))

    def victims(self, asked: Asked) -> list[Victim]:
        """The grants that would be asked for memory, one entry per device."""
        if not any(map(on_loan, self._state)):
            return []
        world = Node(self._state, {**self._wanted, _PLANNED: Together((asked,))}, _MILD - self._engines.keys())
        steps = self._state.recalls.copy().wanted(time.monotonic_ns(), _PLANNED, asked.tenant, world)
        found = []
        for step in steps:
            if isinstance(step, Ask):
                live = self._state.live(step.grant)
                record, most = live.record, live.asked.max_rung
                found += [
                    Victim(
                        grant=record.id,
                        tenant=record.tenant,
                        device=place.device,
                        index=place.index,
                        rung=rung_word(step.rung),
                        max_rung=rung_word(most),
                        rule="guarantee",
                        memory_bytes=place.on_loan_bytes,
                    )
                    for place in record.places
                ]
        return found

    def admitted(self, key: str, lives: Iterable[Live]) -> None:
        """Called when an owner got what it wanted: ends its want."""
        recalls = self._state.recalls
        if (want := recalls.wants.get(key)) is None:
            return
        for live in lives:
            self._state.decisions.add(
                live.id,
                "reclaim",
                "guarantee",
                f"its memory was on loan to {names(want.victims)}: taken back under the tenant's guarantee",
                memory_bytes=sum(place.memory_bytes for place in live.record.places),
            )
        self._act(recalls.served(key, time.monotonic_ns(), self._node))

    # What borrowers do.

    def freed(self, live: Live) -> None:
        """Called with a grant that has ended or has other places."""
        if self._closed:
            return
        if not self._state.recalls.wants and live.id not in self._state.recalls.running:
            return
        self._changed = True
        if live.record.phase.ended or not on_loan(live):
            self._gone.append(live.id)
        if not self._busy:
            self._act(())

    def _tick(self) -> None:
        self._timer = None
        self._act(self._state.recalls.look(time.monotonic_ns(), self._node))

    # What is done.

    def _act(self, steps: Sequence[Step]) -> None:
        """Carries out steps, and the steps that follow from them."""
        recalls = self._state.recalls
        self._busy = True
        try:
            while steps or self._changed:
                for step in steps:
                    self._carry_out(step)
                gone, self._gone, self._changed = self._gone, [], False
                steps = recalls.gave(gone, time.monotonic_ns(), self._node)
        finally:
            self._busy = False
        for key in self._wanted.keys() - recalls.wants.keys():
            del self._wanted[key]
        self._set_timer()

    def _set_timer(self) -> None:
        now = time.monotonic_ns()
        if self._timer is not None:
            if self._due_ns <= now:
                return  # a request was handled first: what is due is done next, and is no time to come any more
            self._timer.cancel()
            self._timer = None
        due = self._state.recalls.next_ns(now)
        if due is not None:
            self._due_ns = due
            self._timer = asyncio.get_running_loop().call_later(max(0, due - now) / 1e9, self._tick)

    def _carry_out(self, step: Step) -> None:
        match step:
            case Ask():
                self._ask(self._state.live(step.grant), step)
            case Over():
                self._over(step)
            case End(grant, owner):
                live = self._state.live(grant)
                reason = f"its memory was on loan from tenant {owner}, which wants it back, and its grace was over"
                log.warning("grant %s of tenant %s is ended: %s", grant, live.record.tenant, reason)
                self._transitions.send(live, lifecycle.Release(now_ns(), reason))

    def _ask(self, live: Live, step: Ask) -> None:
        bytes_, now = on_loan(live), now_ns()
        before = self.asked.get(live.id)
        asked = Eviction(
            grant=live.id,
            tenant=live.record.tenant,
            reason=f"tenant {step.owner} wants {format_size(bytes_)} of memory back that it is guaranteed",
            deadline_ns=now + max(0, step.deadline_ns - time.monotonic_ns()),
            bytes=bytes_,
            for_tenant=step.owner,
            rung=rung_word(step.rung),
            max_rung=rung_word(live.asked.max_rung),
            started_ns=before.started_ns if before is not None else now,
        )
        self.asked[live.id] = live.eviction = asked
        log.info("reclaim grant=%s tenant=%s rung=%s for=%s", live.id, asked.tenant, asked.rung, step.owner)
        self._decide(live, asked, f"{asked.rung}: {asked.reason}, within {(asked.deadline_ns - now) / 1e9:.1f} s")
        self._tell(asked, "changed" if before is not None else "added", "EvictionRequested")
        self._transitions.publish(live, "changed")
        if step.rung < Rung.EVICT:
            self._engines[step.rung].start(live, lambda why: self._cannot(live.id, step.rung, why))
        else:
            self._notify(live, asked)

    def _cannot(self, grant: str, rung: Rung, why: str) -> None:
        log.info("reclaim grant=%s rung=%s cannot: %s", grant, rung.word, why)
        self._act(self._state.recalls.cannot(grant, rung, why, time.monotonic_ns(), self._node))

    def _notify(self, live: Live, asked: Eviction) -> None:
        self.told(live, asked)
        try:
            grantfiles.write_eviction(self._state.layout, live.id, msgspec.json.encode(asked) + b"\n")
        except OSError as error:
            log.warning("grant %s is not told by a file that its memory is wanted: %s", live.id, error)
        if (name := live.record.request.eviction_signal) is None:
            return
        for workload in live.workloads:
            if workload.pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(workload.pidfd, getattr(signal, f"SIG{name}"))

    def _over(self, step: Over) -> None:
        self.ended[step.rung.word, step.outcome] += 1
        done = self.asked.pop(step.grant)
        done.outcome, done.ms = step.outcome, (time.monotonic_ns() - step.started_ns) / 1e6
        log.info("reclaim grant=%s outcome=%r ms=%.1f", step.grant, step.outcome, done.ms)
        if step.grant in self._state:
            live = self._state.live(step.grant)
            live.eviction = None
            with contextlib.suppress(OSError):
                grantfiles.remove_eviction(self._state.layout, live.id)
            self._decide(live, done, f"{_SAID[step.outcome]} after {done.ms / 1e3:.1f} s")
            self._transitions.publish(live, "changed")
        self._tell(done, "removed", "EvictionResolved")

    # Who is notified.

    def _decide(self, live: Live, asked: Eviction, text: str) -> None:
        self._state.decisions.add(
            live.id, "reclaim", "guarantee", text, other_tenant=asked.for_tenant, memory_bytes=asked.bytes
        )

    def _tell(self, eviction: Eviction, change: Change, name: Name) -> None:
        self._state.watch.publish("eviction", change, lambda _: eviction, name)


_SAID = {
    "released": "gave its memory back",
    "not needed": "its memory is not needed any more",
    "ended": "is ended, for its memory",
    "refused": "gave nothing back, and may not be ended",
}
