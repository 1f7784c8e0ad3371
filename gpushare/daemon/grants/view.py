"""State as the wire types show it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gpushare.api import residency as residency_types
from gpushare.api import sensors as sensor_types
from gpushare.api import tenants as tenant_types
from gpushare.api import types
from gpushare.api.node import DeviceState
from gpushare.api.share import GrantDevice
from gpushare.api.workload import Pod, Workload
from gpushare.binding.arbiter import Arbiter, DeviceStats, GrantStats
from gpushare.daemon.guard.walls import walls_of
from gpushare.daemon.residency import reports
from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked, rung_word
from gpushare.daemon.state.books import DeviceBook
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord, Refusals
from gpushare.daemon.state.state import State, now_ns
from gpushare.inject import cdi, edits, grantdir, process
from gpushare.inject.node import Granted, Node
from gpushare.ledger.ledger import Health
from gpushare.node.devices import Device
from gpushare.node.sensors import Sensors
from gpushare.paths import Layout
from gpushare.policy.grants.admission import Place
from gpushare.policy.quota import standing as quota
from gpushare.policy.quota.capacity import Standing
from gpushare.policy.quota.shares import DEVICE_MILLI, Share
from gpushare.policy.residency.states import Residency
from gpushare.tenants.quotas import Tenant
from gpushare.text.units import PAGE


def _grant_device(
    ordinal: int,
    record: GrantRecord,
    state: State,
    kept: int,
    live: Live | None,
    share: Share | None,
    arbiter: Arbiter,
) -> GrantDevice:
    """`ordinal`: of the device in the grant. `share`: what the grant is served with here, None where it is not served.
    Returns the same object as before where nothing has changed."""
    place = record.places[ordinal]
    healthy = live is None or place.device not in state.faults
    refused = next((one for one in record.refused if one.ordinal == ordinal), Refusals(ordinal=ordinal))
    book = live.books.get(place.index) if live is not None and live.handle is not None else None
    if book is None:
        return _placed(place, kept, healthy, refused)
    assert live is not None and live.handle is not None
    stats = live.held(ordinal, book.total(arbiter.grant_stats(live.handle, place.index)))
    uncharged, movable = live.uncharged(ordinal), reports.sums(live) if live.asked.lends else None
    had = book.had, book.share_got_milli, book.busy_milli, book.entitled_milli
    made_of = (place, kept, healthy, refused.calls, share, stats, uncharged, movable, *had)
    if book.shown is None or book.shown[0] != made_of:
        shown = _served(_placed(place, kept, healthy, refused), book, stats, share, uncharged)
        if movable is not None:
            shown.memory_hosted_bytes, shown.memory_clean_bytes = movable.hosted_bytes, movable.clean_bytes
            shown.memory_fixed = reports.divided(movable, stats.memory_bytes)
            shown.memory_fixed_bytes = sum(shown.memory_fixed.values())
        book.shown = made_of, shown
    return book.shown[1]


def _placed(place: Place, kept: int, healthy: bool, refused: Refusals) -> GrantDevice:
    return GrantDevice(
        id=place.device,
        index=place.index,
        memory_limit_bytes=place.memory_bytes,
        time_milli=place.time_milli,
        time_limit_milli=place.limit_milli,
        guaranteed_milli=kept,
        memory_borrowed_bytes=place.borrowed_bytes,
        memory_asked_bytes=place.asked_bytes or place.memory_bytes,
        memory_refusals=refused.calls,
        memory_refused=refused.last,
        health="healthy" if healthy else "unhealthy",
    )


def _served(
    shown: GrantDevice, book: DeviceBook, stats: GrantStats, share: Share | None, uncharged: int
) -> GrantDevice:
    if share is not None:
        shown.served_milli, shown.served_limit_milli = share.guarantee_milli, share.limit_milli
        shown.extra_milli = max(0, share.guarantee_milli - shown.guaranteed_milli)
    shown.memory_uncharged_bytes = uncharged
    shown.memory_bytes = stats.memory_bytes
    shown.memory_peak_bytes = stats.memory_peak_bytes
    shown.busy_ns = stats.busy_ns
    shown.leased_ns = stats.leased_ns
    shown.borrowed_ns = stats.borrowed_ns
    shown.wait_ns = stats.wait_ns
    shown.leases, shown.revokes = stats.leases, stats.revokes
    waited, reclaimed = stats.waited, stats.reclaimed
    shown.waits, shown.wait_max_ns, shown.wait_histogram = waited.count, waited.max_ns, list(waited.buckets)
    shown.reclaims, shown.reclaim_ns, shown.reclaim_max_ns = reclaimed.count, reclaimed.total_ns, reclaimed.max_ns
    shown.reclaim_histogram = list(reclaimed.buckets)
    shown.wake_to_lease_max_ns = stats.wake_to_lease_max_ns
    shown.share_got_milli, shown.entitled_milli = book.share_got_milli, book.entitled_milli
    shown.used_milli, shown.borrowed_milli = book.had.used_milli, book.had.borrowed_milli
    shown.busy_milli = book.busy_milli
    shown.lent_milli, shown.waited_milli = book.had.lent_milli, book.had.waited_milli
    shown.waiting, shown.held, shown.marked = stats.waiting, stats.held, stats.marked
    return shown


def ended_views(state: State, records: Sequence[GrantRecord], arbiter: Arbiter) -> list[types.Grant]:
    """Views of ended grants, with the ledger's numbers."""
    # A grant that was never used has no totals.
    totals = state.ledger.totals_of([record.id for record in records if record.life.kind is not None])
    shown = []
    for record in records:
        grant, own = grant_view(state, record, None, arbiter), totals.get(record.id, {})
        for device in grant.devices:
            if (total := own.get(device.id)) is not None:
                device.busy_ns, device.leased_ns = total.busy_ns, total.used_ns
                device.borrowed_ns, device.wait_ns = total.borrowed_ns, total.waited_ns
                device.memory_peak_bytes = total.memory_peak_bytes
                device.waits, device.wait_max_ns = total.waits, total.wait_max_ns
                device.reclaims, device.reclaim_ns = total.reclaims, total.reclaim_ns
                device.reclaim_max_ns = total.reclaim_max_ns
        shown.append(grant)
    return shown


