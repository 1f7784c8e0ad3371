"""What each grant had in the last second, and what follows from it for shares."""

import logging
import time

from gpushare.daemon.accounts.explaining import Explaining
from gpushare.daemon.accounts.host_calls import HostCounts
from gpushare.daemon.accounts.refusals import MemoryRefusals
from gpushare.daemon.grants import view
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.state.books import Sample, active, shares_got
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.policy.quota.shares import DEVICE_MILLI

log = logging.getLogger(__name__)


class Measuring:
    """Belongs to the event loop."""

    def __init__(
        self,
        state: State,
        serving: Serving,
        transitions: Transitions,
        explaining: Explaining,
        refusals: MemoryRefusals,
        host_counts: HostCounts,
    ) -> None:
        self._refusals, self._host_counts = refusals, host_counts
        self._state, self._serving, self._transitions, self._explaining = state, serving, transitions, explaining
        self._at_ns = time.monotonic_ns()

    def measure(self, samples: list[Sample]) -> None:
        """Works out what each served grant had since the last call, from the present counters; once a second."""
        working = active(samples)
        self._serving.follow(working)
        self._serving.entitle(working)
        before, self._at_ns = self._at_ns, time.monotonic_ns()
        wall_ns = self._at_ns - before
        self._explaining.follow(samples, working, wall_ns)
        shares_got(samples, wall_ns)
        self._state.measured += 1
        self._remember(wall_ns / 1e9)
        for live in self._state:
            if live.usage is not None and live.usage.torn:
                self._transitions.fail(live, "its usage page was truncated")
                continue
            self._host_counts.look(live, works=live.id in working)
            if self._refusals.look(live):
                self._state.save(live.record)
                self._transitions.publish(live, "changed", "MemoryRefused")

    async def recall(self) -> None:
        """Reads what tenants borrowed before this start, if that is to count."""
        state = self._state
        if state.history.factor:
            try:
                await state.history.recall(state.ledger, state.promises.now.policies, DEVICE_MILLI * len(state.devices))
            except GpushareError as error:
                log.warning("what tenants borrowed before this start does not count: %s", error)

    def _remember(self, seconds: float) -> None:
        """Adds what each tenant borrowed since the last call, if that is to count."""
        history, policies = self._state.history, self._state.promises.now.policies
        if history.factor and history.follow(view.tenants_now(self._state), policies, seconds):
            self._serving.refresh_shares()
