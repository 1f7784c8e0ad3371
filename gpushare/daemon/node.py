"""All parts of one running daemon, and operations that concern more than one of them."""

import asyncio
import logging
import os
import time
from dataclasses import dataclass, field

import msgspec

from gpushare import __version__
from gpushare.api import drain as drain_types
from gpushare.api import tenants as tenant_types
from gpushare.api import types
from gpushare.api.walls import Enforce
from gpushare.arbiter import Arbiter
from gpushare.daemon.accounts.accounts import Accounts
from gpushare.daemon.accounts.explaining import Explaining
from gpushare.daemon.accounts.receipts import Receipts
from gpushare.daemon.engines.attempts import Attempts
from gpushare.daemon.engines.containers import Containers
from gpushare.daemon.grants import view
from gpushare.daemon.grants.adoption import Adoption
from gpushare.daemon.grants.evictions import Evictions
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.grants.planning import Planner
from gpushare.daemon.grants.preparing import Preparing
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.guard.audit import Audit
from gpushare.daemon.guard.enforcement import Enforcement
from gpushare.daemon.guard.exclusion import Exclusion
from gpushare.daemon.guard.findings import Findings
from gpushare.daemon.guard.guarding import Guarding
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.host.pulse import Latency
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.state.books import Sample, active, shares_got
from gpushare.daemon.state.drains import Drain
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.missed import remember
from gpushare.daemon.state.promises import Fault
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.state.watch import Change
from gpushare.daemon.workloads.door import Door
from gpushare.errors import FailedError, GpushareError, NotFoundError, RefusedError, UsageError
from gpushare.inject.node import Node
from gpushare.node.devices import Backend, Device
from gpushare.node.simulator import Simulator
from gpushare.policy.audit.audit import Act, Rules
from gpushare.policy.quota.shares import DEVICE_MILLI

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
    latency: Latency
    enforce: Enforce
    guarding: Guarding
    exclusion: Exclusion
    audit_rules: Rules
    started_ns: int = field(default_factory=now_ns)
    accounts: Accounts = field(init=False)
    receipts: Receipts = field(init=False)
    serving: Serving = field(init=False)
    transitions: Transitions = field(init=False)
    enforcement: Enforcement = field(init=False)
    grants: Grants = field(init=False)
    preparing: Preparing = field(init=False)
    planner: Planner = field(init=False)
    explaining: Explaining = field(init=False)
    attempts: Attempts = field(init=False)
    containers: Containers = field(init=False)
    adoption: Adoption = field(init=False)
    evictions: Evictions = field(init=False)
    findings: Findings = field(init=False)
    audit: Audit = field(init=False)
    _measured_ns: int = field(init=False, default_factory=time.monotonic_ns)

    def __post_init__(self) -> None:
        state, resources, arbiter = self.state, self.resources, self.arbiter
        self.accounts = Accounts(state, arbiter)
        self.receipts = Receipts(state, arbiter)
        self.serving = Serving(state, self.hardware, arbiter, self.accounts, self.receipts)
        self.transitions = Transitions(state, resources, self.serving, arbiter)
        self.evictions = Evictions(state, self.transitions)
        self.enforcement = Enforcement(
            state,
            self.hardware,
            self.backend,
            self.inject,
            self.enforce,
            self.guarding,
            self.exclusion,
            stops=self.audit_rules.evader is not Act.TELL,
        )
        self.enforcement.start()
        self.grants = Grants(
            state, resources, self.serving, self.transitions, arbiter, self.evictions, self.enforcement
        )
        self.preparing = Preparing(state, self.grants, self.transitions, arbiter)
        self.planner = Planner(state, self.grants, resources, self.receipts.history, self.evictions)
        self.explaining = Explaining(state, self.receipts)
        self.attempts = Attempts(state.watch.epoch, self.readers)
        self.containers = Containers(
            state, self.grants, self.transitions, self.hardware, self.inject, self.readers, self.attempts
        )
        self.adoption = Adoption(state, self.hardware, resources, self.serving, self.transitions, self.guarding)
        self.findings = Findings(state.watch, self.lookups)
        self.audit = Audit(state, self.backend, self.arbiter, self.findings, self.audit_rules, self.transitions.publish)
        state.on_freed.append(self._drained)
        self.guarding.start(self.transitions.exceeded)
        self.transitions.before_end.append(self.guarding.listen)

    def facts(self) -> types.Node:
        """Returns the answer to GET /v1/node."""
        layout, devices = self.state.layout, self.state.devices
        working = [device for device in devices if device.id not in self.state.faults]
        stands = self.state.promises.now.standing
        return types.Node(
            version=__version__,
            epoch=self.state.watch.epoch,
            pid=os.getpid(),
            simulated=self.inject.simulated,
            devices=len(devices),
            devices_working=len(working),
            capacity=_capacity(devices),
            have=_capacity(working),
            degraded=any(map(stands.degraded, stands.have)),
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
            walls=self.enforcement.facts(),
            placement=self.state.placement,
        )

    # Devices.

    async def device_views(self) -> list[types.Device]:
        """Returns the answer to GET /v1/devices. Asks the driver for memory in use, in a thread: it may be slow."""
        used = await asyncio.to_thread(self._memory_used)
        return [self._device_view(device, used[device.index]) for device in self.state.devices]

    def _device_view(self, device: Device, used: int) -> types.Device:
        stats = self.arbiter.device_stats(device.index)
        return view.device_view(device, self.backend.name, self.state, stats, used)

    def _memory_used(self) -> list[int]:
        used = []
        for device in self.state.devices:
            try:
                used.append(self.backend.memory_used(device.index))
            except GpushareError:
                used.append(0)
        return used

    async def sim_stats(self) -> object:
        """The simulator's own books. Raises NotFoundError where the devices are real."""
        if self.simulator is None:
            raise NotFoundError("the devices are real: there is no simulator")
        return await asyncio.to_thread(self.simulator.stats)

    async def set_sim_lost(self, index: str, *, lost: bool) -> None:
        """Makes a simulated device stop working or work again. Raises NotFoundError for one that is not there."""
        if self.simulator is None:
            raise NotFoundError("the devices are real: there is no simulator")
        if index not in {str(device.index) for device in self.state.devices}:
            raise NotFoundError(f"there is no device {index[:20]!r}: give its index as `gpushare devices` shows it")
        number = self.simulator.number(self.state.devices[int(index)].id)
        if number is None:
            raise NotFoundError(f"the simulator does not have device {index}: it was started with others")
        await asyncio.to_thread(self.simulator.set_lost, number, lost=lost)

    async def drain(self, asked: drain_types.DrainRequest) -> types.Device:
        """Drains a device: it takes no new grants from now on. Raises NotFoundError, UsageError or FailedError."""
        if len(asked.reason) > drain_types.REASON_MAX or not (asked.reason.isascii() and asked.reason.isprintable()):
            raise UsageError(f"the reason is one line of ASCII of at most {drain_types.REASON_MAX} characters")
        device = self._named(asked.device)
        # In a thread: a disk may be slow.
        await asyncio.to_thread(self.state.drains.put, device.id, Drain(now_ns(), asked.reason))
        log.info("device %d (%s) is drained: %s", device.index, device.id, asked.reason or "no reason given")
        return self._tell_drain(device)

    async def undrain(self, name: str) -> types.Device:
        """Ends a drain: the device takes grants again. One that is not drained is left as it is. Raises NotFoundError
        or FailedError."""
        device = self._named(name)
        await asyncio.to_thread(self.state.drains.remove, device.id)
        log.info("device %d (%s) takes grants again", device.index, device.id)
        return self._tell_drain(device)

    def _tell_drain(self, device: Device) -> types.Device:
        shown = self._device_view(device, 0)
        self.state.watch.publish("device", "changed", lambda _: shown, "DeviceDrain")
        return shown

    def _drained(self, live: Live) -> None:
        """Called when a grant has ended: publishes its devices that are now drained."""
        for place in live.record.places:
            if view.device_state(place.device, self.state) == "drained":
                self._tell_drain(self.state.devices[place.index])

    def _named(self, name: str) -> Device:
        for device in self.state.devices:
            if name in (device.id, str(device.index)):
                return device
        raise NotFoundError(f"there is no device {name[:80]!r}: `gpushare devices` shows what there is")

    async def check_health(self) -> None:
        """Asks every device whether it works, and when that has changed updates shares, watchers and the log once. Also
        restores CDI specs."""
        self.resources.restore(self.state)
        looked = await asyncio.to_thread(self._look, list(self.state.devices), set(self.state.faults))
        changed = [(device, why) for device, why in looked if bool(why) != (device.id in self.state.faults)]
        if not changed:
            return
        before = self._tenants_by_name()
        for device, reason in changed:
            if reason:
                self.state.faults[device.id] = Fault(reason, now_ns())
                log.warning("device %d (%s) does not work: %s", device.index, device.id, reason)
            else:
                self._back(device)
        self.serving.refresh_shares()
        self._tell([device for device, _ in changed], before)

    def _look(self, devices: list[Device], faulty: set[str]) -> list[tuple[Device, str]]:
        """Each device and why it does not work, empty if it does. One that came back is read anew."""
        looked = []
        for device in devices:
            reason = self.backend.fault(device.index)
            if not reason and device.id in faulty:
                try:
                    device = self.backend.device(device.index)
                except FailedError as error:
                    reason = str(error)
            looked.append((device, reason))
        return looked

    def _back(self, device: Device) -> None:
        del self.state.faults[device.id]
        self.state.devices[device.index] = device
        self.hardware.renew(device)
        try:
            self.resources.offer()
        except FailedError as error:
            log.warning("%s", error)
        remember(self.state.ledger, device)
        log.warning("device %d (%s) works again", device.index, device.id)

    def _tell(self, changed: list[Device], before: dict[str, tenant_types.Tenant]) -> None:
        """Publishes events: of the devices, of the node's capacity, of every tenant that has more or less than before,
        and of the grants on the devices."""
        publish = self.state.watch.publish
        for device in changed:
            shown = self._device_view(device, 0)
            publish("device", "changed", lambda _, shown=shown: shown, "DeviceHealth")  # type: ignore[misc]
        publish("node", "changed", lambda _: self.facts(), "CapacityChanged")
        self._tell_tenants(before)
        self.transitions.publish_on({device.id for device in changed})

    def _tell_tenants(self, before: dict[str, tenant_types.Tenant]) -> None:
        for tenant in view.tenant_views(self.state):
            old = before.get(tenant.name)
            if old is None or old.have == tenant.have or not (old.degraded or tenant.degraded):
                continue
            name: types.Name = "QuotaDegraded" if tenant.degraded else "QuotaRestored" if old.degraded else ""
            self.state.watch.publish("tenant", "changed", lambda _, shown=tenant: shown, name)  # type: ignore[misc]

    # Tenants.

    async def is_member(self, peer: Peer, tenant: str) -> bool:
        """Whether the tenants file names this peer, by a name that has to be looked up. Raises FailedError."""
        wanted = self.state.tenants.members(peer, tenant)
        return wanted is not None and await self.lookups.is_member(peer.uid, peer.gid, *wanted)

    def set_tenant(self, name: str, policy: tenant_types.TenantPolicy) -> tenant_types.Tenant:
        """Makes a tenant or replaces its policy. Raises UsageError or RefusedError for what cannot be promised."""
        before = self._tenants_by_name()
        self.state.tenants.set(name, policy)
        self.serving.refresh_shares()
        shown = view.tenant_view(name, self.state)
        self.state.watch.publish("tenant", "changed" if name in before else "added", lambda _: shown)
        self._tell_tenants({**before, name: shown})
        return shown

    def reload_tenants(self) -> None:
        """Reads tenants.toml again after an administrator has changed it. Grants keep their reservations as far as
        their tenant's guarantee still covers them; a larger guarantee takes effect at once."""
        before = self._tenants_by_name()
        try:
            self.state.tenants.reload({live.record.tenant for live in self.state})
        except GpushareError as error:
            log.warning("the tenants stay as they were: %s", error)
            return
        self.serving.refresh_shares()
        after = self._tenants_by_name()
        for name in sorted({*before, *after}):
            old, new = before.get(name), after.get(name)
            if _policy(old) != _policy(new):
                change: Change = "changed" if old and new else "added" if new else "removed"
                self.state.watch.publish("tenant", change, lambda _, shown=new or old: shown)  # type: ignore[misc]
        log.info("%d tenants are read", len(after))

    def _tenants_by_name(self) -> dict[str, tenant_types.Tenant]:
        return {tenant.name: tenant for tenant in view.tenant_views(self.state)}

    def remove_tenant(self, name: str, source: str = tenant_types.FILE) -> None:
        """Removes a tenant. Raises NotFoundError, or RefusedError where it has grants."""
        users = [live.id for live in self.state if live.record.tenant == name]
        if users and name != "default":
            raise RefusedError(f"tenant {name} has {len(users)} grants ({users[0]}, ...): release them first")
        shown = view.tenant_view(name, self.state)
        self.state.tenants.remove(name, source)
        self.serving.refresh_shares()
        self.state.watch.publish("tenant", "removed", lambda _: shown)

    # Books.

    def measure(self, samples: list[Sample]) -> None:
        """Works out what each served grant had since the last call, from the present counters; once a second."""
        working = active(samples)
        self.serving.follow(working)
        self.serving.entitle(working)
        now, before = time.monotonic_ns(), self._measured_ns
        self._measured_ns = now
        self.explaining.follow(samples, working, now - before)
        shares_got(samples, now - before)
        self.state.measured += 1
        self._remember((now - before) / 1e9)
        for live in self.state:
            if live.usage is not None and live.usage.torn:
                self.transitions.fail(live, "its usage page was truncated")

    async def recall(self) -> None:
        """Reads what tenants borrowed before this start, if that is to count."""
        state = self.state
        if state.history.factor:
            try:
                await state.history.recall(state.ledger, state.promises.now.policies, DEVICE_MILLI * len(state.devices))
            except GpushareError as error:
                log.warning("what tenants borrowed before this start does not count: %s", error)

    def _remember(self, seconds: float) -> None:
        """Adds what each tenant borrowed since the last call, if that is to count."""
        history = self.state.history
        if history.factor and history.follow(view.tenants_now(self.state), self.state.promises.now.policies, seconds):
            self.serving.refresh_shares()


def _capacity(devices: list[Device]) -> types.Quantity:
    memory = sum(device.memory_bytes - device.reserved_bytes for device in devices)
    return types.Quantity(time=1000 * len(devices), memory=memory)


def _policy(tenant: tenant_types.Tenant | None) -> dict[str, object]:
    """What an administrator has set for the tenant, and what is left of it, without its momentary state."""
    return {} if tenant is None else {**msgspec.structs.asdict(tenant), "now": None}
