"""What the driver counts for a grant's processes beyond what they were charged goes into the grant's limits page and
counts against its limit. How much that is: gpushare.policy.audit.uncharged."""

from dataclasses import dataclass

from gpushare.daemon.guard.looking import Look, Looking
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.pages import held
from gpushare.policy.audit import uncharged
from gpushare.policy.audit.uncharged import Reading

_LOOK_NS = 90_000_000
"""Least time between two readings: one with every look of the audit would cost twice as much."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the uncharged bytes of one grant on one device, from `known` to `size`. `ordinal`: of the device in
    the grant; `device`: its number."""

    live: Live
    ordinal: int
    device: int
    known: int
    size: int


class Uncharged:
    """Belongs to the event loop."""

    def __init__(self, state: State, looking: Looking) -> None:
        self._state, self._looking = state, looking
        self._policy = uncharged.Uncharged()
        self._books: dict[tuple[str, int], tuple[int, int]] = {}
        """By grant and ordinal: least and most charged bytes at the reading before."""
        self._at_ns = 0

    async def follow(self, look: Look) -> None:
        """Updates all grants' uncharged bytes. `look`: what the driver reports now."""
        if look.at_ns - self._at_ns < _LOOK_NS:
            return
        self._at_ns = look.at_ns
        before, self._books = self._books, {}
        changes = [
            change
            for live in self._state
            for ordinal, place in enumerate(live.record.places)
            if place.index in look.listed
            if (change := self._change(live, ordinal, look, before)) is not None
        ]
        self._policy.keep(self._books)
        await self._looking.compare(look, {one.device for one in changes if one.size > one.known})
        for one in changes:
            if one.live.limits is not None:  # it may have ended meanwhile
                size = one.size if one.size < one.known else max(one.known, one.size - look.twice[one.device])
                one.live.limits.set_uncharged(one.ordinal, size)

    def _change(
        self, live: Live, ordinal: int, look: Look, before: dict[tuple[str, int], tuple[int, int]]
    ) -> _Change | None:
        known, device = live.uncharged(ordinal), live.record.places[ordinal].index
        if not live.record.members:  # the next process has all of the limit
            return _Change(live, ordinal, device, known, 0) if known else None
        pids = [member.pid for member in live.record.members if member.pid in look.listed[device]]
        if live.limits is None or live.usage is None or any((device, pid) not in look.held for pid in pids):
            return None  # the driver does not say
        key = (live.id, ordinal)
        now = self._books[key] = held(live.limits, live.usage, ordinal)
        least, most = before.get(key, now)
        # Each has a context, or the driver would not list it.
        size = sum(look.held[device, pid] for pid in pids) + len(pids) * self._state.devices[device].unlisted_bytes
        found = self._policy.follow(key, Reading(size, min(least, now[0]), max(most, now[1])), known)
        return _Change(live, ordinal, device, known, found) if found != known else None
