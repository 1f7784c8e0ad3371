"""How long grants waited for their devices in this run of the daemon, from which the wait of a new grant is
estimated."""

import time
from collections.abc import Iterable

from gpushare.arbiter import Arbiter
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.policy.grants.admission import Place
from gpushare.policy.usage.waits import Waited

_KEPT_SECONDS = 1.0

_Key = tuple[int, bool]
"""A device, and whether the grant borrows there."""


class WaitHistory:
    """Two histograms per device: of grants whose time is guaranteed, and of those that borrow."""

    def __init__(self, state: State, arbiter: Arbiter) -> None:
        self._state, self._arbiter = state, arbiter
        self._ended: dict[_Key, Waited] = {}
        self._all: dict[_Key, Waited] = {}
        self._at = -_KEPT_SECONDS

    def ends(self, live: Live) -> None:
        """Keeps the waits of a grant that the arbiter is about to forget."""
        self._add(self._ended, live)

    def of(self, places: Iterable[Place]) -> Waited:
        """Waits of all grants of the same kind on these devices, at most a second old: with many grants it takes
        milliseconds to look through them."""
        now = time.monotonic()
        if now - self._at >= _KEPT_SECONDS:
            self._at, self._all = now, {}
            for key, waited in self._ended.items():
                self._all.setdefault(key, Waited()).add(waited.buckets, waited.longest_ns)
            for live in self._state:
                self._add(self._all, live)
        found = Waited()
        for place in places:
            if (here := self._all.get((place.index, place.borrows))) is not None:
                found.add(here.buckets, here.longest_ns)
        return found

    def _add(self, to: dict[_Key, Waited], live: Live) -> None:
        if live.handle is None:
            return
        for place in live.record.places:
            waited = self._arbiter.grant_stats(live.handle, place.index).waited
            if waited.count:
                to.setdefault((place.index, place.borrows), Waited()).add(waited.buckets, waited.max_ns)