def grant_view(
    state: State, record: GrantRecord, live: Live | None, arbiter: Arbiter, standing: Standing | None = None
) -> types.Grant:
    """A grant. `live` is None for one that has ended: its numbers are left out (ended_views).

    `standing`: computed once by a caller who shows many.
    """
    kept = (standing or placement.standing(state)).kept if live is not None else {}
    shares: list[Share | None] = [*live.shares] if live is not None and live.shares else [None] * len(record.places)
    devices = [
        _grant_device(
            at, record, state, kept.get((record.id, place.device), place.guaranteed_milli), live, share, arbiter
        )
        for at, (place, share) in enumerate(zip(record.places, shares, strict=True))
    ]
    life, asked = record.life, live.asked if live is not None else Asked.of(record.request, state.reclaim_policy)
    return types.Grant(
        id=record.id,
        key=record.key,
        tenant=record.tenant,
        class_=record.class_,
        managed=record.request.managed,
        idle_memory=record.request.idle_memory,
        idle_after_seconds=state.idle_after_ns(live) / 1e9 if live is not None and asked.lends else None,
        gang=asked.gang,
        part_of=types.PartOf(gang=record.part.gang, part=record.part.part) if record.part is not None else None,
        in_turn=record.request.in_turn,
        phase="suspended" if record.is_suspended else life.phase.value,
        devices=devices,
        borrow=any(place.borrows for place in record.places),
        cdi=[cdi.device_name(record.id)],
        dir=str(grantdir.self_dir(state.layout, record.id)),
        pid=life.pid,
        kind=life.kind.value if life.kind is not None else None,
        uid=record.uid,
        processes=sorted({member.pid for member in record.members}),
        workload=_workload(record),
        keep=life.keep,
        created_ns=record.created_ns,
        expires_ns=life.expires_ns,
        ended_ns=record.ended_ns,
        reason=life.reason,
        notice=_notice(state, live) if live is not None else "",
        walls=walls_of(record, state.walls),
        priority=record.request.priority,
        max_rung=rung_word(asked.max_rung),
        grace_seconds=asked.grace_ns / 1e9,
        eviction=live.eviction if live is not None else None,
        residency=_residency(record.residency, live) if live is not None and asked.lends else None,
        attachments=list(live.attachments.values()) if live is not None else [],
        sync_calls=record.host.sync_calls,
        host_bytes_in=record.host.bytes_in,
        host_bytes_out=record.host.bytes_out,
        running_ns=record.host.running_ns,
        rv=live.rv if live is not None else 0,
    )


def _workload(record: GrantRecord) -> Workload:
    pod = record.pod
    return Workload(
        program=record.program,
        container=record.container,
        pod=Pod(namespace=pod.namespace, name=pod.pod, container=pod.container, uid=pod.pod_uid) if pod.pod else None,
    )


