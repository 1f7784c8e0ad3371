"""Translates between the node API's requests, the daemon's state and the pure rules of gpushare.policy."""

from collections.abc import Collection
from dataclasses import replace

from gpushare.api.types import GrantChange
from gpushare.daemon.state.asked import Asked, memory
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import WORKLOAD, Promises
from gpushare.daemon.state.state import State
from gpushare.errors import RefusedError
from gpushare.policy.grants import admission, selector, turns
from gpushare.policy.grants.admission import Choice, Place
from gpushare.policy.grants.spread import Placement
from gpushare.policy.grants.taken import Holding, Taken
from gpushare.policy.quota.capacity import Standing
from gpushare.policy.quota.shares import Share, shares
from gpushare.policy.quota.tenant import TenantPolicy
from gpushare.policy.residency.states import Where
from gpushare.text.units import format_size, milli_of


def _devices(wanted: int | str) -> tuple[int | str, ...] | None:
    if wanted == "any":
        return None
    names = str(wanted).split(",")
    return tuple(int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else text for text in names)


def _request(state: State, asked: Asked) -> admission.Request:
    """The request as admission takes it. Raises UsageError for a selector that makes no sense."""
    request = asked.request
    return admission.Request(
        tenant=asked.tenant,
        memory=asked.memory,
        time_milli=asked.time_milli,
        limit_milli=asked.limit_milli,
        devices=request.devices,
        device=_devices(request.device),
        gang=asked.gang_id,
        selector=selector.parse(request.selector) if request.selector is not None else None,
        borrow=_borrow(state, asked),
        stays=asked.borrows_by_moving,
        placement=request.placement or of_tenant(state, asked.tenant),
    )


def _borrow(state: State, asked: Asked) -> int | str:
    """While an owner wants its memory back, nobody gets more of it on loan."""
    return 0 if state.recalls.open else asked.borrow


def of_tenant(state: State, tenant: str) -> Placement:
    """The placement of a tenant's shares whose requests have none."""
    return state.tenants.placement(tenant) or state.placement


def standing(state: State) -> Standing:
    """What remains of every tenant's guarantee and of every grant's reservation on the devices that work."""
    return state.promises.now.standing


def place(
    state: State, asked: Asked, choices: list[Choice] | None = None, promises: Promises | None = None
) -> list[Place]:
    """Returns the places of a new grant, and adds to `choices` why these. `promises`: of the grants that are there, by
    default the node's. Raises UsageError, NotFoundError or RefusedError; changes nothing."""
    asked.check(state.reclaim_policy, state.host_pool_bytes)
    request, promises = _request(state, asked), promises or state.promises
    if (turn := asked.request.in_turn) is not None and (beside := promises.beside(asked)):
        return _place_in_turn(request, frozenset(turn.parts), beside, promises, state.smallest_milli, choices)
    now = promises.now
    return admission.place(request, now.devices, now.tenants, now.taken, state.smallest_milli, choices)


def free_on(promises: Promises, device_id: str) -> int:
    """Bytes of a device that no grant takes now."""
    device = next((one for one in promises.now.devices if one.id == device_id), None)
    if device is None:
        return 0
    return device.memory_bytes - device.reserved_bytes - promises.now.taken.on(device_id).memory_bytes


def bring_back(live: Live, promises: Promises, leaving: int = 0) -> list[Place]:
    """Returns the places of a suspended grant once all of its memory is on its devices again. `leaving`: bytes that
    others are leaving at this moment. Raises RefusedError where there is no room for it; changes nothing."""
    for place in live.record.places:
        if place.hosted_bytes > (free := free_on(promises, place.device) + leaving):
            raise RefusedError(
                f"{format_size(place.hosted_bytes)} is to come back to device {place.index}, where"
                f" {format_size(max(0, free))} is free"
            )
    return [replace(place, hosted_bytes=0) for place in live.record.places]


