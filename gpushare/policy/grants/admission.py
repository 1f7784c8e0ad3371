"""May a grant be given, and on which devices? Pure: the node's devices, tenants and grants in, a placement or a
refusal out.

Per device the guaranteed time of its grants is at most 1000 milli of deliverable time (wall time less the 2 % that
switching may take, which the arbiter holds back from every guarantee alike), and their memory at most what the device
has less what is reserved. A grant's time is reserved out of its tenant's guarantee; what exceeds it is borrowed, and
a grant that borrows is admitted only where the time it asks for is unclaimed at this moment. One that asks for no time
borrows all it gets, and is admitted wherever its memory fits. Memory that is guaranteed to others and not used by them
goes to a grant that may be asked to give it back, and to no other; the same holds for the room that grants have left
whose memory is in host memory meanwhile. Memory is given in whole pages of the device. Among the devices that fit, a
grant of several gets those that are nearest to each other, and a single share is spread or packed (spread.py).
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.errors import NotFoundError, RefusedError, UsageError
from gpushare.policy.grants import distance, named, reserves, spread
from gpushare.policy.grants import selector as selectors
from gpushare.policy.grants.spread import PLACEMENT, Placement
from gpushare.policy.grants.taken import Holding, Taken
from gpushare.policy.quota.shares import DEVICE_MILLI
from gpushare.policy.quota.tenant import TenantPolicy
from gpushare.text.units import MIB, PAGE, format_size, format_time, parse_memory

WORKING_BYTES = 256 * MIB
"""Least memory of a grant in addition to a context's: with less, programs fail in obscure ways."""
SMALLEST_MILLI = 5
"""`smallest_share` of the arbiter's built-in values (1 ms / 200 ms)."""
GRANTS_MAX = 1024
"""GS_ARBITER_MAX_GRANTS."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as admission counts it. `reserved_bytes`: taken by the driver. `context_bytes`: by each grant's first
    context. `fault`: why it takes no new grants; empty: it does."""

    id: str
    index: int
    memory_bytes: int
    reserved_bytes: int = 0
    context_bytes: int = 0
    fault: str = ""
    facts: selectors.Facts = field(default_factory=dict)
    """What selectors compare."""
    links: distance.Links = field(default_factory=dict)
    """How near the other devices are."""

    @property
    def usable(self) -> bool:
        """Whether it takes new grants."""
        return not self.fault


@dataclass(frozen=True, slots=True)
class Tenant:
    """Policy of a tenant. Guarantees are its own, without those of the tenants below it. `memory_bytes`: guaranteed
    over the node; 0: none is held back for it. `limit_milli`: of the node, for it and all below it: its `family`, which
    may be empty where that is only itself. `promised_milli`: `guarantee_milli` before devices were lost; None: the
    same. `rest`: it is guaranteed what no other is."""

    name: str
    guarantee_milli: int
    memory_bytes: int = 0
    limit_milli: int | None = None
    weight: int = 1
    tier: int = 0
    promised_milli: int | None = None
    parent: str | None = None
    family: tuple[str, ...] = ()
    rest: bool = False

    @property
    def promised(self) -> int:
        """Milli that it is guaranteed when all devices work."""
        return self.guarantee_milli if self.promised_milli is None else self.promised_milli

    @property
    def policy(self) -> TenantPolicy:
        """In the terms of gpushare.policy.quota.shares."""
        return TenantPolicy(self.name, self.guarantee_milli, self.weight, self.tier, self.limit_milli, self.parent)


@dataclass(frozen=True, slots=True)
class Request:
    """`memory`: bytes, or text for units.parse_memory (`35%` is of each device). `device`: an id or index, a tuple of
    as many as `devices`, or None for any. `gang`: a tenant's grants of one gang are on different devices. `borrow`: as
    `memory`, how much of it may be memory that is guaranteed to others. `stays`: that is had back
    only by moving it, so it borrows nothing for what cannot be moved. `selector`: which devices are acceptable."""

    tenant: str
    memory: int | str
    time_milli: int
    limit_milli: int = DEVICE_MILLI
    devices: int = 1
    device: str | int | tuple[str | int, ...] | None = None
    gang: str | None = None
    selector: selectors.Node | None = None
    borrow: int | str = 0
    stays: bool = False
    placement: Placement = PLACEMENT

    @property
    def single(self) -> bool:
        """Whether it is placed by its `placement`."""
        return self.devices == 1 and self.gang is None


