"""Makes room on devices: has memory of grants that do nothing moved to host memory when others want room, and lets
borrowers take turns. gpushare.policy.residency.room decides; what borrowers who work have is asked for by
daemon/grants/evictions.py. Called on the event loop only.

Wants are remembered in the order in which they are to be served: what a want's turn has come for, nobody else is given
meanwhile. A restarted daemon knows of no wants of requests: whoever still waits asks again.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from gpushare.api.plan import Victim
from gpushare.api.types import Name
from gpushare.daemon.grants.evictions import Evictions
from gpushare.daemon.grants.loans import Back, Node, Together, Wanted, key_back, key_of, names, on_loan
from gpushare.daemon.grants.pressure import Pressures
from gpushare.daemon.grants.wants import Waiting, Wants
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.residency import reports
from gpushare.daemon.residency.ahead import Ahead
from gpushare.daemon.residency.reports import ORDINAL
from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Promises
from gpushare.daemon.state.state import State, now_ns
from gpushare.errors import CannotMoveError, MakingRoomError, RefusedError
from gpushare.node.devices import Device
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.residency import room as policy
from gpushare.policy.residency.room import Leave, Link, Resident, Short, Why
from gpushare.policy.residency.states import By, Where
from gpushare.text.units import format_size

log = logging.getLogger(__name__)

_NEVER_NS = 1 << 62
_REMEMBERED_NS = 30 * 10**9
"""For so long a request is remembered that is not made again, beyond the time in which others leave for it."""
_STAYS_NS = 10 * 10**9
"""For so long nobody asks for the memory of a grant again that could not leave."""
_LEAVES_NS, _SLOWER = 2 * 10**9, 4
"""What is leaving takes as long as other moves, on a link that others use, too."""
_SOONEST_S = 0.01
_REST, _REST_MOST_S = 5, 1.0
"""All wants are not looked at again for as many times as long as that took, by themselves."""
_MOVING_NS = 10**9
"""After so long a request is made again that found others in motion."""
_BY = {Why.IDLE: By.WANT, Why.TURN: By.TURN}


class Room:
    """A gpushare.daemon.residency.protocols.Recall. `links`: by id of the device."""

    def __init__(
        self,
        state: State,
        residency: Residency,
        ahead: Ahead,
        evictions: Evictions,
        publish: Callable[[Device, Name], object],
    ) -> None:
        self._state, self._residency, self._ahead, self._evictions = state, residency, ahead, evictions
        self._wants = Wants(state)
        self._node = Node(state, self._wants.wanted, all_leaving=True)
        self._since: dict[str, int] = {}
        """Since when the memory of grants is on their devices, where it has been away."""
        self._stays: dict[str, int] = {}
        """Until when grants are left alone that could not leave."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._rest_s = 0.0
        """For so long all wants are not looked at again."""
        self.links = {device.id: Link() for device in state.devices}
        self._pressures = Pressures(state, publish, self.links)
        evictions.served_first(self._served_first)

    def close(self) -> None:
        """Nobody is told to leave any more."""
        self._closed = True
        self._stop_timer()

    # What requests do.

    def promises(self, peer: Peer, wanted: Together, asker: str) -> Promises:
        """What a request is placed beside."""
        return self._wants.promises(key_of(peer, wanted, asker))

    def refused(self, peer: Peer, wanted: Together, asker: str, refusal: RefusedError) -> RefusedError:
        """Returns the answer to a request that does not fit: the refusal itself, or that room is being made."""
        if type(refusal) is not RefusedError or self._closed:
            return refusal
        key, now = key_of(peer, wanted, asker), time.monotonic_ns()
        behind = bool(self._wants.before(key))
        if behind:
            refusal = RefusedError(f"{refusal}, less what is kept for others who asked before")
        waiting = self._wants.of_request(key, peer.uid, wanted, now)
        if waiting is None:
            return self._evictions.refused(peer, wanted, asker, refusal)
        self._act(waiting, now)
        if behind and waiting.want.turns and waiting.until_ns is None:
            waiting.until_ns = now + policy.NEXT_NS  # its turn comes when those have had theirs
        if not waiting.made:
            answer = self._evictions.refused(peer, wanted, asker, refusal)
            if waiting.until_ns is None and self._others_move(waiting):
                waiting.until_ns = now + _MOVING_NS
            if waiting.until_ns is None or type(answer) is not RefusedError:
                self._wants.forget(key)
                return answer
        estimate = self._estimate_ns(waiting, now) / 1e9
        return MakingRoomError(f"{refusal}; {self._said(waiting, now)}: ask again until then", estimate)

    def _others_move(self, waiting: Waiting) -> bool:
        """Whether it would fit if grants left that are on their way out or in now, or are about to begin: when they are
        there, or away, it is known when its turn is."""
        there = {device for devices in self._devices(waiting) for device in devices}
        lend = [live for live in self._state if _device(live) in there and live.asked.lends]
        moving = {live.id for live in lend if live.record.residency.where in (Where.SUSPENDING, Where.RESUMING)}
        borrow = {live.id for live in lend if live.record.places[ORDINAL].borrowed_bytes}
        begin = any(one.want.turns for one in self._wants.before(waiting.want.key))
        return (
            waiting.want.turns and (begin or bool(moving)) and self._node.fits([waiting.want.key], (), moving | borrow)
        )

    def admitted(self, peer: Peer, asker: str, lives: Sequence[Live]) -> None:
        """Called when a request got what it wanted: all these grants."""
        if self._wants.wanted or self._state.recalls.wants:
            key = key_of(peer, Together(tuple(live.asked for live in lives)), asker)
            self._wants.forget(key)
            self._evictions.admitted(key, lives)

    def planned(self, asked: Asked) -> tuple[list[Live], int]:
        """The grants whose memory would be moved now for a request that does not fit, and how many ns that would take;
        none where that is not enough."""
        now = time.monotonic_ns()
        wanted = self._wants.wanted["plan"] = Together((asked,))
        try:
            found = self._decide(self._wants.draft("plan", wanted, now), now)
        finally:
            del self._wants.wanted["plan"]
        if not isinstance(found, Leave):
            return [], 0
        grants = [self._state.live(grant) for grant, _ in found.grants]
        return grants, max(self._leaves_ns(live) for live in grants)

    def victims(self, asked: Asked) -> list[Victim]:
        """As Evictions.victims."""
        return self._evictions.victims(asked)

    # What suspended grants do.

    def hinders(self, live: Live) -> tuple[str, bool]:
        """Called, again and again, with a suspended grant that wants its room back: why it has to wait, in words;
        empty: there is room, and it is its turn. And whether others are still leaving it."""
        now = time.monotonic_ns()
        waiting = self._wants.of_grant(live, now, turns=not self._pressures.is_parked(live))
        promises, size = self._wants.promises(waiting.want.key), waiting.want.size
        early = size > placement.free_on(promises, _device(live))
        try:
            placement.bring_back(live, promises, self._leaving(_device(live)))
            if early and not self._node.fits(self._keys(waiting), ()):
                raise RefusedError("what others are leaving is for those who asked before")  # noqa: TRY301
        except RefusedError as refusal:
            return f"{refusal}; {self._make_way(waiting, live, now)}", False
        if not waiting.want.owner and self._state.recalls.open:
            return "it had its memory on loan, which is wanted by its owner now", False
        return "", early

    def leaves_ns(self, live: Live) -> int:
        """How long the memory of a grant takes to leave at most, once it does, beside others that leave its device; 0:
        not known."""
        if not self.links[_device(live)].seen:
            return 0
        there = (one for one in self._state if _leaves(one) and _device(one) == _device(live))
        return _LEAVES_NS + _SLOWER * sum(map(self._leaves_ns, there))

    def _leaving(self, device: str) -> int:
        """Bytes that are on their way out of a device: who comes back may begin to come in, piece by piece. None while
        a grant there that keeps its memory has not taken all it may: who comes in could have that room first, and its
        allocations do not wait."""
        there = [live for live in self._state if _device(live) == device]
        if any(not live.asked.lends and reports.free(live) for live in there):
            return 0
        leaving = [live.record for live in there if _leaves(live) and live.record.residency.leaving]
        return sum(min(one.residency.hosted_bytes, one.places[ORDINAL].memory_bytes) for one in leaving)

    def _make_way(self, waiting: Waiting, live: Live, now: int) -> str:
        idle = self._act(waiting, now)
        if waiting.leaving or not waiting.want.owner:
            return self._said(waiting, now)
        if waiting.until_ns is not None and waiting.until_ns - waiting.want.since_ns <= self._patience_ns(live):
            return self._said(waiting, now)
        # Owners have back what borrowers have who work, less what idle grants can give.
        words = self._evictions.wanted_back(live, idle)
        keys, gone = self._keys(waiting), self._evictions.asked_for(waiting.want.key)
        needed = list(idle) if gone else []
        for grant in reversed(idle):
            if grant in needed and self._node.fits(keys, gone, [other for other in needed if other != grant]):
                needed.remove(grant)
        for grant in needed:
            self._leave(waiting, self._state.live(grant), Why.IDLE)
        return words

    def _patience_ns(self, live: Live) -> int:
        """How long an owner waits for others to be idle, so that no borrower who works has to leave: half of what that
        would take."""
        loans = [other for other in self._state if _device(other) == _device(live) and on_loan(other)]
        return min((self._leaves_ns(other) for other in loans), default=0) // 2

    def is_back(self, live: Live) -> None:
        """Called with a grant that wants no room back any more."""
        self._wants.forget(key_back(live))
        self._evictions.is_back(live)

    def moved(self, live: Live, size: int, ns: int) -> None:
        """Called with a grant of which `size` bytes have come back to its device in `ns`."""
        self._since[live.id] = time.monotonic_ns()
        self.links[_device(live)].moved(size, ns)

    def looked(self) -> None:
        """Called when it is known anew which grants are idle."""
        waits = (one.wanted.live for one in self._wants if isinstance(one.wanted, Back) and not one.want.owner)
        self._pressures.looked(time.monotonic_ns(), {_device(live) for live in waits})
        self._retry()

    # What is done for them.

    def _act(self, waiting: Waiting, now: int) -> tuple[str, ...]:
        """Has as many grants leave as this want needs, if so many can. Otherwise returns those that are idle."""
        waiting.leaving, waiting.until_ns, waiting.made = set(), None, False
        found = self._decide(waiting, now)
        if isinstance(found, Leave):
            for grant, why in found.grants:
                self._leave(waiting, self._state.live(grant), why)
            waiting.made = len(waiting.leaving) == len(found.grants)
            return ()
        waiting.until_ns = found.until_ns
        self._set_timer(now)
        return found.idle

    def _decide(self, waiting: Waiting, now: int) -> Leave | Short:
        keys = self._keys(waiting)
        if self._node.fits(keys, ()):
            there = {device for devices in self._devices(waiting) for device in devices}
            waiting.leaving = {live.id for live in self._state if _leaves(live) and _device(live) in there}
            waiting.made = True
            return Short()
        borrowers = [one.want for one in self._wants if not one.want.owner] or [waiting.want]
        sizes = {device.id: device.memory_bytes for device in self._state.devices}
        best = Short()
        for devices in self._devices(waiting):
            residents = [one for device in devices for one in self._residents(device, now)]
            size, link = sum(sizes[device] for device in devices), self.links[devices[0]]
            room = policy.Fits(self._enough(keys), self._enough(self._keys(waiting, devices)))
            found = policy.make_room(waiting.want, borrowers, residents, room, now, size, link)
            if isinstance(found, Leave):
                return found
            if best.until_ns is None or (found.until_ns is not None and found.until_ns < best.until_ns):
                best = found
        return best

    def _enough(self, keys: list[str]) -> Callable[[frozenset[str]], bool]:
        return functools.cache(lambda away: self._node.fits(keys, (), away))

    def _keys(self, waiting: Waiting, devices: Collection[str] = ()) -> list[str]:
        """The keys of the wants that are served before this one, and its own. `devices`: also of those whose turn is to
        come on one of these."""
        before = self._wants.before(waiting.want.key, waiting.want, later=bool(devices))
        there = (one.want.key for one in before if one.made or one.want.owner or self._is_on(one, devices))
        return [*there, waiting.want.key]

    def _is_on(self, waiting: Waiting, devices: Collection[str]) -> bool:
        return any(device in devices for some in self._devices(waiting) for device in some)

    def _served_first(self, key: str) -> Iterator[tuple[str, Wanted]]:
        """The owners' wants that are served before this one, by room that is made for them."""
        return ((one.want.key, one.wanted) for one in self._wants.before(key) if one.want.owner and one.made)

    def _leave(self, waiting: Waiting, live: Live, why: Why) -> None:
        def stays(reason: str) -> None:
            if live.record.residency.where is Where.SUSPENDED and not live.record.residency.back:
                return  # all that can be moved has left
            log.info("grant %s does not leave for %s: %s", live.id, waiting.want.key[:80], reason)
            self._stays[live.id] = time.monotonic_ns() + _STAYS_NS
            self._retry()

        try:
            self._residency.suspend(live, _BY[why], cannot=stays)
        except CannotMoveError as error:
            log.info("grant %s does not leave: %s", live.id, error)
            self._stays[live.id] = time.monotonic_ns() + _STAYS_NS
        else:
            waiting.leaving.add(live.id)

    def _devices(self, waiting: Waiting) -> list[list[str]]:
        """The sets of devices on any of which the want could have its room."""
        if isinstance(waiting.wanted, Back):
            return [[_device(waiting.wanted.live)]]
        each = [device.id for device in self._state.devices if self._pressures.takes_loans(device.id)]
        one = sum(asked.request.devices for asked in waiting.wanted.asked) == 1
        return [[device] for device in each] if one else [each] * bool(each)

    def _residents(self, device: str, now: int) -> Iterator[Resident]:
        for live in self._state:
            place = live.record.places[ORDINAL]
            if place.device != device or not self._can_leave(live, now):
                continue
            sums = reports.sums(live)
            if not sums.movable_bytes and not reports.free(live):
                continue
            yield Resident(
                grant=live.id,
                size=sums.movable_bytes,
                dirty=sums.movable_bytes - sums.clean_bytes,
                borrowed=place.borrowed_bytes,
                guaranteed=place.memory_bytes - place.borrowed_bytes,
                idle_ns=self._ahead.idle_ns(live, now),
                after_ns=self._ahead.after_ns(live) or _NEVER_NS,
                since_ns=self._since_ns(live, now),
                training=live.asked.request.class_ == "training",
            )

    def _can_leave(self, live: Live, now: int) -> bool:
        if not live.asked.lends or live.record.phase is not Phase.ACTIVE:
            return False
        return live.record.residency.where is Where.RESIDENT and self._stays.get(live.id, 0) <= now

    def _since_ns(self, live: Live, now: int) -> int:
        """Since when its memory is on its device."""
        return self._since.get(live.id, now - max(0, now_ns() - live.record.created_ns))

    # What is said of it, and when it is looked at again.

    def _leaves_ns(self, live: Live) -> int:
        sums = reports.sums(live)
        return self.links[_device(live)].copy_ns(sums.movable_bytes - sums.clean_bytes)

    def _estimate_ns(self, waiting: Waiting, now: int) -> int:
        return self._left_ns(waiting) + max(0, (waiting.until_ns or now) - now)

    def _left_ns(self, waiting: Waiting) -> int:
        """How long those take that were told to leave for it."""
        leaving = (self._state.live(grant) for grant in waiting.leaving if grant in self._state)
        return max(map(self._leaves_ns, leaving), default=0)

    def _said(self, waiting: Waiting, now: int) -> str:
        """Where the want is, in words."""
        seconds = f"about {self._estimate_ns(waiting, now) / 1e9:.1f} s"
        if waiting.leaving:
            leaving = [self._state.live(grant) for grant in sorted(waiting.leaving) if grant in self._state]
            size = format_size(sum(reports.sums(live).movable_bytes for live in leaving))
            return f"{size} of {names(live.id for live in leaving)} move to host memory for it, in {seconds}"
        if waiting.until_ns is not None:
            return f"others can make room in {seconds}"
        return "there is room now" if waiting.made else "nobody has memory there that could be moved now"

    def _retry(self) -> None:
        now = time.monotonic_ns()
        self._retry_all(now)
        self._rest_s = min(_REST_MOST_S, _REST * (time.monotonic_ns() - now) / 1e9)
        self._set_timer(now)

    def _retry_all(self, now: int) -> None:
        for known in (self._since, self._stays):
            for grant in [grant for grant in known if grant not in self._state]:
                del known[grant]
        for waiting in self._wants:
            if isinstance(waiting.wanted, Back):
                self._residency.looked(waiting.wanted.live)
            elif now >= waiting.asked_ns + _REMEMBERED_NS + self._left_ns(waiting):
                self._wants.forget(waiting.want.key)
            else:
                self._act(waiting, now)

    def _set_timer(self, now: int) -> None:
        self._stop_timer()
        until = [one.until_ns for one in self._wants if one.until_ns is not None]
        if until and not self._closed:
            delay = max(_SOONEST_S, self._rest_s, (min(until) - now) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay, self._retry)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _device(live: Live) -> str:
    return live.record.places[ORDINAL].device


def _leaves(live: Live) -> bool:
    return live.record.residency.where is Where.SUSPENDING
