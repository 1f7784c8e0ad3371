"""Translates between the node API's requests, the daemon's state and the pure rules of gpushare.policy."""

from collections.abc import Collection
from dataclasses import replace

from gpushare.api.types import GrantChange, GrantRequest
from gpushare.daemon.gangs import gang_of
from gpushare.daemon.state import Live, State
from gpushare.daemon.tenants import DEFAULT
from gpushare.errors import UsageError
from gpushare.node.devices import MAX_DEVICES
from gpushare.policy import admission
from gpushare.policy import capacity as capacity_policy
from gpushare.policy.admission import Holding, Place
from gpushare.policy.capacity import Promise, Standing
from gpushare.policy.shares import DEVICE_MILLI, Placed, Share, TenantPolicy, Workload, shares
from gpushare.units import parse_memory, parse_time

TTL_SECONDS_MAX = 86400
_KEY_MAX = 256
_WORKLOAD = {"interactive": Workload.INTERACTIVE, "inference": Workload.INFERENCE, "training": Workload.TRAINING}


def _time(value: int | str) -> int:
    return parse_time(str(value))


def _memory(value: int | str) -> int | str:
    """Bytes, or a checked percentage as text: it applies to the device that is chosen later."""
    text = str(value)
    if text.strip().endswith("%"):
        parse_memory(text, 1 << 40)
        return text
    return parse_memory(text, 0)


def _device(wanted: int | str) -> int | str | None:
    if wanted == "any":
        return None
    text = str(wanted)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else text


def _gang_id(request: GrantRequest) -> str | None:
    gang = gang_of(request)
    return gang.id if gang is not None else None


def _request(request: GrantRequest) -> admission.Request:
    """The request as admission takes it. Raises UsageError for any field that makes no sense."""
    if not 1 <= request.ttl_seconds <= TTL_SECONDS_MAX:
        raise UsageError(f"ttl_seconds {request.ttl_seconds} is out of range: give 1 to {TTL_SECONDS_MAX}")
    if request.key is not None and not 1 <= len(request.key) <= _KEY_MAX:
        raise UsageError(f"the key has {len(request.key)} characters: give 1 to {_KEY_MAX}")
    if not 1 <= request.devices <= MAX_DEVICES:
        raise UsageError(f"devices {request.devices} is out of range: give 1 to {MAX_DEVICES}")
    return admission.Request(
        tenant=request.tenant,
        memory=_memory(request.memory),
        time_milli=_time(request.time),
        limit_milli=_time(request.time_limit),
        devices=request.devices,
        device=_device(request.device),
        gang=_gang_id(request),
    )


def _devices(state: State, *, resize: bool = False) -> list[admission.Device]:
    """`resize`: a grant keeps its place on a device that does not work, so faults are left out."""
    return [
        admission.Device(
            id=device.id,
            index=device.index,
            memory_bytes=device.memory_bytes,
            reserved_bytes=device.reserved_bytes,
            context_bytes=device.context_bytes,
            fault="" if resize else _fault(state, device.id),
        )
        for device in state.devices
    ]


def _fault(state: State, device: str) -> str:
    fault = state.faults.get(device)
    return f"it does not work: {fault.reason}" if fault is not None else ""


def standing(state: State) -> Standing:
    """What remains of every tenant's guarantee and of every grant's reservation on the devices that work."""
    promised = {tenant.name: Promise(tenant.time, tenant.memory) for tenant in state.tenants}
    working = [device for device in state.devices if device.id not in state.faults]
    memory = sum(device.memory_bytes - device.reserved_bytes for device in working)
    capacity = Promise(DEVICE_MILLI * len(working), memory)
    placed = [_placed(live, place, place.guaranteed_milli) for live in state for place in live.record.places]
    return capacity_policy.standing(promised, DEFAULT, capacity, placed, {device.id for device in working})


def _tenants(state: State, stands: Standing) -> dict[str, admission.Tenant]:
    return {
        name: replace(
            tenant,
            guarantee_milli=stands.have[name].time,
            memory_bytes=stands.have[name].memory,
            promised_milli=tenant.guarantee_milli,
        )
        for name, tenant in state.tenants.admission().items()
    }


