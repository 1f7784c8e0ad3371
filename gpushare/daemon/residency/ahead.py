"""Has memory of idle grants copied to the host ahead of any move: giving it up later costs no copy. Called on the event
loop only; gpushare.policy.residency.idle decides."""

import asyncio
import logging
import time
from collections.abc import Callable

from gpushare.daemon.residency import reports
from gpushare.daemon.residency.protocols import Pool
from gpushare.daemon.residency.reports import ORDINAL
from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.errors import RefusedError
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.residency.idle import Idle, Seen, ahead
from gpushare.policy.residency.states import Where

log = logging.getLogger(__name__)

_LOOKS = 10
"""In the shortest time after which a grant counts as idle, but at most once in 20 ms and at least once a second."""
_LEAST_S, _MOST_S = 0.02, 1.0
_REST = 5
"""Between two looks there are so many times as long as a look takes: any user may say that 0.1 s are idle."""


class Ahead:
    """Also knows which grants are idle, for whoever wants their room."""

    def __init__(self, state: State, residency: Residency, pool: Pool) -> None:
        self._state, self._residency, self._pool = state, residency, pool
        self._idle = Idle()
        self._timer: asyncio.TimerHandle | None = None
        self.looked: Callable[[], None] = lambda: None
        """Called after each look."""

    def start(self) -> None:
        """Looks from now on."""
        self._look_in(_MOST_S)

    def _look_in(self, seconds: float) -> None:
        if self._pool.size_bytes:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _every_s(self) -> float:
        after = [after for live in self._state if live.asked.lends and (after := self.after_ns(live))]
        every = min(after, default=0) / _LOOKS / 1e9 or _MOST_S
        return min(_MOST_S, max(_LEAST_S, every))

    def close(self) -> None:
        """Looks no more; copies stay."""
        if self._timer is not None:
            self._timer.cancel()

    def idle_ns(self, live: Live, now_ns: int) -> int:
        """For how long a grant that lends has done nothing, monotonic time."""
        return self._idle.idle_ns(now_ns, self._seen(live))

    def after_ns(self, live: Live) -> int:
        """After how long it counts as idle; 0: never."""
        return self._state.idle_after_ns(live)

    def is_idle(self, live: Live, now_ns: int) -> bool:
        """Whether it is, by its own rule."""
        after = self.after_ns(live)
        return bool(after) and self.idle_ns(live, now_ns) >= after

    def idle_bytes(self, device_id: str) -> int:
        """Bytes on a device that can be moved, of grants that are idle."""
        now, found = time.monotonic_ns(), 0
        for live in self._state:
            if live.record.places[ORDINAL].device == device_id and self._counts(live) and self.is_idle(live, now):
                found += reports.sums(live).movable_bytes
        return found

    def _look(self) -> None:
        began = time.monotonic_ns()
        try:
            self._copy_ahead(began)
            self.looked()
        finally:
            self._look_in(max(self._every_s(), _REST * (time.monotonic_ns() - began) / 1e9))

    def _copy_ahead(self, now: int) -> None:
        seen = {live.id: self._seen(live) for live in self._state if self._counts(live)}
        self._idle.look(now, seen.values())
        rested = {one.grant: self._idle.idle_ns(now, one) for one in seen.values() if one.after_ns}
        idle = {grant: ns for grant, ns in rested.items() if ns >= seen[grant].after_ns}
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

    def _seen(self, live: Live) -> Seen:
        said = reports.said(live)
        now = live.record.residency
        return Seen(
            grant=live.id,
            work=reports.work(live),
            busy=any(one.inflight or one.waiting for one in said),
            movable_bytes=reports.sums(live).movable_bytes,
            after_ns=self.after_ns(live),
            said_work=live.said_idle_work,
            ahead_bytes=now.reserved_bytes if now.ahead else 0,
        )