def _residency(now: Residency, live: Live) -> residency_types.Residency:
    return residency_types.Residency(
        where=now.where.value,
        hold=now.hold,
        wanted=now.back,
        waits=now.waits,
        why=now.why,
        since_ns=now.since_ns,
        said_idle=live.said_idle_work is not None,
        receipt=live.receipt,
    )


def _notice(state: State, live: Live) -> str:
    faults = state.faults
    found = [
        f"device {place.index} ({place.device}) does not work: {faults[place.device].reason}"
        for place in (live.record.places if faults else ())
        if place.device in faults
    ]
    found += [live.exceeded] if live.exceeded else []
    if (asked := live.eviction) is not None and asked.rung == "evict":
        ended = ", or it is ended" if asked.max_rung == "kill" else ""
        left = max(0, asked.deadline_ns - now_ns()) / 1e9
        found.append(f"{asked.reason}: end it or make it smaller within {left:.1f} s{ended}")
    if (now := live.record.residency).waits:
        found.append(f"its memory is to come back from host memory: {now.waits}")
    found += (notice for notices in state.notices for notice in notices(live))
    return "; ".join(found)


def ledger_view(health: Health) -> types.LedgerHealth:
    """The health of the ledger."""
    return types.LedgerHealth(
        healthy=not health.reason,
        reason=health.reason,
        since_ns=health.since_ns,
        waiting=health.waiting,
        lost=health.lost,
        set_aside=health.set_aside,
        damaged=list(health.damaged),
    )


def device_view(
    device: Device, backend: str, state: State, stats: DeviceStats, used: int, idle: int, sensors: Sensors
) -> types.Device:
    """A device. `backend`: the backend's name. `used`: bytes of its memory in use, as the driver reports. `idle`: bytes
    of grants that lend their memory and do nothing. `sensors`: as they were read last."""
    fault, drain = state.faults.get(device.id), state.drains.get(device.id)
    takes = fault is None and drain is None
    taken = state.promises.now.taken.on(device.id)
    room = max(0, device.memory_bytes - device.reserved_bytes - taken.memory_bytes)
    guaranteed = types.Quantity(time=taken.reserved_milli, memory=taken.memory_bytes)
    return types.Device(
        id=device.id,
        index=device.index,
        minor=device.minor,
        backend="simulated" if backend == "simulated" else "native",
        name=device.name,
        pci_bus_id=device.pci_bus_id,
        capacity=types.Quantity(time=1000, memory=device.memory_bytes),
        reserved=types.Quantity(time=0, memory=device.reserved_bytes),
        guaranteed=guaranteed,
        allocatable=types.Quantity(
            time=max(0, 1000 - guaranteed.time),
            # The room that suspended grants have left is for those alone who would give it back.
            memory=max(0, room - taken.away_bytes) // PAGE * PAGE,
        )
        if takes
        else types.Quantity(time=0, memory=0),
        context_bytes=device.context_bytes,
        memory_used_bytes=used,
        memory_idle_bytes=idle if takes else 0,
        memory_asleep_bytes=min(taken.away_bytes, room) if takes else 0,
        attributes=device.attributes,
        links=device.links,
        health="healthy" if fault is None else "unhealthy",
        health_reason=fault.reason if fault is not None else "",
        unhealthy_since_ns=fault.since_ns if fault is not None else None,
        state=device_state(device.id, state),
        drain_reason=drain.reason if drain is not None else "",
        drained_since_ns=drain.since_ns if drain is not None else None,
        wall_ns=stats.wall_ns,
        leased_ns=stats.leased_ns,
        switch_ns=stats.switch_ns,
        idle_ns=stats.idle_ns,
        idle_with_waiters_ns=stats.idle_with_waiters_ns,
        sensors=msgspec.convert(sensors, sensor_types.Sensors, from_attributes=True),
    )


def device_state(device: str, state: State) -> DeviceState:
    """Whether the device takes new grants, and whether it still has some where it does not."""
    if device not in state.drains:
        return "ready"
    return "draining" if any(place.device == device for live in state for place in live.record.places) else "drained"


def tenant_views(state: State) -> list[tenant_types.Tenant]:
    """All tenants, in a list that is kept until something has changed."""
    made_of = *_tenants_made_of(state), state.promises.changes, state.history.usage
    if state.tenants_shown is None or state.tenants_shown[0] != made_of:
        standing, families, now = placement.standing(state), state.tenants.families(), tenants_now(state)
        shown = [_tenant_view(one, state, standing, families[one.name], now[one.name]) for one in state.tenants]
        state.tenants_shown = made_of, shown
    return state.tenants_shown[1]


