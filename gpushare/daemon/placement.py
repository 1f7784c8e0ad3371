"""Between the node API's requests and the pure rules of gpushare.policy: admission and arbiter shares."""

from collections.abc import Iterable

from gpushare.api.types import GrantChange, GrantRequest
from gpushare.daemon.gangs import gang_of
from gpushare.daemon.state import Live, State
from gpushare.errors import UsageError
from gpushare.node.devices import MAX_DEVICES, Device
from gpushare.policy import admission
from gpushare.policy.admission import Holding, Place
from gpushare.policy.shares import Placed, Share, TenantPolicy, Workload, shares
from gpushare.units import parse_memory, parse_time

TTL_SECONDS_MAX = 86400
_KEY_MAX = 256
_WORKLOAD = {"interactive": Workload.INTERACTIVE, "inference": Workload.INFERENCE, "training": Workload.TRAINING}


def _time(value: int | str) -> int:
    return parse_time(str(value))


def _memory(value: int | str) -> int | str:
    """Bytes, or the percentage as text, checked: it is of the device that gets chosen."""
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
    """Raises UsageError for any field that makes no sense."""
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


def _devices(devices: Iterable[Device], unusable: set[str]) -> list[admission.Device]:
    return [
        admission.Device(
            id=device.id,
            index=device.index,
            memory_bytes=device.memory_bytes,
            reserved_bytes=device.reserved_bytes,
            context_bytes=device.context_bytes,
            usable=device.id not in unusable,
        )
        for device in devices
    ]


def holdings(state: State, without: Live | None = None) -> list[Holding]:
    return [
        Holding(
            grant=live.id,
            tenant=live.record.tenant,
            device=place.device,
            memory_bytes=place.memory_bytes,
            time_milli=place.time_milli,
            guaranteed_milli=place.guaranteed_milli,
            limit_milli=place.limit_milli,
            gang=_gang_id(live.record.request),
        )
        for live in state
        if live is not without
        for place in live.record.places
    ]


def place(state: State, request: GrantRequest, unusable: set[str]) -> list[Place]:
    """The places of a new grant. Raises UsageError, NotFoundError or RefusedError; changes nothing."""
    asked = _request(request)
    tenants = state.tenants.admission()
    return admission.admit(asked, _devices(state.devices, unusable), tenants, holdings(state))


def resize(state: State, live: Live, change: GrantChange) -> list[Place]:
    """Its places as they would be, on the same devices."""
    record = live.record
    others = holdings(state, without=live)
    found = []
    for old in record.places:
        asked = admission.Request(
            tenant=record.tenant,
            memory=old.memory_bytes if change.memory is None else _memory(change.memory),
            time_milli=old.time_milli if change.time is None else _time(change.time),
            limit_milli=old.limit_milli if change.time_limit is None else _time(change.time_limit),
            device=old.device,
        )
        admitted = admission.admit(asked, _devices(state.devices, set()), state.tenants.admission(), others)[0]
        found.append(admitted)
        # The next device of this grant is judged with this one taken.
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


def arbiter_shares(state: State) -> dict[str, list[Share]]:
    """By grant id, one share per place, for all that are served."""
    served = [live for live in state if live.handle is not None]
    placed = [
        Placed(
            grant=live.id,
            tenant=live.record.tenant,
            device=place.device,
            time_milli=place.time_milli,
            guaranteed_milli=place.guaranteed_milli,
            limit_milli=place.limit_milli,
            workload=_WORKLOAD[live.record.class_],
        )
        for live in served
        for place in live.record.places
    ]
    # A tenant that was taken out of the file has no more than what its living grants had reserved.
    tenants = {row.tenant: TenantPolicy(row.tenant, 0) for row in placed}
    tenants |= {name: tenant.policy for name, tenant in state.tenants.admission().items()}
    found = shares(tenants, placed)
    return {live.id: [found[live.id, place.device] for place in live.record.places] for live in served}


def first_shares(live: Live) -> list[Share]:
    """What a grant is served with until the shares of all are worked out together."""
    return [
        Share(place.guaranteed_milli, place.limit_milli, 1, 0, _WORKLOAD[live.record.class_])
        for place in live.record.places
    ]
