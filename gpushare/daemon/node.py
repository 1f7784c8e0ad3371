"""All parts of one running daemon, and how they are wired."""

import logging
import os
import time
from dataclasses import dataclass, field

from gpushare import __version__
from gpushare.api import types
from gpushare.api.node import Enforce
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.accounts.accounts import Accounts
from gpushare.daemon.accounts.explaining import Explaining
from gpushare.daemon.accounts.host_calls import HostCounts
from gpushare.daemon.accounts.receipts import Receipts
from gpushare.daemon.accounts.refusals import MemoryRefusals
from gpushare.daemon.devices.devices import Devices
from gpushare.daemon.devices.health import Health
from gpushare.daemon.engines.attempts import Attempts
from gpushare.daemon.engines.containers import Containers
from gpushare.daemon.grants import view
from gpushare.daemon.grants.adoption import Adoption
from gpushare.daemon.grants.evictions import Evictions
from gpushare.daemon.grants.followers import Followers
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.grants.measuring import Measuring
from gpushare.daemon.grants.planning import Planner
from gpushare.daemon.grants.preparing import Preparing
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.room import Room
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.tenancy import Tenancy
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.guard.audit import Audit
from gpushare.daemon.guard.exclusion import Exclusion
from gpushare.daemon.guard.findings import Findings
from gpushare.daemon.guard.tracepoint import Tracepoint
from gpushare.daemon.guard.walls import Walls
from gpushare.daemon.host.pulse import Latency
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.remote.desk import Desk
from gpushare.daemon.remote.living import Living
from gpushare.daemon.remote.sandbox import Sandbox
from gpushare.daemon.remote.servers import Servers
from gpushare.daemon.remote.settings import Settings
from gpushare.daemon.residency.ahead import Ahead
from gpushare.daemon.residency.demote import Demote
from gpushare.daemon.residency.pool import HostPool
from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.programs import Programs
from gpushare.inject.node import Node
from gpushare.node.devices import Backend, Device
from gpushare.node.simulator import Simulator
from gpushare.policy.audit.audit import Act, Rules
from gpushare.policy.loans.reclaim import Rung

log = logging.getLogger(__name__)


