"""The engine of the rung `demote`: memory that a grant has on loan is given back by moving it to host memory."""

import asyncio
from collections.abc import Callable

from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state.live import Live
from gpushare.errors import CannotMoveError
from gpushare.policy.residency.states import By

_LONGEST_NS = 3600 * 10**9
"""Residency has a deadline for each move, by its bytes, and says so when it is over."""


class Demote:
    """An Engine of gpushare.daemon.grants.evictions."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self.limit_ns = _LONGEST_NS

    def start(self, live: Live, cannot: Callable[[str], None]) -> None:
        """See Engine."""
        try:
            self._residency.suspend(live, By.RUNG, cannot=cannot)
        except CannotMoveError as error:
            asyncio.get_running_loop().call_soon(cannot, str(error))
