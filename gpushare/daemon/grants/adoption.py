"""Grants across restarts of the daemon: what a stop leaves, and what the next start does with it."""

import logging
from dataclasses import replace

from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.guard.tracepoint import Tracepoint
from gpushare.daemon.host.peer import reopen_pidfd
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord
from gpushare.daemon.state.state import State, boot_ns, now_ns
from gpushare.daemon.workloads import workloads
from gpushare.errors import GpushareError, UsageError
from gpushare.policy.grants import lifecycle
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.residency.states import RESIDENT

log = logging.getLogger(__name__)


class Adoption:
    """Adopts the living grants of the ledger at start, and lets go of them at stop."""

    def __init__(
        self,
        state: State,
        hardware: Hardware,
        resources: Resources,
        serving: Serving,
        transitions: Transitions,
        tracepoint: Tracepoint,
    ) -> None:
        self._hardware = hardware
        self._state, self._resources, self._serving, self._transitions = state, resources, serving, transitions
        self._tracepoint = tracepoint

    def adopt(self, record: GrantRecord, *, rebooted: bool) -> None:
        """Adopts a grant that has no end in the ledger: it goes on if its workload lives, and ends otherwise. A failure
        affects no other grant."""
        try:
            live = Live(record, Asked.of(record.request, self._state.reclaim_policy))
        except UsageError as error:
            self._state.ledger.set_aside(record.id, str(error))
            return
        if rebooted:
            record.residency = RESIDENT  # nothing of it is left, neither here nor there
            record.places = [replace(place, hosted_bytes=0) for place in record.places]
        self._state.add(live)
        try:
            if rebooted:
                # After a reboot its pids may belong to other programs: they are not looked up.
                record.workloads, record.members, record.open = [], [], False
                self._transitions.send(live, lifecycle.Rebooted(now_ns()))
            else:
                self._adopt(live)
        except Exception as error:
            log.exception("grant %s is lost", live.id)
            self._give_up(live, f"could not be taken over: {error!r}")

    def _give_up(self, live: Live, reason: str) -> None:
        try:
            self._transitions.fail(live, reason)
        except Exception:
            log.exception("grant %s cannot be ended in order", live.id)
            self._transitions.forget(live)
            self._state.ledger.set_aside(live.id, reason)

    def _adopt(self, live: Live) -> None:
        if not self._hardware.knows(live.record):
            self._transitions.fail(live, "its device is gone")
            return
        self._hardware.renumber(live.record)
        try:
            if live.record.phase.unused:
                self._resources.take_over(live, self._transitions.rules(live))
                self._goes_on(live)
            else:
                self._adopt_served(live)
        except (GpushareError, OSError) as error:
            log.warning("grant %s is lost: %s", live.id, error)
            self._transitions.fail(live, f"could not be taken over: {error}")

    def _adopt_served(self, live: Live) -> None:
        record = live.record
        for row in record.workloads:
            pidfd = reopen_pidfd(row.pid, row.started)
            workloads.watch(live, row, pidfd, lambda: self._transitions.emptied_if_dead(live))
        self._transitions.emptied_if_dead(live)
        if record.phase.ended:
            return
        self._resources.take_over(live, self._transitions.rules(live))
        for workload in live.workloads:
            self._tracepoint.hold(record, workload.cgroup)
        self._serving.serve(live, self._state.ledger.totals(record.id))
        assert live.limits is not None
        assert live.socket is not None
        live.limits.renew_daemon_epoch()
        live.socket.adopt(record.members)
        record.members = live.socket.records
        self._state.save(record)
        self._goes_on(live)

    def _goes_on(self, live: Live) -> None:
        record = live.record
        if record.life.expires_ns is not None and record.expires_boot_ns is not None:
            # The wall clock may have been set while no daemon ran.
            left_ns = record.expires_boot_ns - boot_ns()
            record.life = replace(record.life, expires_ns=now_ns() + left_ns)
        log.debug(
            "adopt grant=%s phase=%s workloads=%d processes=%d",
            live.id,
            record.phase,
            len(record.workloads),
            len(record.members),
        )
        self._transitions.publish(live, "added")
        if record.phase is not Phase.PREPARED:  # a prepared grant is ended by its gang
            self._transitions.wake_at(live, record.life.expires_ns)

    def let_go(self) -> None:
        """Called when the daemon stops: grants with a workload, kept grants and those prepared for a gang stay as they
        are; others end."""
        stay = (Phase.PREPARED, Phase.ACTIVE)
        going_on = [live for live in self._state if live.record.phase in stay or live.record.life.keep]
        for live in self._state:
            if live not in going_on:
                self._transitions.send(live, lifecycle.Release(now_ns(), "the daemon stopped before it was used"))
        self._serving.close()
        for live in going_on:
            self._transitions.wake_at(live, None)
            for workload in live.workloads:
                workloads.close(workload)
            self._resources.close(live)