def _place_in_turn(
    asked: admission.Request,
    parts: frozenset[int],
    beside: list[tuple[str, turns.Member]],
    promises: Promises,
    smallest_milli: int,
    choices: list[Choice] | None,
) -> list[Place]:
    """As `place`, next to the other grants of the set: room is needed for all their parts together."""
    now, there = promises.now, beside[0][1].place.device
    indices = [(device.index,) for device in now.devices if device.id == there]
    if asked.device not in (None, (there,), *indices):
        raise RefusedError(f"the grants of its set are on device {there}: ask for that one")
    asked = replace(asked, device=(there,))
    # What it would be on an empty device, which also checks its own size.
    [alone] = admission.place(asked, now.devices, now.tenants, Taken(), smallest_milli)
    whole = turns.together([*(member for _, member in beside), turns.Member(parts, alone)])
    taken, found = now.taken.copy(), list[Choice]()
    for grant, _ in beside:
        taken.drop(grant, there)
    asked = replace(asked, memory=whole.memory_bytes, time_milli=whole.time_milli)
    [all_parts] = admission.place(asked, now.devices, now.tenants, taken, smallest_milli, found)
    own = replace(alone, guaranteed_milli=min(alone.guaranteed_milli, all_parts.guaranteed_milli))
    if choices is not None:
        choices.append(replace(found[0], place=own))
    return [own]


def resize(state: State, live: Live, change: GrantChange) -> list[Place]:
    """The grant's places after the change, on the same devices. Raises like `place`; changes nothing."""
    record = live.record
    if record.residency.where is not Where.RESIDENT:
        raise RefusedError(
            f"grant {live.id} is {record.residency.where}: resume it before it is made larger or smaller"
        )
    if len(state.promises.beside(live.asked)) > 1:
        raise RefusedError(f"grant {live.id} runs in turn with others, and they share what they have: create another")
    if live.asked.borrows_by_moving and change.memory is not None:
        raise RefusedError(f"host memory is reserved for all that grant {live.id} has: create another of another size")
    now = state.promises.now
    borrow = _borrow(state, live.asked)
    others = [holding for holding in now.taken if holding.grant != live.id]
    # It keeps its place on a device that does not work.
    devices = [replace(device, fault="") for device in now.devices]
    found = []
    for old in record.places:
        asked = admission.Request(
            tenant=record.tenant,
            memory=old.memory_bytes if change.memory is None else memory(change.memory),
            time_milli=old.time_milli if change.time is None else milli_of(change.time),
            limit_milli=old.limit_milli if change.time_limit is None else milli_of(change.time_limit),
            device=old.device,
            borrow=max(borrow, old.borrowed_bytes) if isinstance(borrow, int) else borrow,
        )
        admitted = admission.admit(asked, devices, now.tenants, others, state.smallest_milli)[0]
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


def arbiter_shares(state: State, runnable: Collection[str] | None = None) -> dict[str, list[Share]]:
    """Shares of all grants that are served: by grant id, one per place.

    `runnable`: ids of grants that have work, None: all may have. On a device that does not work nothing is guaranteed.
    """
    served = {live.id: live for live in state if live.handle is not None}
    placed = [row for row in state.promises.placed(served) if row.device not in state.faults]
    # A tenant that was removed from the file keeps only what its living grants had reserved.
    names = {live.record.tenant for live in served.values()}
    tenants = {name: TenantPolicy(name, 0) for name in names} | state.promises.now.policies
    found = shares(tenants, placed, runnable, state.history.weights)
    return {
        grant: [
            found.get((grant, place.device)) or _share_of_nothing(live, place, tenants[live.record.tenant])
            for place in live.record.places
        ]
        for grant, live in served.items()
    }


def _share_of_nothing(live: Live, place: Place, policy: TenantPolicy) -> Share:
    return Share(0, place.limit_milli, policy.weight, policy.tier, WORKLOAD[live.record.class_])


def first_shares(live: Live) -> list[Share]:
    """The shares that a grant is served with until those of all grants are computed together."""
    return [
        Share(place.guaranteed_milli, place.limit_milli, 1, 0, WORKLOAD[live.record.class_])
        for place in live.record.places
    ]
