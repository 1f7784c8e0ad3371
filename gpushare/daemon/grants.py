"""The life of grants: policy.lifecycle decides, this carries out. Called on the event loop only.

A request is checked whole before anything happens. A daemon that is killed between two instructions leaves a grant
whose ledger row says what was reached: the next start takes it over or ends it.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from socket import socket
from typing import Any

from gpushare.api.types import BindRequest, GrantChange, GrantRequest
from gpushare.arbiter import Arbiter
from gpushare.daemon import gangs, placement, tenant_socket, workloads
from gpushare.daemon.books import DeviceBook
from gpushare.daemon.ledger import Totals
from gpushare.daemon.peer import Peer, open_pidfd, reopen_pidfd, start_time
from gpushare.daemon.resources import Resources
from gpushare.daemon.state import GrantRecord, Live, State, WorkloadRecord, decode, instant, now_ns
from gpushare.daemon.tenant_socket import Rules
from gpushare.daemon.view import grant_view
from gpushare.daemon.watch import Change
from gpushare.enforce import cgroup
from gpushare.errors import FailedError, ForbiddenError, GpushareError, RefusedError, UsageError
from gpushare.pages import GrantState
from gpushare.policy import lifecycle
from gpushare.policy.lifecycle import Kind, Phase

log = logging.getLogger(__name__)

_PID_MAX = 1 << 22  # PID_MAX_LIMIT of include/linux/threads.h


class Grants:
    def __init__(self, state: State, resources: Resources, arbiter: Arbiter) -> None:
        self._state, self._resources, self._arbiter = state, resources, arbiter
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._active: frozenset[str] | None = None
        """Grants that had work of late, as far as known."""
        self.unusable: Callable[[], set[str]] = set
        """Ids of devices that take no new grants."""
        self.before_stop: Callable[[Live], None] = lambda _: None
        """Called with a grant whose numbers the arbiter is about to forget."""

    def owned(self, peer: Peer, grant_id: str) -> Live:
        live = self._state.live(grant_id)
        if not peer.is_root and peer.uid != live.record.uid:
            raise ForbiddenError(
                f"grant {grant_id} belongs to uid {live.record.uid}: only that user or root may do this"
            )
        return live

    # What is asked for.

    def create(self, peer: Peer, request: GrantRequest) -> tuple[Live, bool]:
        """The grant, and whether it is new. Same key and same request: the same grant."""
        if request.key is not None and (existing := self._state.by_key(peer.uid, request.key)) is not None:
            if existing.record.request != request:
                raise RefusedError(
                    f"key {request.key[:80]!r} is taken by grant {existing.id} with another request: use another key"
                )
            return existing, False
        self._state.tenants.named_by(peer, request.tenant)
        places = placement.place(self._state, request, self.unusable())
        self._resources.check_parts()
        grant_id = f"g-{secrets.token_hex(6)}"
        now = now_ns()
        life, steps = lifecycle.begin(lifecycle.Reserved(now, grant_id, request.ttl_seconds * 1_000_000_000))
        record = GrantRecord(
            life=life,
            key=request.key,
            request=request,
            uid=peer.uid,
            places=places,
            created_ns=now,
            run_uid=peer.uid,
            run_gid=peer.gid,
        )
        live = Live(record)
        self._state.add(live)
        self._carry_out(live, steps)
        return live, True

    def bind(self, peer: Peer, grant_id: str, request: BindRequest, connection: socket) -> Live:
        """`connection`: the caller's, whose process a plain grant is bound to."""
        live = self.owned(peer, grant_id)
        if live.record.phase is Phase.RESERVED:
            self._check_devices(live)
        if request.kind == "container":
            self.send(live, lifecycle.Bound(now_ns(), Kind.CONTAINER))
            return live
        if live.record.phase is Phase.ACTIVE and live.record.life.pid == peer.pid:
            return live
        if peer.pid <= 0:
            raise UsageError("your process is in a pid namespace that the daemon cannot see: run it on the host")
        try:
            pidfd = open_pidfd(connection, peer.pid)
        except OSError:
            raise FailedError(f"process {peer.pid} ended before it was bound") from None
        with contextlib.closing(_Descriptor(pidfd)) as held:
            started = start_time(peer.pid)
            if started is None:
                raise FailedError(f"process {peer.pid} ended before it was bound")
            live.record.run_uid, live.record.run_gid = peer.uid, peer.gid
            self.send(live, lifecycle.Bound(now_ns(), Kind.PROCESS))
            self._start(live, peer.pid, started, held, lambda: workloads.plain_cgroup(grant_id, peer.pid))
        return live

    def _check_devices(self, live: Live) -> None:
        for place in live.record.places:
            if (fault := self._state.faults.get(place.device)) is not None:
                raise RefusedError(
                    f"device {place.index} ({place.device}) of grant {live.id} does not work ({fault.reason}): create"
                    " another grant"
                )

    def expect_start(self, live: Live, peer: Peer, connection: socket) -> None:
        """Of a container, by the calling process: the runtime ends only after the hook, or because the start failed."""
        try:
            live.starter = open_pidfd(connection, peer.pid)
        except OSError:
            self._start_failed(live)
            return
        asyncio.get_running_loop().add_reader(live.starter, self._start_failed, live)

    def _start_failed(self, live: Live) -> None:
        self._forget_starter(live)
        if live.record.phase is Phase.BOUND:
            self.send(live, lifecycle.Break(now_ns(), "the runtime ended before it started the container"))

    def _forget_starter(self, live: Live) -> None:
        if live.starter is not None:
            asyncio.get_running_loop().remove_reader(live.starter)
            os.close(live.starter)
            live.starter = None

    def hook_create_runtime(self, grant_id: str, container: Any) -> Live:
        """The OCI state of a container that is about to start: its first process is bound."""
        live = self._state.live(grant_id)
        pid = container.get("pid") if isinstance(container, dict) else None
        if not isinstance(pid, int) or isinstance(pid, bool) or not 1 < pid <= _PID_MAX or pid == os.getpid():
            raise UsageError("the OCI state has no pid of a container: is this the createRuntime hook?")
        if any(workload.record.pid == pid for workload in live.workloads):
            return live
        if live.record.life.kind is Kind.PROCESS:
            raise RefusedError(f"grant {grant_id} is in use by process {live.record.life.pid}: create another")
        descriptor, started = workloads.open_process(pid)
        with contextlib.closing(_Descriptor(descriptor)) as held:
            if live.record.phase is Phase.RESERVED:
                self.send(live, lifecycle.Bound(now_ns(), Kind.CONTAINER))
            self._start(live, pid, started, held, lambda: cgroup.own_of_process(pid))
        self._forget_starter(live)
        return live

    def _start(
        self, live: Live, pid: int, started: int, pidfd: "_Descriptor", group: Callable[[], cgroup.Cgroup | None]
    ) -> None:
        """From here on a failure ends the grant: its workload must not run without what was promised."""
        try:
            found = group()
            self._resources.guard(live.record, found)
            record = WorkloadRecord(
                pid=pid, started=started, cgroup=(str(found.path), found.v2) if found is not None else None
            )
            live.record.workloads.append(record)
            workloads.watch(live, record, pidfd.take(), lambda: self._maybe_empty(live))
            self.send(live, lifecycle.Started(now_ns(), pid))
        except RefusedError:
            raise
        except (GpushareError, OSError) as error:
            self.send(live, lifecycle.Break(now_ns(), f"process {pid} could not start in it: {error}"))
            raise

    def release(self, peer: Peer, grant_id: str) -> tuple[GrantRecord, Live | None]:
        """Ends what runs in it. One that has ended already is fine."""
        if grant_id not in self._state:
            ended = self._state.ended(grant_id)
            if ended is not None and (peer.is_root or peer.uid == ended.uid):
                return ended, None
        live = self.owned(peer, grant_id)
        if any(workload.record.pid == peer.pid for workload in live.workloads):
            raise RefusedError(f"grant {grant_id} is your own process's: it ends when the process does")
        self.send(live, lifecycle.Release(now_ns(), f"released by uid {peer.uid}"))
        return live.record, live

    def poststop(self, grant_id: str) -> None:
        """The engine says that a container is gone. A grant that has ended already is fine."""
        if grant_id in self._state:
            live = self._state.live(grant_id)
            workloads.sweep(live)
            if not live.workloads or not any(workload.pidfd is not None for workload in live.workloads):
                self.send(live, lifecycle.Emptied(now_ns()))
        elif self._state.ended(grant_id) is None:
            self._state.live(grant_id)

    def resize(self, peer: Peer, grant_id: str, change: GrantChange) -> Live:
        """Takes effect at once: limits are words in the page, time shares the arbiter's."""
        live = self.owned(peer, grant_id)
        record = live.record
        if change.memory is None and change.time is None and change.time_limit is None:
            raise UsageError("nothing to change: give memory, time or time_limit")
        places = placement.resize(self._state, live, change)
        for place in places:
            held = self._arbiter.grant_stats(live.handle, place.index).memory_bytes if live.handle is not None else 0
            if place.memory_bytes < held:
                raise RefusedError(
                    f"grant {grant_id} holds {held} bytes on device {place.index}: free some before it shrinks to "
                    f"{place.memory_bytes}"
                )
        assert live.limits is not None
        record.places = places
        for ordinal, place in enumerate(places):
            live.limits.set_device(ordinal, self._resources.limits(place, place.guaranteed_milli, place.limit_milli))
        live.shares = []  # its page does not have them any more
        self.refresh_shares()
        self._state.save(record)
        self._publish(live, "changed")
        return live

    def fail(self, live: Live, reason: str) -> None:
        self.send(live, lifecycle.Break(now_ns(), reason))

    # Carrying out.

    def send(self, live: Live, event: lifecycle.Event) -> None:
        life, steps = lifecycle.advance(live.record.life, event)
        live.record.life = life
        self._carry_out(live, steps)

    def _carry_out(self, live: Live, steps: tuple[lifecycle.Instruction, ...]) -> None:
        try:
            for step in steps:
                self._step(live, step)
        except Exception as error:
            if live.record.phase.ended:
                raise
            self.send(live, lifecycle.Break(now_ns(), str(error)))
            raise

    def _step(self, live: Live, step: lifecycle.Instruction) -> None:
        match step:
            case lifecycle.Prepare():
                self._resources.make(live, self._rules(live))
            case lifecycle.Serve():
                self._prepare_process(live)
                self._serve(live, {})
            case lifecycle.StopServing():
                self._stop_serving(live)
            case lifecycle.EndProcesses():
                workloads.kill(live)
            case lifecycle.Remove():
                self._remove(live)
            case lifecycle.WakeAt(t_ns):
                self._wake_at(live, t_ns)
            case lifecycle.Record(phase):
                self._record(live, phase)
            case lifecycle.Watch():
                pass  # done by _start, which has the pidfd that the caller could prove
            case lifecycle.Park():
                raise FailedError("suspending is not built yet")

    def _prepare_process(self, live: Live) -> None:
        """A grant is made in the shape for containers; a plain process gets the other one before anybody has seen
        it."""
        if live.record.life.kind is Kind.PROCESS:
            self._resources.unmake(live)
            self._resources.make(live, self._rules(live))

    def _serve(self, live: Live, carried: dict[str, Totals]) -> None:
        assert live.limits is not None
        assert live.usage is not None
        assert live.bell is not None
        places = live.record.places
        indices = [place.index for place in places]
        flags, shares = gangs.share_flags(live.record.request), placement.first_shares(live)
        live.handle = self._arbiter.add(live.limits, live.usage, indices, shares, live.bell, flags)
        live.shares = []  # its page may have those of before a restart
        for place in places:
            base = self._arbiter.grant_stats(live.handle, place.index)
            live.books[place.index] = DeviceBook(carried.get(place.device, Totals()), base, instant())
        live.limits.state = GrantState.ACTIVE
        self.refresh_shares()

    def refresh_shares(self) -> None:
        """Who is served or what a tenant is guaranteed changed: every grant's share follows, in the arbiter and in its
        page."""
        for grant_id, shares in placement.arbiter_shares(self._state, self._active).items():
            live = self._state.live(grant_id)
            assert live.handle is not None
            assert live.limits is not None
            if shares == live.shares:
                continue
            live.shares = shares
            self._arbiter.set_shares(live.handle, shares)
            for ordinal, (place, share) in enumerate(zip(live.record.places, shares, strict=True)):
                limits = self._resources.limits(place, share.guarantee_milli, share.limit_milli)
                live.limits.set_device(ordinal, limits)

    def follow(self, active: frozenset[str]) -> None:
        """Which grants have work: what a tenant's idle ones leave goes to those of it that run."""
        if active != self._active:
            self._active = active
            self.refresh_shares()

    def tell_of(self, devices: set[str]) -> None:
        """A device works, or does not any more: watchers of its grants hear of it. Nothing is ended: what ran there
        may go on when it is back, and its owner decides."""
        for live in self._state:
            if any(place.device in devices for place in live.record.places):
                self._publish(live, "changed")

    def _stop_serving(self, live: Live) -> None:
        if live.handle is None:
            return
        self.before_stop(live)
        self._arbiter.remove(live.handle)
        live.handle = None
        live.books.clear()
        self.refresh_shares()

    def _remove(self, live: Live) -> None:
        self._forget_starter(live)
        for workload in live.workloads:
            workloads.close(workload)
        live.workloads.clear()
        live.record.members = []
        self._resources.unmake(live)
        if live.record.life.kind is Kind.PROCESS:
            workloads.remove_cgroup(live.id)

    def _wake_at(self, live: Live, t_ns: int | None) -> None:
        timer = self._timers.pop(live.id, None)
        if timer is not None:
            timer.cancel()
        if t_ns is not None:
            # The loop's clock cannot be set, wall time can: also while no daemon ran, but nothing lives longer for it.
            delay = min(max(0, t_ns - now_ns()), live.record.life.ttl_ns) / 1e9
            self._timers[live.id] = asyncio.get_running_loop().call_later(delay, self._clock, live, t_ns)

    def _clock(self, live: Live, due_ns: int) -> None:
        """It is that time, whatever wall time says by now."""
        self._timers.pop(live.id, None)
        self.send(live, lifecycle.Clock(due_ns))

    def _record(self, live: Live, phase: Phase) -> None:
        if phase.ended:
            live.record.ended_ns = now_ns()
        try:
            self._state.save(live.record)
        except FailedError as error:
            if not phase.ended:
                raise
            # It has ended all the same; the next start finds the row open and nobody alive.
            log.error("grant %s: %s", live.id, error)  # noqa: TRY400 - the reason is in the line
        self._publish(live, "removed" if phase.ended else "added" if phase is Phase.RESERVED else "changed")
        if phase.ended:
            self._state.remove(live)

    def _maybe_empty(self, live: Live) -> None:
        if not live.record.phase.ended and not any(map(workloads.alive, live.workloads)):
            self.send(live, lifecycle.Emptied(now_ns()))

    # Processes that join.

    def _rules(self, live: Live) -> Rules:
        return Rules(
            admit=lambda who: self._admit(live, who),
            clear=lambda slot: self._clear(live, slot),
            changed=lambda: self._members_changed(live),
            write=lambda: self._write_members(live),
        )

    def _admit(self, live: Live, who: Peer) -> tuple[int, str]:
        life = live.record.life
        if life.phase.ended:
            return tenant_socket.RELEASED, f"grant {live.id} has ended ({life.reason})"
        if life.phase is not Phase.ACTIVE:
            return tenant_socket.REFUSED, f"grant {live.id} is not in use yet: start its container or process first"
        if not workloads.admits(live, who.pid):
            return tenant_socket.REFUSED, f"process {who.pid} is not in the cgroup of grant {live.id}"
        if live.usage is not None and live.usage.torn:
            return tenant_socket.REFUSED, f"the usage page of grant {live.id} is damaged: create another grant"
        return tenant_socket.OK, ""

    def _clear(self, live: Live, slot: int) -> None:
        if live.handle is not None:
            self._arbiter.clear_slot(live.handle, slot)

    def _members_changed(self, live: Live) -> None:
        if live.socket is None or live.record.phase.ended:
            return
        live.record.members = live.socket.records

    def _write_members(self, live: Live) -> None:
        if not live.record.phase.ended:
            self._state.save(live.record)
            self._publish(live, "changed")

    # Restart and stop.

    def take_over(self, text: str) -> None:
        """One grant of the ledger that had no end: goes on where its workload lives, ends otherwise."""
        live = Live(decode(text))
        self._state.add(live)
        if not self._resources.knows(live.record):
            self.send(live, lifecycle.Break(now_ns(), "its device is gone"))
            return
        self._resources.renumber(live.record)
        try:
            if live.record.phase is Phase.RESERVED:
                self._resources.take_over(live, self._rules(live))
                self._publish(live, "added")
                self._wake_at(live, live.record.life.expires_ns)
            else:
                self._take_over_served(live)
        except (GpushareError, OSError) as error:
            log.warning("grant %s is lost: %s", live.id, error)
            self.send(live, lifecycle.Break(now_ns(), f"could not be taken over: {error}"))

    def end_rebooted(self, text: str) -> None:
        """One grant of before the machine was restarted: its pids may be anybody's now and are not looked at."""
        live = Live(decode(text))
        live.record.workloads, live.record.members = [], []
        self._state.add(live)
        self.send(live, lifecycle.Break(now_ns(), "the machine was restarted"))

    def _take_over_served(self, live: Live) -> None:
        record = live.record
        for row in record.workloads:
            pidfd = reopen_pidfd(row.pid, row.started)
            workloads.watch(live, row, pidfd, lambda: self._maybe_empty(live))
        if record.phase is not Phase.BOUND and not any(map(workloads.alive, live.workloads)):
            self.send(live, lifecycle.Emptied(now_ns()))
            return
        self._resources.take_over(live, self._rules(live))
        self._serve(live, self._state.ledger.totals(record.id))
        assert live.limits is not None
        assert live.socket is not None
        live.limits.renew_daemon_epoch()
        live.socket.adopt(record.members)
        record.members = live.socket.records
        self._state.save(record)
        self._publish(live, "added")
        self._wake_at(live, record.life.expires_ns)

    def let_go(self) -> None:
        """The daemon stops: grants with a workload stay as they are, others end."""
        for live in self._state:
            if live.record.phase is Phase.ACTIVE:
                self._wake_at(live, None)
                for workload in live.workloads:
                    workloads.close(workload)
                self._resources.close(live)
            else:
                self.send(live, lifecycle.Release(now_ns(), "the daemon stopped before it was used"))

    def _publish(self, live: Live, change: Change) -> None:
        def build(rv: int) -> Any:
            live.rv = rv
            return grant_view(self._state, live.record, live, self._arbiter)

        self._state.watch.publish("grant", change, build)


class _Descriptor:
    """Closed unless somebody took it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def take(self) -> int:
        assert self._descriptor is not None
        taken, self._descriptor = self._descriptor, None
        return taken

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