def holdings(state: State, stands: Standing, without: Live | None = None) -> list[Holding]:
    """The places of all grants except `without`, as admission counts them."""
    return [
        Holding(
            grant=live.id,
            tenant=live.record.tenant,
            device=place.device,
            memory_bytes=place.memory_bytes,
            time_milli=place.time_milli,
            guaranteed_milli=stands.kept[live.id, place.device],
            limit_milli=place.limit_milli,
            gang=_gang_id(live.record.request),
            reserved_milli=place.guaranteed_milli,
        )
        for live in state
        if live is not without
        for place in live.record.places
    ]


def place(state: State, request: GrantRequest) -> list[Place]:
    """The places of a new grant. Raises UsageError, NotFoundError or RefusedError; changes nothing."""
    asked = _request(request)
    stands = standing(state)
    devices, tenants = _devices(state), _tenants(state, stands)
    return admission.admit(asked, devices, tenants, holdings(state, stands), state.smallest_milli)


def resize(state: State, live: Live, change: GrantChange) -> list[Place]:
    """The grant's places after the change, on the same devices. Raises like `place`; changes nothing."""
    record = live.record
    stands = standing(state)
    others = holdings(state, stands, without=live)
    found = []
    for old in record.places:
        asked = admission.Request(
            tenant=record.tenant,
            memory=old.memory_bytes if change.memory is None else _memory(change.memory),
            time_milli=old.time_milli if change.time is None else _time(change.time),
            limit_milli=old.limit_milli if change.time_limit is None else _time(change.time_limit),
            device=old.device,
        )
        devices, tenants = _devices(state, resize=True), _tenants(state, stands)
        admitted = admission.admit(asked, devices, tenants, others, state.smallest_milli)[0]
        found.append(admitted)
        # Admission of the grant's next device counts this one as taken.
        others.append(
            Holding(
                record.id,
                record.tenant,
                admitted.device,
                admitted.memory_bytes,
                admitted.time_milli,
                admitted.guaranteed_milli,
                admitted.limit_milli,
            )
        )
    return found


def _placed(live: Live, place: Place, guaranteed_milli: int) -> Placed:
    return Placed(
        grant=live.id,
        tenant=live.record.tenant,
        device=place.device,
        time_milli=place.time_milli,
        guaranteed_milli=guaranteed_milli,
        limit_milli=place.limit_milli,
        workload=_WORKLOAD[live.record.class_],
    )


def arbiter_shares(state: State, runnable: Collection[str] | None = None) -> dict[str, list[Share]]:
    """Shares of all grants that are served: by grant id, one per place.

    `runnable`: ids of grants that have work, None: all may have. On a device that does not work nothing is guaranteed.
    """
    served = [live for live in state if live.handle is not None]
    stands = standing(state)
    placed = [
        _placed(live, place, stands.kept[live.id, place.device])
        for live in served
        for place in live.record.places
        if place.device not in state.faults
    ]
    # A tenant that was removed from the file keeps only what its living grants had reserved.
    tenants = {live.record.tenant: TenantPolicy(live.record.tenant, 0) for live in served}
    tenants |= {name: tenant.policy for name, tenant in _tenants(state, stands).items()}
    found = shares(tenants, placed, runnable)
    return {
        live.id: [
            found.get((live.id, place.device), _share_of_nothing(live, place, tenants[live.record.tenant]))
            for place in live.record.places
        ]
        for live in served
    }


def _share_of_nothing(live: Live, place: Place, policy: TenantPolicy) -> Share:
    return Share(0, place.limit_milli, policy.weight, policy.tier, _WORKLOAD[live.record.class_])


def first_shares(live: Live) -> list[Share]:
    """The shares that a grant is served with until those of all grants are computed together."""
    return [
        Share(place.guaranteed_milli, place.limit_milli, 1, 0, _WORKLOAD[live.record.class_])
        for place in live.record.places
    ]
