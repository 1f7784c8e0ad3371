"""This node's parts of gangs across nodes: policy.preparation decides, this module carries out. Called on the event
loop only. For how the leases of a gang's grants are given, see daemon/state/asked.py.

A part consists of its grants and a row of the ledger. Their changes are written in one transaction, so that the start
after a kill at any moment finds all of a change, or nothing.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from gpushare.api import gangs as types
from gpushare.api.types import GrantRequest, Name
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.grants.gang_parts import GangParts, Key, PartRecord, part_view
from gpushare.daemon.grants.grants import Grants, key_taken, numbered
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import PartOf
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.state.watch import Change
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError, UsageError
from gpushare.policy.grants import lifecycle, preparation
from gpushare.policy.grants.admission import Choice
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.grants.preparation import Preparation, Stage

log = logging.getLogger(__name__)

_OVER_SHOWN = 100
_TOLD: dict[Stage, tuple[Change, Name]] = {
    Stage.PREPARED: ("added", "GangPrepared"),
    Stage.COMMITTED: ("changed", "GangCommitted"),
    Stage.ABORTED: ("removed", "GangAborted"),
    Stage.EXPIRED: ("removed", "GangExpired"),
}


class Preparing:
    """Serves schedulers' requests for parts. Only a part's owner and root can act on it: another user's part of the
    same name is another part."""

    def __init__(self, state: State, grants: Grants, transitions: Transitions, arbiter: Arbiter) -> None:
        self._state, self._grants, self._transitions, self._arbiter = state, grants, transitions, arbiter
        self._parts = GangParts(state.ledger)
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def shown(self, part: PartRecord) -> types.GangPart:
        """A part as it is now."""
        return part_view(part, self._state, self._arbiter)

    def all(self) -> list[types.GangPart]:
        """All parts that hold something, and the latest ended ones."""
        over = [part for part in self._parts if part.life.over][-_OVER_SHOWN:]
        return [self.shown(part) for part in (*(part for part in self._parts if not part.life.over), *over)]

    # What schedulers ask. All of it is durable once Ledger.written has returned.

    def prepare(
        self, peer: Peer, gang: str, asked: types.GangPrepare, members: Mapping[str, bool], asker: str = ""
    ) -> tuple[PartRecord, bool]:
        """Reserves room for all grants of a part, or for none. Returns the part, and whether it is new: the same
        request gives the same part. `members`: by tenant, as Grants.create takes it for each grant.

        Raises what Grants.create does, RefusedError where the part was prepared with another request, and GoneError
        where it was aborted or has expired.
        """
        key = _key(peer, gang, asked.part, asked.uid)
        if not 1 <= asked.ttl_seconds <= types.TTL_SECONDS_MAX:
            raise UsageError(f"ttl_seconds {asked.ttl_seconds} is out of range: give 1 to {types.TTL_SECONDS_MAX}")
        requests = [_owned(request, number, asked.uid) for number, request in enumerate(asked.grants)]
        if (known := self._parts.get(key)) is not None:
            self._become(known, preparation.at(known.life, self._parts.now()))
            if known.life.stage in (Stage.ABORTED, Stage.EXPIRED):
                raise preparation.gone(known.life, known.name)
            if (known.requests, known.ttl_seconds) != (requests, asked.ttl_seconds):
                raise RefusedError(f"{known.name} was prepared with another request: use another id")
            return known, False
        asker = asker or f"gang {gang} {asked.part}"  # equal requests of other gangs wait beside this one's
        chosen = self._choose(peer, requests, members, asker)
        ttl_ns = round(asked.ttl_seconds * self._state.timing.prepared * 1e9)
        life = preparation.prepared(self._parts.now(), ttl_ns)
        part = PartRecord(uid=key[0], of=key[1], requests=requests, ttl_seconds=asked.ttl_seconds, grants=[], life=life)
        with self._state.ledger.together():
            self._reserve(peer, part, chosen, asker)
            self._parts.put(part)
        self._set_timer(part)
        self._tell(part)
        return part, True

    def commit(self, peer: Peer, gang: str, asked: types.GangDecision) -> PartRecord:
        """Commits a part: its grants may be used from now on. A committed part stays as it is. Raises NotFoundError for
        one that was never prepared, and GoneError where it was aborted or has expired."""
        key = _key(peer, gang, asked.part, asked.uid)
        if (part := self._parts.get(key)) is None:
            raise NotFoundError(f"part {asked.part} of gang {gang} is not prepared on this node: prepare it first")
        now = self._parts.now()
        self._become(part, preparation.at(part.life, now))
        self._become(part, preparation.commit(part.life, part.name, now))
        return part

    def abort(self, peer: Peer, gang: str, asked: types.GangDecision) -> PartRecord:
        """Aborts a part: it holds nothing from now on, and cannot be prepared. An unknown part can be aborted too.
        Raises RefusedError where it is committed."""
        key, now, reason = _key(peer, gang, asked.part, asked.uid), self._parts.now(), f"aborted by uid {peer.uid}"
        if (part := self._parts.get(key)) is not None:
            self._become(part, preparation.abort(part.life, part.name, now, reason))
            return part
        part = PartRecord(
            uid=key[0], of=key[1], requests=[], ttl_seconds=0, grants=[], life=preparation.never(now, reason)
        )
        self._parts.put(part)
        return part

    # How a part comes.

    def _choose(
        self, peer: Peer, requests: Sequence[GrantRequest], members: Mapping[str, bool], asker: str
    ) -> list[tuple[Asked, list[Choice]]]:
        """Reads each request and chooses its places, taking into account those of the others."""
        keys, together = set[str](), list[Asked]()
        for number, request in enumerate(requests):
            with numbered(number, several=len(requests) > 1):
                if request.key is not None:
                    if (other := self._grants.known(peer, request)) is not None:
                        raise key_taken(request.key, f"grant {other.id}")
                    if request.key in keys:
                        raise UsageError(f"key {request.key[:80]!r} is taken twice")
                    keys.add(request.key)
                together.append(Asked.of(request, self._state.reclaim_policy))
        return list(zip(together, self._grants.choose(peer, together, members, asker), strict=True))

    def _reserve(self, peer: Peer, part: PartRecord, chosen: Sequence[tuple[Asked, list[Choice]]], asker: str) -> None:
        assert part.life.until is not None
        made: list[Live] = []
        try:
            for asked, choices in chosen:
                made.append(self._grants.prepare(peer, asked, choices, part.of, part.life.until.wall_ns))
        except BaseException:
            for live in made:
                self._transitions.fail(live, f"another grant of {part.name} could not be made")
            raise
        self._grants.served(peer, asker, made)
        part.grants = [live.id for live in made]
        for live in made:
            self._state.decisions.add(
                live.id,
                "prepared",
                "gang",
                f"prepared as {part.name}, which has to be committed within {part.ttl_seconds} s",
            )

    # How it goes on.

    def _become(self, part: PartRecord, life: Preparation) -> None:
        before, part.life = part.life, life
        if life == before:
            return
        with self._state.ledger.together():
            if life.stage is not before.stage:
                for grant in part.grants:
                    if grant in self._state:
                        self._send(self._state.live(grant), part)
            self._parts.put(part)
        self._set_timer(part)
        if life.stage is not before.stage:
            log.debug("gang uid=%d gang=%r part=%r stage=%s", part.uid, part.of.gang, part.of.part, life.stage)
            self._tell(part)

    def _send(self, live: Live, part: PartRecord) -> None:
        reason = f"{part.name} was {part.life.stage}: {part.life.reason}"
        match part.life.stage:
            case Stage.COMMITTED:
                self._transitions.send(live, lifecycle.Committed(now_ns()))
                self._state.decisions.add(live.id, "committed", "gang", f"committed: all of {part.name} may be used")
            case Stage.ABORTED:
                self._transitions.send(live, lifecycle.Release(now_ns(), reason))
            case Stage.EXPIRED:
                self._transitions.send(live, lifecycle.Lapsed(reason))

    def freed(self, live: Live) -> None:
        """Called when a grant has ended, or has other places: a part that lost it may end."""
        part = self._parts.of_grant(live.id) if live.record.phase.ended else None
        if part is None:
            return
        others = [grant for grant in part.grants if grant in self._state]
        if part.life.stage is Stage.PREPARED or not others:
            why = f"grant {live.id} {live.record.phase}: {live.record.life.reason}"
            self._become(part, preparation.lost(part.life, self._parts.now(), why))

    def _set_timer(self, part: PartRecord) -> None:
        timer = self._timers.pop(part.key, None)
        if timer is not None:
            timer.cancel()
        if part.life.stage is Stage.PREPARED and part.life.until is not None:
            delay = part.life.until.left_ns(self._parts.now()) / 1e9
            self._timers[part.key] = asyncio.get_running_loop().call_later(delay, self._clock, part)

    def _clock(self, part: PartRecord) -> None:
        self._become(part, preparation.at(part.life, self._parts.now()))
        self._set_timer(part)  # the loop's timers may be early: then it is set again

    def _tell(self, part: PartRecord) -> None:
        change, name = _TOLD[part.life.stage]
        self._state.watch.publish("gang", change, lambda _: self.shown(part), name)

    # Across restarts of the daemon.

    def adopt(self) -> None:
        """Called at start, after the ledger's grants were adopted: each part goes on, or ends where it cannot."""
        self._parts.read()
        for part in self._parts:
            try:
                self._adopt(part)
            except Exception:
                log.exception("%s of uid %d is not taken over", part.name, part.uid)
        for live in self._state:
            if live.record.phase is Phase.PREPARED and self._parts.of_grant(live.id) is None:
                self._transitions.fail(live, "nothing is known of the gang that it was prepared for")

    def _adopt(self, part: PartRecord) -> None:
        now = self._parts.now()
        there = [grant for grant in part.grants if grant in self._state]
        match part.life.stage:
            case Stage.PREPARED if there != part.grants:
                lost = len(part.grants) - len(there)
                self._become(part, preparation.lost(part.life, now, f"{lost} of its grants were lost"))
            case Stage.PREPARED:
                self._become(part, preparation.resumed(part.life, now))
                self._set_timer(part)
            case Stage.COMMITTED if not there:
                self._become(part, preparation.lost(part.life, now, ""))

    def close(self) -> None:
        """Called when the daemon stops: what is prepared stays, and the next start goes on with it."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


def _key(peer: Peer, gang: str, part: str, uid: int | None) -> Key:
    """The key of a part. Raises UsageError for invalid names, ForbiddenError where another user is named."""
    for name, text in (("a gang's id", gang), ("a part's name", part)):
        if not (1 <= len(text) <= types.NAME_MAX and text.isprintable()):
            raise UsageError(f"{name} has 1 to {types.NAME_MAX} printable characters, not {len(text)}: use another")
    if uid is not None and uid != peer.uid and not peer.is_root:
        raise ForbiddenError(f"only root may do this for uid {uid}: leave uid out")
    return peer.uid if uid is None else uid, PartOf(gang, part)


def _owned(request: GrantRequest, number: int, uid: int | None) -> GrantRequest:
    if request.uid is not None:
        raise UsageError(f"grants[{number}] has a uid of its own: give it beside them, once for the part")
    return msgspec.structs.replace(request, uid=uid) if uid is not None else request
