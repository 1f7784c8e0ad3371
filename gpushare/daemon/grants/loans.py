"""The node as gpushare.policy.loans.recall asks about it: who has memory on loan, and what would fit."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gpushare.daemon.host.peer import Peer
from gpushare.daemon.residency import reports
from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Promises
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.policy.grants.admission import Place
from gpushare.policy.loans import reclaim
from gpushare.policy.loans.loans import Family
from gpushare.policy.loans.reclaim import Loan, Need, Rung, Standing
from gpushare.policy.residency.states import By, Where
from gpushare.text.units import parse_memory

_NAMED = 3
_SOON_NS = 1500 * 10**6
"""Programs finish their work within that, where they can."""
_PREPARED = 2 << 30
"""Bytes of host memory that are made in a second, on whatever machine."""


def names(grants: Iterable[str]) -> str:
    """The grants' ids in words, the first few of many."""
    ids = sorted(grants)
    return ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")


def on_loan(live: Live) -> int:
    """Bytes that a grant has on loan, on all its devices."""
    return sum(place.on_loan_bytes for place in live.record.places)


@dataclass(frozen=True, slots=True)
class Back:
    """What a suspended grant wants: the room that its memory has left."""

    live: Live


@dataclass(frozen=True, slots=True)
class Together:
    """What a request wants: all of these grants or none; one, but where a gang's part is prepared."""

    asked: tuple[Asked, ...]

    @property
    def tenant(self) -> str:
        """The tenant for which memory on loan is taken back."""
        return self.asked[0].tenant


Wanted = Together | Back


def _soon(live: Live) -> bool:
    """Whether a grant that is told to leave will be away soon: it is on its way, or was told only now. One that is
    stopped is not waited for, others may leave as well."""
    now = live.record.residency
    return now.leaving or time.monotonic_ns() - (now.told_ns or 0) < _SOON_NS + now.reserved_bytes * 10**9 // _PREPARED


def without(live: Live) -> list[Place]:
    """The places of a grant once its memory is away."""
    size = reports.leaving(live)
    return [replace(place, hosted_bytes=max(place.hosted_bytes, size)) for place in live.record.places]


def put(state: State, draft: Promises, key: str, wanted: Wanted) -> None:
    """Puts what is wanted into a draft of the promises. Raises what placement does where there is no room; then nothing
    of it is in the draft."""
    if isinstance(wanted, Back):
        draft.put(wanted.live.id, wanted.live.asked, placement.bring_back(wanted.live, draft))
        return
    there = list[str]()
    try:
        for number, asked in enumerate(wanted.asked):
            places = placement.place(state, asked, promises=draft)
            there.append(f"want {number} {key}")
            draft.put(there[-1], asked, places)
    except GpushareError:
        for name in there:
            draft.drop(name)
        raise


def key_of(peer: Peer, wanted: Together, asker: str) -> str:
    """The key of a want: the same for repeated requests of one asker."""
    requests = " ".join(msgspec.json.encode(asked.request).decode() for asked in wanted.asked)
    return f"{peer.uid} {asker} {requests}"


def bytes_of(size: int | str, whole: int) -> int:
    """Memory as a request names it, in bytes. `whole`: of the device that a percentage is of."""
    return size if isinstance(size, int) else parse_memory(size, whole)


def key_back(live: Live) -> str:
    """The key of what a suspended grant wants."""
    return f"back {live.id}"


class Node:
    """A gpushare.policy.loans.recall.World, in which grants that are leaving their device are away. `wanted`: by key of
    the want. `missing`: rungs that nothing here carries out. `all_leaving`: also those that are moved for a recall,
    which counts them itself."""

    def __init__(
        self,
        state: State,
        wanted: Mapping[str, Wanted],
        missing: Collection[Rung] = (),
        *,
        all_leaving: bool = False,
    ) -> None:
        self._state, self._wanted, self._missing, self._all = state, wanted, missing, all_leaving
        self.away: Collection[str] = ()
        """Grants whose memory counts as away."""
        self.before: Callable[[str], Iterable[tuple[str, Wanted]]] = lambda _: ()
        """What is served before a want, from memory of those who are leaving."""

    def fits(self, wants: Sequence[str], gone: Collection[str], away: Collection[str] = ()) -> bool:
        """See World. `away`: grants whose memory will be away, besides those that are about to leave."""
        return self._draft(wants, gone, away) is not None

    def _draft(self, wants: Sequence[str], gone: Collection[str], away: Collection[str] = ()) -> Promises | None:
        """The promises once grants in `gone` are gone and `wants` are there; None: they do not fit."""
        draft = self._state.promises.copy()
        for live in self._state:
            now = live.record.residency
            leaves = now.where is Where.SUSPENDING and (self._all or now.by is not By.RUNG) and _soon(live)
            if leaves or live.id in away or live.id in self.away:
                draft.put(live.id, live.asked, without(live))
        for grant in gone:
            draft.drop(grant)
        counted = set(wants)
        try:
            for key in wants:
                for other, wanted in self.before(key):
                    if other not in counted:
                        counted.add(other)
                        with contextlib.suppress(GpushareError):
                            put(self._state, draft, other, wanted)
                put(self._state, draft, key, self._wanted[key])
        except GpushareError:
            return None
        return draft

    def loans(self) -> Iterator[Loan]:
        """See World."""
        policy, now, wall = self._state.reclaim_policy, time.monotonic_ns(), time.time_ns()
        for live in self._state:
            if not on_loan(live):
                continue
            yield Loan(
                grant=live.id,
                tenant=live.record.tenant,
                amount=sum(place.here_bytes for place in live.record.places),
                since_ns=now - max(0, wall - live.record.created_ns),
                rungs=reclaim.rungs(Need.MEMORY, live.asked.max_rung, self._missing_for(live)),
                priority=live.asked.request.priority,
                min_hold_ns=policy.min_hold_ns,
                grace_ns=live.asked.grace_ns,
            )

    def _missing_for(self, live: Live) -> Collection[Rung]:
        movable = live.asked.lends and live.record.residency.where is not Where.SUSPENDED
        return self._missing if movable else {*self._missing, Rung.DEMOTE}

    def standings(self, wants: Sequence[str], gone: Collection[str]) -> Mapping[str, Standing]:
        """See World."""
        *before, last = wants
        draft = self._draft(before, gone)
        if draft is None:
            return {}
        now = draft.now
        usable = {device.id: device for device in now.devices if device.usable}
        wanted = self._wanted[last]
        if isinstance(wanted, Back):
            return self._borrowers(wanted.live, gone)
        if wanted.tenant not in now.tenants:
            return {}
        held = {name: now.taken.memory(name, usable) for name in now.tenants}
        size = max((device.memory_bytes for device in usable.values()), default=0)
        own = (asked for asked in wanted.asked if asked.tenant == wanted.tenant)
        whole = sum(asked.request.devices * bytes_of(asked.memory, size) for asked in own)
        return Family(now.tenants, held).standings(wanted.tenant, whole)

    def _borrowers(self, owner: Live, gone: Collection[str]) -> dict[str, Standing]:
        """Standings where a grant wants its own room back: of everyone who has some on loan on its device, its own
        tenant included."""
        tenants, there = self._state.promises.now.tenants, {place.device for place in owner.record.places}
        lent: Counter[str] = Counter()
        for live in self._state:
            if live.id not in gone:
                places = (place for place in live.record.places if place.device in there)
                lent[live.record.tenant] += sum(place.on_loan_bytes for place in places)
        return {
            name: Standing(name, lent[name], 0, tenants[name].weight, tenants[name].tier)
            for name in lent
            if name in tenants
        }
