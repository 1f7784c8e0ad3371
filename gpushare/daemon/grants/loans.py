"""The node as gpushare.policy.loans.recall asks about it: who has memory on loan, and what would fit."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Promises
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.policy.loans import reclaim
from gpushare.policy.loans.loans import Family
from gpushare.policy.loans.reclaim import Loan, Need, Rung, Standing
from gpushare.text.units import parse_memory


def on_loan(live: Live) -> int:
    """Bytes that a grant has on loan, on all its devices."""
    return sum(place.borrowed_bytes for place in live.record.places)


class Node:
    """A gpushare.policy.loans.recall.World. `wanted`: by key of the want. `missing`: rungs that nothing here carries
    out."""

    def __init__(self, state: State, wanted: Mapping[str, Asked], missing: Collection[Rung]) -> None:
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
                amount=sum(place.memory_bytes for place in live.record.places),
                since_ns=now - max(0, wall - live.record.created_ns),
                rungs=reclaim.rungs(Need.MEMORY, live.asked.max_rung, self._missing),
                priority=live.asked.request.priority,
                min_hold_ns=policy.min_hold_ns,
                grace_ns=live.asked.grace_ns,
            )

    def standings(self, wants: Sequence[str], gone: Collection[str]) -> Mapping[str, Standing]:
        """See World."""
        *before, last = wants
        draft = self._draft(before, gone)
        if draft is None:
            return {}
        now = draft.now
        usable = {device.id: device for device in now.devices if device.usable}
        asked = self._wanted[last]
        if asked.tenant not in now.tenants:
            return {}
        held = {name: now.taken.memory(name, usable) for name in now.tenants}
        each = asked.memory
        size = max((device.memory_bytes for device in usable.values()), default=0)
        whole = asked.request.devices * (each if isinstance(each, int) else parse_memory(each, size))
        return Family(now.tenants, held).standings(asked.tenant, whole)
