"""Who waits for room on devices, in the order in which they are served: what room is made for one, nobody else is given
meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpushare.daemon.grants.loans import Back, Together, Wanted, bytes_of, key_back, put
from gpushare.daemon.residency.reports import ORDINAL
from gpushare.daemon.state import placement
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Promises
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.policy.residency import room as policy
from gpushare.policy.residency.room import Want

WANTS_MAX, WANTS_OF_USER = 64, 16
"""More requests than that, and more of one user who is not root, are not remembered: they are refused as if nothing
could be moved."""


@dataclass(slots=True)
class Waiting:
    """A want with what was done for it. `asked_ns`: when it was last asked for. `uid`: of who made the request.
    `leaving`: grants that were told to leave for it and have not left yet. `made`: there is room for it, or will be
    once those have left. `until_ns`: when more may leave."""

    want: Want
    wanted: Wanted
    asked_ns: int
    uid: int = 0
    leaving: set[str] = field(default_factory=set)
    made: bool = False
    until_ns: int | None = None


class Wants:
    """`wanted`: by key, as gpushare.daemon.grants.loans.Node takes them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting: dict[str, Waiting] = {}
        self.wanted: dict[str, Wanted] = {}

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._waiting.values()))

    def of_request(self, key: str, uid: int, wanted: Together, now: int) -> Waiting | None:
        """The want of a user's request, remembered from now on; None: too many are."""
        if (known := self._waiting.get(key)) is None:
            requests = [one.uid for one in self._waiting.values() if isinstance(one.wanted, Together)]
            if len(requests) >= WANTS_MAX or (uid and requests.count(uid) >= WANTS_OF_USER):
                return None
            known = self._remember(replace(self.draft(key, wanted, now), uid=uid))
        known.asked_ns = now
        return known

    def of_grant(self, live: Live, now: int, *, turns: bool) -> Waiting:
        """The want of a suspended grant, remembered from now on. `turns`: it may take turns with others that work."""
        place, key = live.record.places[ORDINAL], key_back(live)
        known = self._waiting.get(key)
        since = now if known is None else known.want.since_ns
        guaranteed = place.memory_bytes - place.borrowed_bytes
        want = Want(key, not place.borrowed_bytes, place.hosted_bytes, since, guaranteed, turns)
        if known is None:
            return self._remember(Waiting(want, Back(live), now))
        known.want, known.asked_ns = want, now
        return known

    def draft(self, key: str, wanted: Together, now: int) -> Waiting:
        """The want of a request, not remembered."""
        most = max((device.memory_bytes for device in self._state.devices), default=0)
        size = sum(bytes_of(asked.memory, most) for asked in wanted.asked)
        borrow = sum(bytes_of(asked.borrow, most) for asked in wanted.asked)
        lends = all(asked.lends for asked in wanted.asked)
        return Waiting(Want(key, not borrow, size, now, max(0, size - borrow), lends), wanted, now)

    def _remember(self, waiting: Waiting) -> Waiting:
        self._waiting[waiting.want.key] = waiting
        self.wanted[waiting.want.key] = waiting.wanted
        return waiting

    def forget(self, key: str) -> None:
        """It is served, or nobody wants it any more."""
        self._waiting.pop(key, None)
        self.wanted.pop(key, None)

    def before(self, key: str, want: Want | None = None, *, later: bool = False) -> list[Waiting]:
        """Those that are served before the want with this key, in order. `want`: where that is not remembered. `later`:
        also borrowers for which nobody has left yet but somebody will: nobody leaves for others before."""
        own = known.want if (known := self._waiting.get(key)) is not None else want
        found = [one for one in self._waiting.values() if one.want.key != key and _goes_before(one, own, later=later)]
        order = policy.in_order(one.want for one in found)
        return [self._waiting[want.key] for want in order]

    def promises(self, key: str) -> Promises:
        """What is placed for a want is placed beside: the grants that are there, and the wants before it."""
        if not (before := self.before(key)):
            return self._state.promises
        draft = self._state.promises.copy()
        for one in before:
            self._count(draft, one)
        return draft

    def _count(self, draft: Promises, one: Waiting) -> None:
        try:
            put(self._state, draft, one.want.key, one.wanted)
        except GpushareError:
            if isinstance(one.wanted, Back) and one.want.owner:
                # What has come free of its room is its own until the rest has.
                live = one.wanted.live
                [place] = live.record.places
                left = place.hosted_bytes - max(0, placement.free_on(draft, place.device))
                draft.put(live.id, live.asked, [replace(place, hosted_bytes=max(0, left))])


def _goes_before(one: Waiting, own: Want | None, *, later: bool) -> bool:
    if not one.want.owner and not one.made and not (later and one.until_ns is not None):
        return False  # what is free now is too little for it, and for whoever can use it
    return own is None or policy.in_order([one.want, own])[0] is one.want