@dataclass
class NodeContext:
    """Built once at start, in the order in which its parts need each other."""

    state: State
    hardware: Hardware
    resources: Resources
    arbiter: Arbiter
    backend: Backend
    inject: Node
    simulator: Simulator | None
    readers: Readers
    lookups: Readers  # for the user database, whose slowness must not delay bundles
    door: Door
    pool: HostPool
    latency: Latency
    enforce: Enforce
    tracepoint: Tracepoint
    exclusion: Exclusion
    audit_rules: Rules
    move_s: float  # as `[memory] move_seconds`
    idle_after_s: float  # as `[memory] idle_after_seconds`
    remote_settings: Settings
    started_ns: int = field(default_factory=now_ns)
    accounts: Accounts = field(init=False)
    receipts: Receipts = field(init=False)
    refusals: MemoryRefusals = field(init=False)
    host_counts: HostCounts = field(init=False)
    serving: Serving = field(init=False)
    transitions: Transitions = field(init=False)
    walls: Walls = field(init=False)
    grants: Grants = field(init=False)
    preparing: Preparing = field(init=False)
    planner: Planner = field(init=False)
    explaining: Explaining = field(init=False)
    attempts: Attempts = field(init=False)
    containers: Containers = field(init=False)
    adoption: Adoption = field(init=False)
    residency: Residency = field(init=False)
    ahead: Ahead = field(init=False)
    evictions: Evictions = field(init=False)
    room: Room = field(init=False)
    findings: Findings = field(init=False)
    programs: Programs = field(init=False)
    audit: Audit = field(init=False)
    tenancy: Tenancy = field(init=False)
    measuring: Measuring = field(init=False)
    devices: Devices = field(init=False)
    health: Health = field(init=False)
    remote: Desk = field(init=False)

    def __post_init__(self) -> None:
        state, resources, arbiter = self.state, self.resources, self.arbiter
        self.accounts = Accounts(state, arbiter)
        self.receipts = Receipts(state, arbiter)
        self.refusals = MemoryRefusals(state, arbiter)
        self.host_counts = HostCounts(state)
        self.serving = Serving(
            state, self.hardware, arbiter, self.accounts, self.receipts, self.refusals, self.host_counts
        )
        self.transitions = Transitions(state, self.hardware, resources, self.serving, arbiter, self.pool)
        state.host_pool_bytes = self.pool.size_bytes
        state.idle_after_default_ns = round(self.idle_after_s * 1e9)
        self.residency = Residency(state, self.transitions, self.pool, self.move_s, self.accounts.moves)
        self.ahead = Ahead(state, self.residency, self.pool)
        engines = {Rung.DEMOTE: Demote(self.residency)} if self.pool.size_bytes else {}
        self.devices = Devices(state, self.backend, arbiter, self.simulator)
        self.evictions = Evictions(state, self.transitions, engines)
        self.room = self.residency.recall = Room(
            state, self.residency, self.ahead, self.evictions, self.devices.publish
        )
        self.ahead.looked = self.room.looked
        self.walls = Walls(
            state,
            self.hardware,
            self.backend,
            self.inject,
            self.enforce,
            self.tracepoint,
            self.exclusion,
            stops=self.audit_rules.evader is not Act.TELL,
        )
        self.walls.start()
        self.grants = Grants(state, resources, self.serving, self.transitions, arbiter, self.room, self.walls)
        self.preparing = Preparing(state, self.grants, self.transitions, arbiter)
        self.planner = Planner(state, self.grants, resources, self.receipts.history, self.room)
        self.explaining = Explaining(state, self.receipts, self.accounts.moves)
        self.attempts = Attempts(state.watch.epoch, self.readers)
        self.containers = Containers(
            state, self.grants, self.transitions, self.hardware, self.inject, self.readers, self.attempts
        )
        self.adoption = Adoption(state, self.hardware, resources, self.serving, self.transitions, self.tracepoint)
        self.findings = Findings(state.watch, self.lookups)
        self.programs = Programs(self.lookups)
        self.audit = Audit(state, self.backend, self.arbiter, self.findings, self.audit_rules, self.transitions.publish)
        self.tenancy = Tenancy(state, self.serving, self.lookups)
        self.measuring = Measuring(
            state, self.serving, self.transitions, self.explaining, self.refusals, self.host_counts
        )
        self.devices.idle_bytes = self.ahead.idle_bytes
        self.health = Health(
            state,
            self.backend,
            self.hardware,
            self.devices,
            resources,
            self.serving,
            self.transitions,
            self.tenancy,
            self.facts,
        )
        sandbox = Sandbox()
        self.remote = Desk(
            self.remote_settings,
            state,
            self.grants,
            Servers(state, self.hardware, self.inject, self.grants, self.transitions, self.serving, sandbox),
            sandbox,
            Living(state, self.transitions, self.accounts.attachments, self.remote_settings.attachments),
        )
        self.devices.told_drained, self.evictions.told = self.remote.drained, self.remote.evicting
        self.tracepoint.start(self.transitions.exceeded)
        self.transitions.followers = Followers(
            self.audit,
            self.walls,
            self.tracepoint,
            self.exclusion,
            self.evictions,
            self.preparing,
            self.devices,
            self.pool,
            self.residency,
            self.remote,
        )

    def facts(self) -> types.Node:
        """Returns the answer to GET /v1/node."""
        layout, devices = self.state.layout, self.state.devices
        working = [device for device in devices if device.id not in self.state.faults]
        standing = self.state.promises.now.standing
        return types.Node(
            version=__version__,
            epoch=self.state.watch.epoch,
            pid=os.getpid(),
            simulated=self.inject.simulated,
            devices=len(devices),
            devices_working=len(working),
            capacity=_capacity(devices),
            have=_capacity(working),
            degraded=any(map(standing.degraded, standing.have)),
            driver_version=self.backend.driver_version,
            run_dir=str(layout.run),
            grants_dir=str(layout.grants),
            state_dir=str(layout.state),
            cdi_dir=str(layout.cdi),
            socket=str(layout.socket),
            lib_dir=str(self.inject.lib_dir),
            driver_dir=view.driver_dir(self.inject.sim_lib_dir, self.inject.driver_files, self.inject.simulated),
            sim_dir=str(self.inject.sim_dir) if self.inject.sim_dir is not None else None,
            sim_pid=self.simulator.pid if self.simulator is not None else None,
            started_ns=self.started_ns,
            loop_latency_max_ns=round(self.latency.longest(time.monotonic()) * 1e9),
            ledger=view.ledger_view(self.state.ledger.health),
            enforce=self.enforce,
            walls=self.walls.facts(),
            placement=self.state.placement,
            host_pool=self.pool.facts(),
        )


def _capacity(devices: list[Device]) -> types.Quantity:
    memory = sum(device.memory_bytes - device.reserved_bytes for device in devices)
    return types.Quantity(time=1000 * len(devices), memory=memory)
