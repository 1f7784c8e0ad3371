"""Moves grants from phase to phase: policy.lifecycle decides, this module carries out. Called on the event loop only.

A daemon that is killed between two instructions leaves a grant whose ledger row says what was reached: the next start
adopts it or ends it (daemon/grants/adoption.py).
"""

import asyncio
import logging
from dataclasses import replace
from typing import Any

from gpushare.api.types import Name
from gpushare.binding.arbiter import Arbiter
from gpushare.binding.wire import JoinError
from gpushare.daemon.grants.followers import Followers
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.view import grant_view
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.residency.pool import GrantPool, HostPool
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, boot_ns, now_ns
from gpushare.daemon.state.watch import Change
from gpushare.daemon.workloads import workloads
from gpushare.daemon.workloads.tenant_socket import Rules
from gpushare.policy.grants import lifecycle
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.lifecycle import Kind, Phase

log = logging.getLogger(__name__)


class Transitions:
    """Sends events to the state machine, carries its instructions out in order, and publishes them."""

    def __init__(
        self,
        state: State,
        hardware: Hardware,
        resources: Resources,
        serving: Serving,
        arbiter: Arbiter,
        pool: HostPool,
    ) -> None:
        self._state, self._resources, self._serving, self._arbiter = state, resources, serving, arbiter
        self._hardware, self._pool = hardware, pool
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.followers: Followers
        """Set once all of them are made (daemon/node.py)."""

    def begin(self, live: Live, steps: tuple[lifecycle.Instruction, ...]) -> None:
        """Adds a new grant and carries out the first steps of its life. If one fails, the grant ends. Raises
        RefusedError where it cannot begin."""
        self.followers.admit(live)
        self._state.add(live)
        self.followers.placed()
        self._carry_out(live, steps)

    def send(self, live: Live, event: lifecycle.Event) -> None:
        """Raises RefusedError where the phase does not allow the event. Any other failure ends the grant."""
        before = live.record.phase
        life, steps = lifecycle.advance(live.record.life, event)
        live.record.life = life
        if life.phase is not before:
            what = type(event).__name__.lower()
            log.debug("phase grant=%s event=%s from=%s to=%s reason=%r", live.id, what, before, life.phase, life.reason)
        if life.phase.ended and not before.ended:
            self.followers.ends(live, by_itself=isinstance(event, lifecycle.Emptied))
        self._carry_out(live, steps)

    def fail(self, live: Live, reason: str) -> None:
        """Ends a grant that cannot go on. One that has ended already is left as it is."""
        self.send(live, lifecycle.Break(now_ns(), reason))

    def undo(self, live: Live) -> None:
        """Takes back what was bound to a grant and did not start: it is reserved again. One that has ended stays as it
        is. Raises what making its files anew does; then it ends."""
        live.record.workloads = []
        self.send(live, lifecycle.Undone(now_ns()))
        for name in workloads.cgroup_names(self._state.layout.cgroups, live.id):
            workloads.remove_cgroup(self._state.layout.cgroups, name)

    def _carry_out(self, live: Live, steps: tuple[lifecycle.Instruction, ...]) -> None:
        failed: Exception | None = None
        for step in steps:
            try:
                self._step(live, step)
            except Exception as error:
                if not live.record.phase.ended:
                    self.fail(live, str(error))
                    raise
                failed = failed or error  # it ends all the same: a grant that is half ended nobody could end any more
        if failed is not None:
            raise failed

    def _step(self, live: Live, step: lifecycle.Instruction) -> None:
        match step:
            case lifecycle.Prepare():
                self._resources.make(live)
            case lifecycle.Serve():
                self._open(live)
                self._serving.serve(live, {})
            case lifecycle.StopServing():
                self._serving.stop(live)
            case lifecycle.EndProcesses():
                self._end_processes(live)
            case lifecycle.Remove():
                self._remove(live)
            case lifecycle.WakeAt(t_ns):
                self.wake_at(live, t_ns)
            case lifecycle.Record(phase):
                self._record(live, phase)

    def _end_processes(self, live: Live) -> None:
        """Kills what runs in the grant. The grant ends even if some of it cannot be killed: the next call would not
        do better, and the books must not keep what nobody can give back."""
        if why := workloads.kill(live):
            log.warning("grant %s ends, and not all of its processes do: %s: end them by hand", live.id, why)
            life = live.record.life
            live.record.life = replace(life, reason=f"{life.reason}; not all of its processes could be ended: {why}")

    def _open(self, live: Live) -> None:
        """Opens a grant for use. Its files are made for a container at first; for a plain process they are made again,
        before anybody has used them."""
        if live.record.life.kind is Kind.PROCESS:
            self._resources.unmake(live)
            self._resources.make(live)
        self._resources.open(live, self.rules(live))

    def _remove(self, live: Live) -> None:
        workloads.forget_starter(live)
        for workload in live.workloads:
            workloads.close(workload)
        live.workloads.clear()
        live.record.members = []
        self._resources.unmake(live)
        if live.record.life.kind is Kind.PROCESS:
            for name in workloads.cgroup_names(self._state.layout.cgroups, live.id):
                workloads.remove_cgroup(self._state.layout.cgroups, name)

    def wake_at(self, live: Live, t_ns: int | None) -> None:
        """Sends Clock at this wall time, in place of any time set before; None: never."""
        timer = self._timers.pop(live.id, None)
        if timer is not None:
            timer.cancel()
        if t_ns is not None:
            # Wall time can be set, the loop's clock cannot: whatever is done to the former, no grant waits for longer
            # than its time to live.
            delay = min(max(0, t_ns - now_ns()), live.record.life.ttl_ns or 0) / 1e9
            self._timers[live.id] = asyncio.get_running_loop().call_later(delay, self._clock, live, t_ns)

    def _clock(self, live: Live, due_ns: int, late_s: float = 0.0) -> None:
        """Sends Clock with `due_ns`, not the present wall time, which may have been set back meanwhile. While the
        runtime of its container lives, a grant waits for longer: the machine may be slow, and the runtime's end ends
        the grant. `late_s`: for how long it has."""
        self._timers.pop(live.id, None)
        if live.starter is not None and late_s < self._state.timing.starter_most:
            loop, late_s = asyncio.get_running_loop(), late_s + self._state.timing.starter
            self._timers[live.id] = loop.call_later(self._state.timing.starter, self._clock, live, due_ns, late_s)
            return
        self.send(live, lifecycle.Clock(due_ns))

    def _record(self, live: Live, phase: Phase) -> None:
        if phase.ended:
            live.record.ended_ns = now_ns()
        expires = live.record.life.expires_ns
        live.record.expires_boot_ns = boot_ns() + expires - now_ns() if expires is not None else None
        self._state.save(live.record)
        self.publish(live, "removed" if phase.ended else "added" if phase.unused and not live.rv else "changed")
        if phase.ended:
            self.forget(live)

    def forget(self, live: Live) -> None:
        """Called with a grant that has ended."""
        self._state.remove(live)
        self.followers.ended(live)

    def move(self, live: Live, places: list[Place]) -> None:
        """Gives a grant other places than it had."""
        self._state.move(live, places)
        self.followers.moved(live)

    # Watchers.

    def publish(self, live: Live, change: Change, name: Name = "") -> None:
        """Puts the grant, as it is now, into the watch stream."""

        def build(rv: int) -> Any:
            live.rv = rv
            return grant_view(self._state, live.record, live, self._arbiter)

        self._state.watch.publish("grant", change, build, name)
        self.followers.changed(live)

    def publish_on(self, devices: set[str]) -> None:
        """Publishes all grants on these devices, which failed or came back. No grant is ended: what ran there may go on
        when the device is back, and its owner decides."""
        for live in self._state:
            if any(place.device in devices for place in live.record.places):
                self.publish(live, "changed")

    def exceeded(self, live: Live, reason: str) -> None:
        """Called when processes of the grant took more memory of the driver than the grant may have. `reason`: a
        sentence."""
        live.exceeded = reason
        self.publish(live, "changed", "MemoryExceeded")

    # Workloads and processes.

    def emptied_if_dead(self, live: Live) -> None:
        """Ends the grant where none of its workloads lives; one that is kept forgets those that have ended."""
        if live.record.phase.ended or live.starting:
            return
        self.followers.ending()
        if live.record.life.keep:
            self._forget_dead(live)
        if not live.record.open and not any(map(workloads.alive, live.workloads)):
            self.send(live, lifecycle.Emptied(now_ns()))

    def _forget_dead(self, live: Live) -> None:
        for workload in [one for one in live.workloads if not workloads.alive(one)]:
            workloads.close(workload)
            live.workloads.remove(workload)
            live.record.workloads.remove(workload.record)
            if workload.record.link:
                workloads.remove_cgroups(self._state.layout.cgroups, workload.record.link)

    def rules(self, live: Live) -> Rules:
        """What the grant's socket asks when processes join and leave."""
        return Rules(
            admit=lambda who: self._admit(live, who),
            clear=lambda slot: self._serving.clear_slot(live, slot),
            changed=lambda: self._members_changed(live),
            write=lambda: self._write_members(live),
            looked=lambda: self.followers.processes(live),
            said=lambda what: self.followers.said(live, what),
            pool=GrantPool(self._pool, live.id, self._hardware.numa_nodes(live.record)),
        )

    def _admit(self, live: Live, who: Peer) -> tuple[JoinError, str]:
        answer, reason = self._answer(live, who)
        log.debug("join grant=%s pid=%d uid=%d answer=%d reason=%r", live.id, who.pid, who.uid, answer, reason)
        return answer, reason

    def _answer(self, live: Live, who: Peer) -> tuple[JoinError, str]:
        life = live.record.life
        if life.phase.ended:
            return JoinError.RELEASED, f"grant {live.id} has ended ({life.reason})"
        if life.phase is not Phase.ACTIVE:
            return JoinError.REFUSED, f"grant {live.id} is not in use yet: start its container or process first"
        if not workloads.admits(live, who.pid):
            return JoinError.REFUSED, f"process {who.pid} is not in the cgroup of grant {live.id}"
        if live.usage is not None and live.usage.torn:
            return JoinError.REFUSED, f"the usage page of grant {live.id} is damaged: create another grant"
        return JoinError.OK, ""

    def _members_changed(self, live: Live) -> None:
        if live.socket is None or live.record.phase.ended:
            return
        live.record.members = live.socket.records
        self.followers.processes(live)

    def _write_members(self, live: Live) -> None:
        if not live.record.phase.ended:
            self._state.save(live.record)
            self.publish(live, "changed")