@dataclass(frozen=True, slots=True)
class Place:
    """`guaranteed_milli`: reserved out of the tenant's guarantee, as long as all devices work. `borrowed_bytes`: of the
    memory, what was guaranteed to other tenants when it was given. `asked_bytes`: what was asked for, of which
    `memory_bytes` is the whole pages; 0: not known, from an earlier version. `hosted_bytes`: of the memory, what is in
    host memory now, so that others may have its room."""

    device: str
    index: int
    memory_bytes: int
    time_milli: int
    guaranteed_milli: int
    limit_milli: int
    borrowed_bytes: int = 0
    asked_bytes: int = 0
    hosted_bytes: int = 0

    @property
    def here_bytes(self) -> int:
        """What it takes of the device now."""
        return self.memory_bytes - self.hosted_bytes

    @property
    def on_loan_bytes(self) -> int:
        """What it has on loan on the device now: hosted memory is given back first."""
        return max(0, self.borrowed_bytes - self.hosted_bytes)

    @property
    def borrows(self) -> bool:
        """Whether it is to get more time than is guaranteed to it."""
        return self.guaranteed_milli < max(self.time_milli, 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """Why a device was chosen. `fits`: by index of each that fitted, how much would have stayed free, milli of its
    memory and milli of its time added. `refused`: why others did not fit. `spare_milli`: what was left of the tenant's
    guarantee. `near`: how far apart the grant's devices are at most, where nearness decided. `chosen`: how it was
    chosen for a single share."""

    place: Place
    fits: dict[int, int]
    refused: tuple[str, ...]
    spare_milli: int
    near: str | None = None
    chosen: spread.Chosen[Place] | None = None


def smallest_share(credit_floor_ns: int, bucket_ns: int) -> int:
    """The smallest guarantee, in milli, whose bucket can hold the credit that a lease needs. A smaller one would never
    be served as guaranteed."""
    return -(-credit_floor_ns * DEVICE_MILLI // bucket_ns)


def admit(
    request: Request,
    devices: Collection[Device],
    tenants: Mapping[str, Tenant],
    holdings: Collection[Holding],
    smallest_milli: int = SMALLEST_MILLI,
) -> list[Place]:
    """One place per device asked for. Raises UsageError, NotFoundError or RefusedError with the numbers.
    To resize a grant, leave its own holdings out and name its device."""
    return place(request, devices, tenants, Taken(holdings), smallest_milli)


def place(
    request: Request,
    devices: Collection[Device],
    tenants: Mapping[str, Tenant],
    taken: Taken,
    smallest_milli: int = SMALLEST_MILLI,
    choices: list[Choice] | None = None,
) -> list[Place]:
    """`admit` with sums that are kept up to date. `choices`: receives one for each place."""
    tenant = tenants.get(request.tenant)
    if tenant is None:
        known = ", ".join(sorted(tenants)) or "none"
        raise NotFoundError(f"there is no tenant {request.tenant!r}: known are {known}")
    _check_request(request, devices, taken, smallest_milli)
    candidates = named.candidates(request.device, request.selector, devices)
    if request.devices > len(candidates):
        faults = "".join(f"; device {device.index}: {device.fault}" for device in devices if device.fault)
        raise RefusedError(
            f"{request.devices} devices asked for, the node has {len(candidates)} that can be given{faults}"
        )
    _check_limits(request, tenant, tenants, taken)
    spare = tenant.guarantee_milli - taken.of(tenant.name).guaranteed_milli
    unreserved = tenant.promised - taken.of(tenant.name).reserved_milli
    places: list[Place] = []
    borrowed = 0
    together = _together(request, candidates, tenant, max(0, spare), taken)
    near = distance.farthest(together, {device.id: device.links for device in candidates})
    for _ in range(request.devices):
        used = {place.device for place in places}
        options, reasons = [], []
        for device in candidates:
            if device.id in used:
                continue
            try:
                options.append(_try(request, device, tenant, max(0, spare), taken))
            except RefusedError as refusal:
                reasons.append(str(refusal))
        if not options:
            raise RefusedError("; ".join(dict.fromkeys(reasons)))
        asked, allowed = options[0][1].memory_bytes, options[0][1].borrowed_bytes
        number = len(places) + 1
        more = _borrowed(asked * number, allowed * number, devices, tenant, tenants, taken) - borrowed
        borrowed += more
        wanted = [option for option in options if option[1].device in together[number - 1 : number]]
        chosen = _choose(request, options, devices, tenants, taken) if request.single else None
        best = chosen.fit if chosen else min(wanted or options, key=lambda option: (option[0], option[1].index))[1]
        left, spare = max(0, spare), spare - best.guaranteed_milli
        # Reservations of lost devices' time must still fit when they are back.
        room = DEVICE_MILLI - taken.on(best.device).reserved_milli
        reserved = max(0, min(request.time_milli, unreserved, room))
        unreserved -= reserved
        here = next(device for device in candidates if device.id == best.device)
        more = max(more, taken.on(here.id).lent(best.memory_bytes, here.memory_bytes - here.reserved_bytes))
        places.append(replace(best, guaranteed_milli=reserved, borrowed_bytes=more))
        if choices is not None:
            fits = {option.index: round(abs(free) * DEVICE_MILLI) for free, option in options}
            choices.append(Choice(places[-1], fits, tuple(reasons), left, near, chosen))
    return places


def _choose(
    request: Request,
    options: Sequence[tuple[float, Place]],
    devices: Collection[Device],
    tenants: Mapping[str, Tenant],
    taken: Taken,
) -> spread.Chosen[Place]:
    """`options`: as `_try` returns them."""
    memory = {device.id: device.memory_bytes - device.reserved_bytes for device in devices if device.usable}
    least = max(device.context_bytes for device in devices) + WORKING_BYTES
    there = spread.opened(request.tenant, memory, least, tenants, taken)
    return spread.choose([(abs(free), place) for free, place in options], request.placement, there)


def _together(
    request: Request, candidates: Collection[Device], tenant: Tenant, spare: int, taken: Taken
) -> tuple[str, ...]:
    """The devices that are nearest to each other, in the order in which they are to be given; none where it makes no
    difference which."""
    links = {device.id: device.links for device in candidates}
    if not 1 < request.devices < len(links) or distance.all_alike(links):
        return ()
    options: list[tuple[float, Place]] = []
    for device in candidates:
        with contextlib.suppress(RefusedError):
            options.append(_try(request, device, tenant, spare, taken))
    options.sort(key=lambda option: (option[0], option[1].index))
    # On a device whose time others have asked for, only guaranteed time fits: the tenant has enough for `most` of them.
    owed = {place.device for _, place in options if DEVICE_MILLI - taken.on(place.device).time_milli < place.time_milli}
    most = spare // request.time_milli if request.time_milli else 0
    order = [place.device for _, place in options]
    found = distance.nearest(order, request.devices, links, lambda some: len(owed.intersection(some)) <= most)
    return tuple(sorted(found or (), key=lambda device: device not in owed))


def _check_request(request: Request, devices: Collection[Device], taken: Taken, smallest_milli: int) -> None:
    if request.devices < 1:
        raise UsageError(f"a grant needs at least one device, not {request.devices}")
    if request.device is not None and len(names := set(named.names(request.device))) != request.devices:
        raise UsageError(f"{request.devices} devices are asked for and {len(names)} are named: name as many, or none")
    if not 0 <= request.time_milli <= DEVICE_MILLI or not 0 < request.limit_milli <= DEVICE_MILLI:
        raise UsageError("time and time limit are at most 100%, and the limit is above 0")
    if request.limit_milli < request.time_milli:
        raise UsageError(
            f"time limit {format_time(request.limit_milli)} is below the time {format_time(request.time_milli)}:"
            " raise the one or lower the other"
        )
    if 0 < request.time_milli < smallest_milli:
        raise RefusedError(
            f"a share of {format_time(request.time_milli)} is too small to be served: ask for"
            f" {format_time(smallest_milli)} or more, or for 0% to use what others leave idle"
        )
    if not devices:
        raise RefusedError("this node has no device")
    if taken.grants >= GRANTS_MAX:
        raise RefusedError(f"the node holds {GRANTS_MAX} grants, which is all it can: release some")


def _check_limits(request: Request, tenant: Tenant, tenants: Mapping[str, Tenant], taken: Taken) -> None:
    more = request.time_milli * request.devices
    above: Tenant | None = tenant
    while above is not None:
        asked = sum(taken.of(name).time_milli for name in above.family or (above.name,))
        if above.limit_milli is not None and asked + more > above.limit_milli:
            raise RefusedError(
                f"tenant {above.name} is limited to {format_time(above.limit_milli)} of device time and its grants have"
                f" {format_time(asked)}: {format_time(more)} more does not fit"
            )
        above = tenants[above.parent] if above.parent is not None else None


def _borrowed(
    memory: int,
    allowed: int,
    devices: Collection[Device],
    tenant: Tenant,
    tenants: Mapping[str, Tenant],
    taken: Taken,
) -> int:
    """How much of the memory is guaranteed to other tenants over the node and not held by their grants. Raises
    RefusedError where that is more than is `allowed`."""
    usable = {device.id: device for device in devices if device.usable}
    if not any(other.memory_bytes for other in tenants.values()):
        return 0
    held = {name: taken.memory(name, usable) + taken.away(name, usable) for name in tenants}
    parents = {name: other.parent for name, other in tenants.items()}
    kept = reserves.kept(tenant.name, parents, {name: other.memory_bytes for name, other in tenants.items()}, held)
    free = sum(device.memory_bytes - device.reserved_bytes for device in usable.values())
    free -= sum(taken.on(device).memory_bytes + taken.on(device).away_bytes for device in usable)
    over = min(memory, max(0, memory - (free - kept))) if kept else 0
    if over > allowed:
        raise RefusedError(
            f"{format_size(memory)} of memory does not fit: {format_size(max(0, free))} is free, and"
            f" {format_size(kept)} of it is guaranteed to other tenants"
            + (f", of which it may borrow {format_size(allowed)}" if allowed else "")
        )
    return over


def _try(request: Request, device: Device, tenant: Tenant, spare: int, taken: Taken) -> tuple[float, Place]:
    """(the fraction that would stay free here, negative for one that only borrows: less is a better fit; place)."""
    label = f"device {device.index}"
    here = taken.on(device.id)
    if request.gang is not None and (other := taken.of_gang(device.id, request.tenant, request.gang)) is not None:
        raise RefusedError(
            f"{label} has grant {other} of gang {request.gang!r} already: two ranks of one communicator on"
            " a device may wait for each other for ever"
        )
    asked = request.memory if isinstance(request.memory, int) else parse_memory(request.memory, device.memory_bytes)
    if asked < 0:
        raise UsageError(f"memory {asked} is negative")
    memory = asked - asked % PAGE
    least = -(-(device.context_bytes + WORKING_BYTES) // PAGE) * PAGE
    if memory < least:
        raise RefusedError(
            f"{format_size(asked)} of memory is too little on {label}: a context takes"
            f" {format_size(device.context_bytes)} and a program {format_size(WORKING_BYTES)}:"
            f" ask for {format_size(least)} or more"
        )
    room = device.memory_bytes - device.reserved_bytes - here.memory_bytes
    if memory > room:
        raise RefusedError(
            f"{format_size(memory)} of memory does not fit on {label}: {format_size(max(0, room))} of"
            f" {format_size(device.memory_bytes)} is free"
        )
    borrow = request.borrow if isinstance(request.borrow, int) else parse_memory(request.borrow, device.memory_bytes)
    borrow = min(borrow, memory - least) if request.stays else borrow
    if (lent := here.lent(memory, device.memory_bytes - device.reserved_bytes)) > borrow:
        raise RefusedError(
            f"{format_size(memory)} of memory does not fit on {label}: {format_size(room)} is free, and"
            f" {format_size(here.away_bytes)} of it is to go back to suspended grants: {format_size(lent)} would be"
            f" borrowed, and it may borrow {format_size(borrow)}"
        )
    guaranteed_here, asked_here = here.guaranteed_milli, here.time_milli
    guaranteed = min(request.time_milli, spare)
    unguaranteed = DEVICE_MILLI - guaranteed_here
    if guaranteed > unguaranteed:
        raise RefusedError(
            f"{format_time(request.time_milli)} of time does not fit on {label}: {format_time(unguaranteed)} is free,"
            f" {format_time(guaranteed_here)} is guaranteed to other grants"
        )
    unclaimed = DEVICE_MILLI - asked_here
    less = tenant.guarantee_milli < tenant.promised
    lost = f" ({format_time(tenant.promised)} were promised, devices are lost)" if less else ""
    if guaranteed < request.time_milli and request.time_milli > unclaimed:
        raise RefusedError(
            f"{format_time(request.time_milli)} of time does not fit on {label}:"
            f" {format_time(max(0, unclaimed))} is free, and tenant {tenant.name} has {format_time(spare)} of its"
            f" guarantee of {format_time(tenant.guarantee_milli)} left{lost}"
        )
    free_memory = (room - memory) / device.memory_bytes
    free_time = max(0, DEVICE_MILLI - asked_here - request.time_milli) / DEVICE_MILLI
    place = Place(
        device.id,
        device.index,
        memory,
        request.time_milli,
        guaranteed,
        request.limit_milli,
        min(borrow, memory),
        asked,
    )
    free = free_memory + free_time
    return free if request.time_milli else -free, place
