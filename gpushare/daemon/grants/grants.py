"""What users and engines ask of grants: create, bind, start, resize, release. Called on the event loop only.

A request is checked whole before anything happens; daemon/grants/transitions.py then carries it out.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from socket import socket

from gpushare.api.types import TTL_SECONDS, BindRequest, GrantChange, GrantRequest
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.grants.loans import Together
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.room import Room
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.guard.walls import Walls
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord, PartOf, WorkloadRecord
from gpushare.daemon.state.state import Refusal, State, now_ns
from gpushare.daemon.workloads import workloads
from gpushare.errors import ForbiddenError, GpushareError, RefusedError, UsageError
from gpushare.policy.grants import lifecycle
from gpushare.policy.grants.admission import Choice
from gpushare.policy.grants.lifecycle import Kind, Phase

log = logging.getLogger(__name__)


def key_taken(key: str, by: str) -> RefusedError:
    """The refusal of a request whose key another request has taken."""
    return RefusedError(f"key {key[:80]!r} is taken by {by} with another request: use another key")


@contextlib.contextmanager
def numbered(number: int, *, several: bool) -> Iterator[None]:
    """An error within says which of several requests it is of."""
    try:
        yield
    except GpushareError as error:
        if several:
            error.args = (f"grants[{number}]: {error}",)
        raise


def _owner(peer: Peer, request: GrantRequest) -> int:
    return peer.uid if request.uid is None else request.uid


def _new_id() -> str:
    return f"g-{secrets.token_hex(6)}"


def _ttl_ns(request: GrantRequest) -> int | None:
    if request.ttl_seconds is None and request.keep:
        return None
    return (request.ttl_seconds or TTL_SECONDS) * 1_000_000_000


class Grants:
    """Methods that take a peer raise ForbiddenError where the grant belongs to another user."""

    def __init__(
        self,
        state: State,
        resources: Resources,
        serving: Serving,
        transitions: Transitions,
        arbiter: Arbiter,
        room: Room,
        walls: Walls,
    ) -> None:
        self._walls = walls
        self._state, self._resources, self._serving = state, resources, serving
        self._transitions, self._arbiter, self._room = transitions, arbiter, room

    def owned(self, peer: Peer, grant_id: str) -> Live:
        """A living grant of this peer's user; root owns all. Raises NotFoundError or ForbiddenError."""
        live = self._state.live(grant_id)
        if not peer.is_root and peer.uid != live.record.uid:
            raise ForbiddenError(
                f"grant {grant_id} belongs to uid {live.record.uid}: only that user or root may do this"
            )
        return live

    def known(self, peer: Peer, request: GrantRequest) -> Live | None:
        """The living grant that has the request's key. Raises RefusedError where that grant was asked for by a
        different request."""
        if request.key is None or (existing := self._state.by_key(_owner(peer, request), request.key)) is None:
            return None
        if existing.record.request != request:
            raise key_taken(request.key, f"grant {existing.id}")
        return existing

    def create(self, peer: Peer, request: GrantRequest, *, member: bool = False, asker: str = "") -> tuple[Live, bool]:
        """Returns the grant, and whether it is new: the same key and the same request give the same grant. `member`: as
        Tenants.named_by takes it. `asker`: distinguishes waiting requests of one user for the same thing.

        Raises UsageError, NotFoundError, ForbiddenError or RefusedError for a request that cannot be granted,
        OnLoanError for one that can be once others have given back memory that it is guaranteed, and FailedError where
        its files cannot be made.
        """
        if (existing := self.known(peer, request)) is not None:
            return existing, False
        asked = Asked.of(request, self._state.reclaim_policy)
        [choices] = self.choose(peer, [asked], {asked.tenant: member}, asker)
        now = now_ns()
        life, steps = lifecycle.begin(now, _new_id(), _ttl_ns(request), keep=request.keep)
        live = self._live(peer, asked, choices, life, now)
        self._transitions.begin(live, steps)
        self._room.admitted(peer, asker, [live])
        return live, True

    def prepare(self, peer: Peer, asked: Asked, choices: list[Choice], part: PartOf, until_ns: int) -> Live:
        """Like `create`, for a part of a gang for which `choose` has found room. Nothing can be bound to the grant
        before the gang is committed; if it is not by `until_ns`, wall time, Transitions.send ends the grant. `served`
        has to be called once all of the part are made."""
        life, steps = lifecycle.prepare(until_ns, _new_id(), _ttl_ns(asked.request), keep=asked.request.keep)
        live = self._live(peer, asked, choices, life, now_ns(), part)
        self._transitions.begin(live, steps)
        return live

    def served(self, peer: Peer, asker: str, lives: Sequence[Live]) -> None:
        """Called when all grants that `choose` was asked for together are made."""
        self._room.admitted(peer, asker, lives)

    def choose(
        self, peer: Peer, together: Sequence[Asked], members: Mapping[str, bool], asker: str
    ) -> list[list[Choice]]:
        """Returns, for each of the grants, a choice for each place that it would get beside the others, where all
        fit. `members`: by tenant, as `create` takes it. Other arguments and errors: as of `create`, with the
        grant's number where there are several."""
        several = len(together) > 1
        for number, asked in enumerate(together):
            with numbered(number, several=several):
                self._check_asker(peer, asked.request, member=members.get(asked.tenant, False))
        wanted, found = Together(tuple(together)), list[list[Choice]]()
        promises = self._room.promises(peer, wanted, asker)
        promises = promises.copy() if several else promises
        for number, asked in enumerate(together):
            choices: list[Choice] = []
            with numbered(number, several=several):
                try:
                    places = placement.place(self._state, asked, choices, promises)
                except RefusedError as refusal:
                    self._state.refused.append(Refusal(now_ns(), asked, str(refusal)))
                    raise self._room.refused(peer, wanted, asker, refusal) from None
            if several:
                promises.put(f"grants[{number}]", asked, places)
            found.append(choices)
        self._resources.check_parts()
        return found

    def _check_asker(self, peer: Peer, request: GrantRequest, *, member: bool) -> None:
        if request.uid is not None and request.uid != peer.uid and not peer.is_root:
            raise ForbiddenError(f"only root may ask for a grant that belongs to uid {request.uid}: leave uid out")
        if request.in_turn is not None and not peer.is_root:
            raise ForbiddenError("only root may ask for grants that run in turn: leave in_turn out")
        self._state.tenants.named_by(peer, request.tenant, member=member)

    def _live(
        self,
        peer: Peer,
        asked: Asked,
        choices: list[Choice],
        life: lifecycle.Life,
        created_ns: int,
        part: PartOf | None = None,
    ) -> Live:
        request = asked.request
        places = [choice.place for choice in choices]
        record = GrantRecord(
            life=life,
            key=request.key,
            request=request,
            uid=_owner(peer, request),
            places=places,
            created_ns=created_ns,
            run_uid=_owner(peer, request),
            run_gid=peer.gid,
            part=part,
        )
        live = Live(record, asked)
        for place in places:
            log.debug(
                "admit grant=%s tenant=%s uid=%d device=%d memory_bytes=%d time_milli=%d guaranteed_milli=%d"
                " limit_milli=%d",
                live.id,
                live.record.tenant,
                record.uid,
                place.index,
                place.memory_bytes,
                place.time_milli,
                place.guaranteed_milli,
                place.limit_milli,
            )
        self._state.decisions.admitted(live.id, live.record.tenant, choices)
        return live

    def bind(self, peer: Peer, grant_id: str, request: BindRequest, connection: socket) -> Live:
        """Binds the grant to a container that an engine will start; or to a process, by default the one at the other
        end of `connection`; or to all processes of a user. A repeated call changes nothing.

        Raises RefusedError where the grant is in use, one of its devices does not work or a wall is missing,
        ForbiddenError where the process is another user's, and FailedError where it has ended.
        """
        live = self.owned(peer, grant_id)
        if request.kind == "container" and (request.pid, request.uid, request.gid) != (None, None, None):
            raise UsageError("a container is known by its hook: leave pid, uid and gid out, or bind a process")
        if (request.uid is None) != (request.gid is None):
            raise UsageError("a user's processes are known by uid and gid: give both")
        if live.record.phase is Phase.RESERVED:
            self._check_devices(live)
        self.check_walls()
        if request.kind == "container":
            self._transitions.send(live, lifecycle.Bound(now_ns(), Kind.CONTAINER))
        elif request.uid is not None:
            self._bind_user(live, peer, request)
        elif not any(one.pidfd is not None and one.record.pid == (request.pid or peer.pid) for one in live.workloads):
            self._bind_process(live, peer, request, connection)
        return live

    def check_walls(self) -> None:
        """Called before a grant is bound. Raises RefusedError where a required wall is missing."""
        self._walls.check_node()

    def _bind_user(self, live: Live, peer: Peer, request: BindRequest) -> None:
        """Binds the grant to all processes of a user. Whoever releases the grant, such as a scheduler, also decides
        when its processes end."""
        assert request.uid is not None
        assert request.gid is not None
        if not peer.is_root:
            raise ForbiddenError("only root may open a grant to all processes of a user")
        if request.pid is not None or not live.record.life.keep:
            raise UsageError("only a grant that is kept is opened to a user: create it with keep, and leave pid out")
        self._walls.check_open()
        self._check_turn(live)
        self._bind_as(live, request.uid, request.gid)
        self._walls.open_to(live.record)
        live.record.open = True
        if live.record.phase is Phase.BOUND:
            self._transitions.send(live, lifecycle.Started(now_ns(), None))

    def _bind_process(self, live: Live, peer: Peer, request: BindRequest, connection: socket) -> None:
        if request.pid is None and peer.pid <= 0:
            raise UsageError("your process is in a pid namespace that the daemon cannot see: run it on the host")
        with (
            workloads.open_peer(connection, peer) if request.pid is None else workloads.open_process(request.pid)
        ) as process:
            uid, gid = (peer.uid, peer.gid) if request.pid is None else workloads.user_of(process, peer)
            self._bind_as(live, uid, gid)
            links = self._state.layout.cgroups
            self.start(live, process, lambda: workloads.plain_cgroup(links, live.id, process.pid, uid))

    def _bind_as(self, live: Live, uid: int, gid: int) -> None:
        record = live.record
        if record.phase is not Phase.RESERVED and record.life.keep and uid not in (record.run_uid, 0):
            raise RefusedError(
                f"grant {live.id} is for processes of uid {record.run_uid}: create another for uid {uid}"
            )
        if record.phase is Phase.RESERVED:
            record.run_uid, record.run_gid = uid, gid
        self._transitions.send(live, lifecycle.Bound(now_ns(), Kind.PROCESS))

    def _check_devices(self, live: Live) -> None:
        for place in live.record.places:
            if (fault := self._state.faults.get(place.device)) is not None:
                raise RefusedError(
                    f"device {place.index} ({place.device}) of grant {live.id} does not work ({fault.reason}): create"
                    " another grant"
                )

    def start(self, live: Live, process: workloads.Process, group: Callable[[], workloads.Held]) -> None:
        """Makes `process` the first one of a workload of a bound grant. `group` finds or makes its cgroup.

        Raises RefusedError while another grant is in use that runs in turn with it. A failure ends the grant, because
        its workload must not run without what was promised. A kept grant goes on for its other workloads: the caller
        gets the error, and does not start this one.
        """
        self._check_turn(live)
        try:
            self._start(live, process, group)
        except RefusedError:
            raise
        except (GpushareError, OSError) as error:
            if not live.record.life.keep:
                self._transitions.fail(live, f"process {process.pid} could not start in it: {error}")
            raise

    def _start(self, live: Live, process: workloads.Process, group: Callable[[], workloads.Held]) -> None:
        """Leaves no cgroup of a kept grant where it fails."""
        held = group()
        found = held.cgroup
        record = WorkloadRecord(
            pid=process.pid,
            started=process.started,
            cgroup=(str(found.path), found.v2) if found is not None else None,
            cgroup_id=found.identity() if found is not None else 0,
            link=held.link,
        )
        try:
            self._walls.put_up(live.record, held, record)
            live.record.workloads.append(record)
            workloads.watch(live, record, process.take(), lambda: self._transitions.emptied_if_dead(live))
            self._transitions.send(live, lifecycle.Started(now_ns(), process.pid))
            if self._state.promises.begin_turn(live.id):
                self._serving.refresh_shares()
        except (GpushareError, OSError) as error:
            if live.record.life.keep and held.link and not isinstance(error, RefusedError):
                workloads.remove_cgroups(self._state.layout.cgroups, held.link)
            raise

    def serve(self, live: Live, pid: int, uid: int) -> None:
        """Binds a grant to the process of root's that will start a carrier's server in it as this user. Raises as
        `bind` does; what it did then is the caller's to undo."""
        self._check_devices(live)
        self.check_walls()
        self._check_turn(live)
        with workloads.open_process(pid) as process:
            self._bind_as(live, os.geteuid(), os.getegid())
            links = self._state.layout.cgroups
            self._start(live, process, lambda: workloads.plain_cgroup(links, live.id, pid, uid))

    def _check_turn(self, live: Live) -> None:
        if (turn := live.asked.request.in_turn) is None:
            return
        for grant, member in self._state.promises.beside(live.asked):
            if grant == live.id or member.parts.isdisjoint(turn.parts):
                continue
            other = self._state.live(grant)
            if other.record.open or any(map(workloads.alive, other.workloads)):
                raise RefusedError(f"grant {grant} is in use, and {live.id} has some of its parts: wait for its end")

    def release(self, peer: Peer, grant_id: str) -> GrantRecord:
        """Ends the grant and kills what runs in it. One that has ended already is left as it is."""
        if grant_id not in self._state:
            ended = self._state.ended(grant_id)
            if ended is not None and (peer.is_root or peer.uid == ended.uid):
                return ended
        live = self.owned(peer, grant_id)
        if any(workload.record.pid == peer.pid for workload in live.workloads):
            raise RefusedError(f"grant {grant_id} is your own process's: it ends when the process does")
        self._transitions.send(live, lifecycle.Release(now_ns(), f"released by uid {peer.uid}"))
        return live.record

    def resize(self, peer: Peer, grant_id: str, change: GrantChange) -> Live:
        """Changes the grant's share at once: limits are words in the page, time shares the arbiter's."""
        live = self.owned(peer, grant_id)
        record = live.record
        if change.memory is None and change.time is None and change.time_limit is None:
            raise UsageError("nothing to change: give memory, time or time_limit")
        places = placement.resize(self._state, live, change)
        for ordinal, place in enumerate(places):
            held = self._arbiter.grant_stats(live.handle, place.index).memory_bytes if live.handle is not None else 0
            held += live.uncharged(ordinal)
            if place.memory_bytes < held:
                raise RefusedError(
                    f"grant {grant_id} holds {held} bytes on device {place.index}: free some before it shrinks to "
                    f"{place.memory_bytes}"
                )
        self._resources.resize(live, places)
        self._state.decisions.resized(grant_id, record.tenant, record.places, places)
        self._transitions.move(live, places)
        live.shares = []  # the page has lost them: all are pushed again
        self._serving.refresh_shares()
        self._state.save(record)
        self._transitions.publish(live, "changed")
        return live
