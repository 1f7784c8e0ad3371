"""The node as gpushare.policy.loans.recall asks about it: who has memory on loan, and what would fit."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Promises
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.policy.loans import reclaim
from gpushare.policy.loans.loans import Family
from gpushare.policy.loans.reclaim import Loan, Need, Rung, Standing
from gpushare.policy.residency.residency import Where
from gpushare.text.units import parse_memory


def on_loan(live: Live) -> int:
    """Bytes that a grant has on loan, on all its devices."""
    return sum(place.on_loan_bytes for place in live.record.places)


@dataclass(frozen=True, slots=True)
class Back:
    """What a suspended grant wants: the room that its memory has left."""

    live: Live


class Node:
    """A gpushare.policy.loans.recall.World. `wanted`: by key of the want. `missing`: rungs that nothing here carries
    out."""

    def __init__(self, state: State, wanted: Mapping[str, Asked | Back], missing: Collection[Rung]) -> None:
        self._state, self._wanted, self._missing = state, wanted, missing

    def fits(self, wants: Sequence[str], gone: Collection[str]) -> bool:
        """See World."""
        return self._draft(wants, gone) is not None

    def _draft(self, wants: Sequence[str], gone: Collection[str]) -> Promises | None:
        """The promises once grants in `gone` are gone and `wants` are there; None: they do not fit."""
        draft = self._state.promises.copy()
        for grant in gone:
            draft.drop(grant)
        try:
            for key in wants:
                asked = self._wanted[key]
                if isinstance(asked, Back):
                    draft.put(asked.live.id, asked.live.asked, placement.bring_back(asked.live, draft))
                else:
                    draft.put(f"want {key}", asked, placement.place(self._state, asked, promises=draft))
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
        movable = live.asked.lends and live.record.residency.where is Where.RESIDENT
        return self._missing if movable else {*self._missing, Rung.DEMOTE}

    def standings(self, wants: Sequence[str], gone: Collection[str]) -> Mapping[str, Standing]:
        """See World."""
        *before, last = wants
        draft = self._draft(before, gone)
        if draft is None:
            return {}
        now = draft.now
        usable = {device.id: device for device in now.devices if device.usable}
        asked = self._wanted[last]
        if isinstance(asked, Back):
            return self._borrowers(asked.live, gone)
        if asked.tenant not in now.tenants:
            return {}
        held = {name: now.taken.memory(name, usable) for name in now.tenants}
        each = asked.memory
        size = max((device.memory_bytes for device in usable.values()), default=0)
        whole = asked.request.devices * (each if isinstance(each, int) else parse_memory(each, size))
        return Family(now.tenants, held).standings(asked.tenant, whole)

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