def tenant_view(name: str, state: State) -> tenant_types.Tenant:
    """One tenant. Raises NotFoundError."""
    known = state.tenants[name]
    return next(shown for shown in tenant_views(state) if shown.name == known.name)


def tenants_now(state: State) -> Mapping[str, quota.Now]:
    """The present standing of all tenants. It is worked out again when something has changed, usually once a second."""
    made_of = _tenants_made_of(state)
    if state.standing is None or state.standing[0] != made_of:
        state.standing = made_of, _tenants_now(state)
    return state.standing[1]


def _tenants_made_of(state: State) -> tuple[object, ...]:
    return state.measured, state.watch.rv, state.promises.now, state.history.weights


def _tenants_now(state: State) -> dict[str, quota.Now]:
    had: dict[str, quota.Had] = {}
    for live in state:
        for place in live.record.places:
            book = live.books.get(place.index)
            if book is not None and (book.had.used_milli or book.had.waited_milli):
                own = had.get(live.record.tenant, quota.Had())
                had[live.record.tenant] = quota.Had(
                    wants=own.wants + place.limit_milli,
                    used=own.used + book.had.used_milli,
                    waited=own.waited + book.had.waited_milli,
                    due=(own.due or 0) + book.entitled_milli,
                )
    working = sum(device.id not in state.faults for device in state.devices)
    standing = placement.standing(state)
    short = frozenset(tenant.name for tenant in state.tenants if standing.degraded(tenant.name))
    return quota.now(state.promises.now.policies, had, DEVICE_MILLI * working, short, state.history.weights)


def _tenant_view(
    tenant: Tenant, state: State, standing: Standing, family: Sequence[str], now: quota.Now
) -> tenant_types.Tenant:
    taken = state.promises.now.taken.of(tenant.name)
    return tenant_types.Tenant(
        name=tenant.name,
        parent=state.tenants.parent(tenant.name),
        guarantee=types.Quantity(time=tenant.time, memory=tenant.memory),
        have=types.Quantity(
            time=sum(standing.have[name].time for name in family),
            memory=sum(standing.have[name].memory for name in family),
        ),
        degraded=any(standing.degraded(name) for name in family),
        limit_time=tenant.time_limit,
        weight=tenant.weight,
        tier=tenant.tier,
        users=list(tenant.users),
        groups=list(tenant.groups),
        source=tenant.source,
        allocated=types.Quantity(time=taken.time_milli, memory=taken.memory_bytes),
        grants=state.promises.grants(tenant.name),
        placement=placement.of_tenant(state, tenant.name),
        host_memory=tenant.host_memory,
        idle_after_seconds=state.tenant_idle_after_ns(tenant.name) / 1e9,
        now=tenant_types.TenantNow(
            state=now.state,
            demand_milli=now.demand,
            entitlement_milli=now.entitlement,
            used_milli=now.used,
            borrowed_milli=now.borrowed,
            lent_milli=now.lent,
            waited_milli=now.waited,
            usage_milli_seconds=round(state.history.usage.get(tenant.name, 0)),
            weight=float(state.history.weights.get(tenant.name, tenant.weight)),
        ),
    )


def driver_dir(sim_lib_dir: Path, files: tuple[Path, ...], simulated: bool) -> str:
    """The host's directory of the libraries that programs in a container get as the driver; empty: unknown."""
    return str(sim_lib_dir) if simulated else str(files[0].parent) if files else ""


def binding(layout: Layout, grant_id: str, kind: types.Kind, node: Node, granted: Sequence[Granted]) -> types.Binding:
    """What the workload of a bound grant needs: the environment of a process, or the mounts of a container too."""
    directory = str(grantdir.self_dir(layout, grant_id))
    if kind == "process":
        environment = process.environment(layout, grant_id, node)
        return types.Binding(grant=grant_id, dir=directory, env=environment, mounts=[], unset=list(process.UNSET))
    wanted = edits.container(layout, grant_id, node, granted)
    mounts = [
        types.Mount(source=mount.host, destination=mount.container, options=mount.options) for mount in wanted.mounts
    ]
    pairs = (variable.partition("=") for variable in wanted.env)
    return types.Binding(grant=grant_id, dir=directory, env={name: value for name, _, value in pairs}, mounts=mounts)
