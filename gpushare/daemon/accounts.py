"""The ledger's periods of all served grants: the arbiter's counters are read here and written there."""

import logging

from gpushare.arbiter import Arbiter
from gpushare.daemon import placement
from gpushare.daemon.books import Sample, periods
from gpushare.daemon.state import State, instant
from gpushare.errors import FailedError

log = logging.getLogger(__name__)


class Accounts:
    """Reads the counters of every served grant and ends the ledger's periods."""

    def __init__(self, state: State, arbiter: Arbiter) -> None:
        self._state, self._arbiter = state, arbiter

    def samples(self) -> list[Sample]:
        """One per served grant and device, with the counters of this moment."""
        found = []
        kept = placement.standing(self._state).kept
        for live in self._state:
            if live.handle is None:
                continue
            for place in live.record.places:
                book = live.books.get(place.index)
                if book is not None:
                    stats = self._arbiter.grant_stats(live.handle, place.index)
                    guarantee = kept[live.id, place.device]
                    found.append(Sample(live.id, live.record.tenant, place.device, place.index, guarantee, book, stats))
        return found

    def write_periods(self) -> None:
        """Ends the current period of every served grant and begins the next; a ledger that fails is only logged."""
        try:
            self._state.ledger.add(periods(self.samples(), instant()))
        except FailedError as error:
            log.warning("%s", error)
