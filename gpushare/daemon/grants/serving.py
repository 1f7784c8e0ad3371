"""Which grants the arbiter serves, and with what shares."""

import asyncio
import logging

from gpushare.binding.arbiter import Arbiter
from gpushare.binding.page_words import GrantState
from gpushare.daemon.accounts.accounts import Accounts
from gpushare.daemon.accounts.host_calls import HostCounts
from gpushare.daemon.accounts.receipts import Receipts
from gpushare.daemon.accounts.refusals import MemoryRefusals
from gpushare.daemon.state import placement
from gpushare.daemon.state.books import DeviceBook
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, instant
from gpushare.ledger.entries import Totals
from gpushare.policy.grants.admission import Place
from gpushare.policy.quota.shares import Share, entitlements

log = logging.getLogger(__name__)


class Serving:
    """The only caller that adds grants to the arbiter, changes their shares there, and removes them."""

    def __init__(
        self,
        state: State,
        hardware: Hardware,
        arbiter: Arbiter,
        accounts: Accounts,
        receipts: Receipts,
        refusals: MemoryRefusals,
        host_counts: HostCounts,
    ) -> None:
        self._state, self._hardware, self._arbiter = state, hardware, arbiter
        self._accounts, self._receipts, self._refusals = accounts, receipts, refusals
        self._host_counts = host_counts
        self._settling: asyncio.Future[None] | None = None
        self._turn: asyncio.Handle | None = None
        self._active: frozenset[str] | None = None
        """Grants that had work in the last second; None: not known yet, all of them may have."""

    def serve(self, live: Live, carried: dict[str, Totals]) -> None:
        """Adds a grant with open pages. `carried`: by device id, what earlier runs of the daemon wrote of it."""
        assert live.limits is not None
        assert live.usage is not None
        assert live.bell is not None
        places = live.record.places
        indices = [place.index for place in places]
        flags, shares = live.asked.lease_flags, placement.first_shares(live)
        live.handle = self._arbiter.add(live.limits, live.usage, indices, shares, live.bell, flags)
        live.shares = []  # the page may still have shares from before a restart
        for place in places:
            base = self._arbiter.grant_stats(live.handle, place.index)
            live.books[place.index] = DeviceBook(carried.get(place.device, Totals()), base, instant())
        live.limits.state = GrantState.ACTIVE
        self._refresh_soon()

    def stop(self, live: Live) -> None:
        """Removes a grant, after its last numbers went to the ledger. One that is not served is left alone."""
        if live.handle is None:
            return
        self._refusals.ends(live)
        self._host_counts.ends(live)
        self._receipts.ends(live)
        self._accounts.ends(live)
        self._arbiter.remove(live.handle)
        live.handle = None
        live.books.clear()
        self._refresh_soon()

    def close(self) -> None:
        """Stops the arbiter, which reads pages until then. Leases stay as they are, so served grants go on."""
        if self._turn is not None:
            self._turn.cancel()
        self._arbiter.close()

    def _refresh_soon(self) -> None:
        """Schedules `refresh_shares` for the loop's next turn, once for all grants that come and go in this one."""
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settling = loop.create_future()
            self._turn = loop.call_soon(self._settle)

    def _settle(self) -> None:
        settling, self._settling = self._settling, None
        assert settling is not None
        try:
            self.refresh_shares()
        except Exception as error:
            settling.set_exception(error)
        else:
            settling.set_result(None)

    async def settled(self) -> None:
        """Returns when every grant has its share: a call that makes grants come or go is answered after that."""
        if self._settling is not None:
            await asyncio.shield(self._settling)

    def clear_slot(self, live: Live, slot: int) -> None:
        """Empties the usage slot of a process that has ended."""
        if live.handle is not None:
            self._refusals.left(live, slot)
            self._host_counts.left(live, slot)
            self._arbiter.clear_slot(live.handle, slot)

    def refresh_shares(self) -> None:
        """Works out every served grant's share again and pushes those that changed to the arbiter and the page.

        Called when grants have come or gone, a device fails or is back, or a tenant's guarantee changes.
        """
        self._state.decisions.follow(placement.standing(self._state).missing, self._places)
        for grant_id, shares in placement.arbiter_shares(self._state, self._active).items():
            live = self._state.live(grant_id)
            assert live.handle is not None
            assert live.limits is not None
            if shares == live.shares:
                continue
            live.shares = shares
            self._arbiter.set_shares(live.handle, shares)
            for ordinal, (place, share) in enumerate(zip(live.record.places, shares, strict=True)):
                log.debug(
                    "share grant=%s device=%d guarantee_milli=%d limit_milli=%d weight=%d tier=%d",
                    grant_id,
                    place.index,
                    share.guarantee_milli,
                    share.limit_milli,
                    share.weight,
                    share.tier,
                )
                limits = self._hardware.limits(place, share.guarantee_milli, share.limit_milli)
                live.limits.set_device(ordinal, limits)

    def _places(self, grant: str) -> list[Place]:
        return self._state.live(grant).record.places if grant in self._state else []

    def entitle(self, active: frozenset[str]) -> None:
        """Works out what each served grant should get of its devices now: nothing of one that does not work. `active`:
        as in `follow`."""
        on_device: dict[tuple[int, bool], dict[str, Share]] = {}
        for live in self._state:
            for place, share in zip(live.record.places, live.shares, strict=False):  # none before they are computed
                works = place.device not in self._state.faults
                on_device.setdefault((place.index, works), {})[live.id] = share
        for (index, works), here in on_device.items():
            for grant, milli in entitlements(here, active if works else ()).items():
                if (book := self._state.live(grant).books.get(index)) is not None:
                    book.entitled_milli = milli

    def follow(self, active: frozenset[str]) -> None:
        """Refreshes shares when the set of grants that have work changes: what a tenant's idle grants leave goes to
        those of its grants that run."""
        if active != self._active:
            self._active = active
            self.refresh_shares()
