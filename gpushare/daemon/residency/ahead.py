"""Has memory of idle grants copied to the host ahead of any move: giving it up later costs no copy. Called on the event
loop only; gpushare.policy.residency.idle decides."""

import asyncio
import logging
import time

from gpushare.daemon.residency import reports
from gpushare.daemon.residency.reports import ORDINAL
from gpushare.daemon.residency.residency import Pool, Residency
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.errors import RefusedError
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.residency.idle import Idle, Seen, ahead
from gpushare.policy.residency.residency import Where

log = logging.getLogger(__name__)

_LOOKS = 10
"""In the time after which a grant counts as idle."""


class Ahead:
    """`after_s`: a grant whose programs did nothing for so long is idle; 0: none ever is."""

    def __init__(self, state: State, residency: Residency, pool: Pool, after_s: float) -> None:
        self._state, self._residency, self._pool = state, residency, pool
        self._idle, self._every_s = Idle(round(after_s * 1e9)), after_s / _LOOKS
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Looks from now on."""
        if self._every_s and self._pool.size_bytes:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def close(self) -> None:
        """Looks no more; copies stay."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        seen = {live.id: _seen(live) for live in self._state if self._counts(live)}
        idle = self._idle.look(time.monotonic_ns(), seen.values())
        other = self._pool.size_bytes - self._pool.free_bytes - sum(one.ahead_bytes for one in seen.values())
        changes = ahead(idle, seen.values(), self._pool.size_bytes, other)
        for grant, size in sorted(changes.items(), key=lambda change: change[1]):
            try:
                self._residency.copy_ahead(self._state.live(grant), size)
            except RefusedError as refusal:
                log.info("memory of grant %s is not copied ahead: %s", grant, refusal)

    def _counts(self, live: Live) -> bool:
        now = live.record.residency
        runs = live.record.phase is Phase.ACTIVE or now.ahead  # copies of one whose processes have ended are to go
        return live.asked.lends and runs and now.where is Where.RESIDENT


def _seen(live: Live) -> Seen:
    said = [live.usage.usage(member.slot, ORDINAL) for member in live.record.members] if live.usage is not None else []
    now = live.record.residency
    return Seen(
        grant=live.id,
        work=sum(one.launches for one in said),
        busy=any(one.inflight or one.waiting for one in said),
        movable_bytes=reports.sums(live).movable_bytes,
        ahead_bytes=now.reserved_bytes if now.ahead else 0,
    )
