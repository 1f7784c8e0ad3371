"""What each grant gets on each device, as the arbiter wants it: guarantee, limit, weight, tier.

A grant's guarantee is what admission reserved for it, and what its tenant's guarantee has left unreserved, split over
the tenant's grants by their time. A tenant's weight is split the same way: two grants borrow no more than one. So is
its limit, which is of the whole node: the grants that run get together at most that.
"""

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpushare.policy import families
from gpushare.policy.entitlement import Part, TenantState, entitle, water_fill
from gpushare.policy.history import Weights
from gpushare.policy.tenant import TenantPolicy

DEVICE_MILLI = 1000
_WEIGHT_SCALE = 1000
_WEIGHT_MAX = 2**32 - 1
_FINE = 1000  # units of a milli: small weights have their part too
_LEAST_CORRECTED = 100  # a hundredth of a weight is left of it, whatever was borrowed
_LEAST_FREE = 50  # a fiftieth of what goes back to its tenants
_WHOLE_WEIGHT = 1_000_000  # of all that borrow on a device where tenants nest
_OTHERS = 0  # tier there of those that are to have no more than they are guaranteed


class Workload(enum.IntEnum):
    """`class` of a grant; the values are enum gs_grant_class."""

    INTERACTIVE = 0
    INFERENCE = 1
    TRAINING = 2


@dataclass(frozen=True, slots=True)
class Share:
    """struct gs_share: of one grant on one device."""

    guarantee_milli: int
    limit_milli: int = DEVICE_MILLI
    weight: int = 1
    tier: int = 0
    workload: Workload = Workload.TRAINING


@dataclass(frozen=True, slots=True)
class Placed:
    """One grant on one device: `time_milli` asked, `guaranteed_milli` of it reserved out of the tenant's guarantee."""

    grant: str
    tenant: str
    device: str
    time_milli: int
    guaranteed_milli: int
    limit_milli: int = DEVICE_MILLI
    workload: Workload = Workload.TRAINING


def shares(
    tenants: Mapping[str, TenantPolicy],
    placed: Collection[Placed],
    runnable: Collection[str] | None = None,
    weights: Weights | None = None,
) -> dict[tuple[str, str], Share]:
    """(grant, device) -> share. `runnable`: grants with work, None: all of them. `weights`: in place of tenants' own.

    A guarantee stays with its grant while that is idle, so that it is served at once when it wakes and nothing is ever
    promised twice. What it leaves is surplus, of which the tenant's grants that run get first
    what is their own tenant's: by their weights, which costs nobody's promise when they are late."""
    due = families.dues(tenants, {row.tenant for row in placed})
    guaranteed = _spread(due, _guarantees(due, placed))
    groups = _by_tenant_and_device(placed)
    milli = {key: _split(guaranteed[key], rows) for key, rows in groups.items()}
    limits = _limits(tenants, placed, milli, runnable)
    result = {}
    on_device: dict[str, dict[str, list[Placed]]] = {}
    for (tenant, device), rows in groups.items():
        on_device.setdefault(device, {})[tenant] = rows
    for device, here in on_device.items():
        promised = {
            tenant: _Promise(
                milli=guaranteed[tenant, device],
                unused=sum(milli[tenant, device][row.grant] for row in rows if not _runs(row, runnable)),
                limit=sum(limits[row.grant, device] for row in rows if _runs(row, runnable)),
            )
            for tenant, rows in here.items()
            if any(_runs(row, runnable) for row in rows)
        }
        nested = any(len(families.line(tenants, tenant)) > 1 for tenant in here)
        if nested:
            pulls = _family_pulls(tenants, promised, {tenant: guaranteed[tenant, device] for tenant in here}, weights)
        else:
            pulls = _pulls({tenant: tenants[tenant] for tenant in promised}, promised, weights)
        for tenant, rows in here.items():
            policy = tenants[tenant]
            usual = _Pull(_weight(policy, None if nested else weights), _OTHERS if nested else policy.tier)
            working = sum(_part(row) for row in rows if _runs(row, runnable))
            for row in rows:
                runs = _runs(row, runnable)
                pull = pulls[tenant] if runs else usual
                weight = pull.weight * _part(row) // (working if runs else working + _part(row))
                limit = limits[row.grant, device]
                result[row.grant, device] = Share(
                    guarantee_milli=min(milli[tenant, device][row.grant], limit),
                    limit_milli=limit,
                    weight=min(max(weight, 1), _WEIGHT_MAX) if pull.weight else 0,
                    tier=pull.tier,
                    workload=row.workload,
                )
    return result


def entitlements(here: Mapping[str, Share], working: Collection[str]) -> dict[str, int]:
    """What each of these grants, which the arbiter serves on one device with these shares, should get of it now, in
    milli: those that work what they are guaranteed, and of what is left by tier and weight up to their limits; the
    others nothing."""
    states = [
        TenantState(grant, share.guarantee_milli, share.limit_milli, share.weight, share.tier)
        for grant, share in here.items()
        if grant in working
    ]
    return dict.fromkeys(here, 0) | entitle(DEVICE_MILLI, states).milli


def _part(row: Placed) -> int:
    """Of its tenant's weight. One that asked for no time has the least there is beside those that did."""
    return max(1, row.time_milli)


def _runs(row: Placed, runnable: Collection[str] | None) -> bool:
    return runnable is None or row.grant in runnable


@dataclass(frozen=True, slots=True)
class _Pull:
    """A tenant's at the surplus of one device."""

    weight: int
    tier: int


@dataclass(frozen=True, slots=True)
class _Promise:
    """To a tenant that runs, on one device: `unused` of it to its grants that are idle. `limit`: of those that run."""

    milli: int
    unused: int
    limit: int


def _weight(policy: TenantPolicy, weights: Weights | None) -> int:
    """For the arbiter, which has no pull of nothing within a tier. What a lease costs at a small weight is made up for
    at a larger one later: that may not take minutes."""
    own = policy.weight * _WEIGHT_SCALE
    now = (weights or {}).get(policy.name)
    return own if now is None or not own else max(own // _LEAST_CORRECTED, round(now * _WEIGHT_SCALE))


def _pulls(
    tenants: Mapping[str, TenantPolicy], promised: Mapping[str, _Promise], weights: Weights | None
) -> dict[str, _Pull]:
    """Of the tenants that run: such that each gets what it is entitled to while all of them want all they may have,
    what its own idle grants leave included. Those that get more than their grants that run are guaranteed are in the
    highest tier for it, by how much that is."""
    pulls = {name: _Pull(_weight(policy, weights), policy.tier) for name, policy in tenants.items()}
    unused = sum(promise.unused for promise in promised.values())
    if not unused:
        return pulls
    states = [
        TenantState(name, promised[name].milli * _FINE, promised[name].limit * _FINE, policy.weight, policy.tier)
        for name, policy in tenants.items()
    ]
    entitled = entitle(DEVICE_MILLI * _FINE, states, weights).milli
    parts = {name: max(0, entitled[name] - (due.milli - due.unused) * _FINE) for name, due in promised.items()}
    weighted = [policy for policy in tenants.values() if policy.weight]
    top = max((policy.tier for policy in weighted), default=0)
    # Never 0: running grants leave surplus too at times, and no tenant may be excluded from that.
    least = max(unused // _LEAST_FREE, 1) * _FINE
    highest = {policy.name: policy.weight for policy in weighted if policy.tier == top}
    for name, weight in highest.items():
        parts[name] = max(parts[name], promised[name].unused * _FINE + least * weight // sum(highest.values()))
    unit = _WEIGHT_SCALE * max(1, sum(policy.weight for name, policy in tenants.items() if parts[name]))
    for name, part in parts.items():
        if part:
            pulls[name] = _Pull(max(1, unit * part // sum(parts.values())), top)
    return pulls


def _family_pulls(
    tenants: Mapping[str, TenantPolicy],
    promised: Mapping[str, _Promise],
    own: Mapping[str, int],
    weights: Weights | None,
) -> dict[str, _Pull]:
    """The same where tenants nest, whose weights and tiers say nothing outside their family: by what each is to have
    beyond what its grants that run are guaranteed. `own`: guaranteed here, also to those that do not run."""
    pulls = {name: _Pull(tenants[name].weight * _WEIGHT_SCALE, _OTHERS) for name in promised}
    held = {name: milli * _FINE for name, milli in own.items()}
    wants = {name: promise.limit * _FINE for name, promise in promised.items()}

    def beyond(by: Weights | None) -> dict[str, int]:
        entitled = families.entitled(tenants, held, wants, DEVICE_MILLI * _FINE, by)
        return {name: max(0, entitled[name] - (due.milli - due.unused) * _FINE) for name, due in promised.items()}

    parts = beyond(weights)
    if weights:
        parts = {name: max(parts[name], part // _LEAST_CORRECTED) for name, part in beyond(None).items()}
    for name, part in parts.items():
        if part:
            pulls[name] = _Pull(max(1, _WHOLE_WEIGHT * part // sum(parts.values())), _OTHERS + 1)
    return pulls


def _by_tenant_and_device(placed: Iterable[Placed]) -> dict[tuple[str, str], list[Placed]]:
    rows: dict[tuple[str, str], list[Placed]] = {}
    for row in placed:
        rows.setdefault((row.tenant, row.device), []).append(row)
    return rows


def _split(milli: int, rows: list[Placed]) -> dict[str, int]:
    """What is reserved for each, and the rest by time; equally where nobody asked for any. Nobody above its limit,
    which leaves the rest to the others."""
    asked = any(row.time_milli for row in rows)
    own = {row.grant: min(row.guaranteed_milli, row.limit_milli) for row in rows}
    parts = [Part(row.grant, row.time_milli if asked else 1, row.limit_milli - own[row.grant]) for row in rows]
    rest = water_fill(milli - sum(own.values()), [part for part in parts if part.weight > 0])
    return {grant: least + rest.get(grant, 0) for grant, least in own.items()}


def _limits(
    tenants: Mapping[str, TenantPolicy],
    placed: Collection[Placed],
    milli: Mapping[tuple[str, str], Mapping[str, int]],
    runnable: Collection[str] | None,
) -> dict[tuple[str, str], int]:
    """Each grant's own limit, and of its tenant's its part: of all of it among those that run. One that is idle has
    what it would have if all ran: it is not shut out when it wakes, and `runnable` then makes up for it."""
    limits = {(row.grant, row.device): row.limit_milli for row in placed}
    running = [row for row in placed if _runs(row, runnable)]
    for rows in (placed, running):
        by_tenant: dict[str, list[Placed]] = {}
        for row in rows:
            by_tenant.setdefault(row.tenant, []).append(row)
        most = {name: sum(row.limit_milli for row in mine) for name, mine in by_tenant.items()}
        parts = families.limits(tenants, most)
        for name, mine in by_tenant.items():
            if parts[name] is None:
                continue
            due = {(row.grant, row.device): milli[name, row.device][row.grant] for row in mine}
            limits.update(_part_of_limit(parts[name], mine, due))
    return limits


def _is_free(limit: int | None, rows: list[Placed]) -> bool:
    """Whether the limit is no less than all there is on the devices of these."""
    return limit is None or limit >= DEVICE_MILLI * len({row.device for row in rows})


def _part_of_limit(
    limit: int | None, rows: list[Placed], due: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], int]:
    """What each is guaranteed (`due`) first, the rest by time."""
    if limit is None or _is_free(limit, rows):
        return {(row.grant, row.device): row.limit_milli for row in rows}  # no more than these is there to be had
    by_name = {f"{row.grant} {row.device}": row for row in rows}
    # One unit each comes first: no arbiter serves a limit of 0.
    left = max(0, limit - len(rows))
    floor = {name: max(1, due[row.grant, row.device]) for name, row in by_name.items()}
    kept = water_fill(left, [Part(name, least - 1, least - 1) for name, least in floor.items()])
    parts = [Part(name, max(1, row.time_milli), row.limit_milli - floor[name]) for name, row in by_name.items()]
    rest = water_fill(left - sum(kept.values()), parts)
    return {(row.grant, row.device): 1 + kept.get(name, 0) + rest.get(name, 0) for name, row in by_name.items()}


def _guarantees(tenants: Mapping[str, TenantPolicy], placed: Collection[Placed]) -> dict[tuple[str, str], int]:
    """What each tenant is guaranteed on each device: what is reserved there, plus its part of what nobody reserved."""
    groups = _by_tenant_and_device(placed)
    reserved = {key: sum(row.guaranteed_milli for row in rows) for key, rows in groups.items()}
    asked = {key: sum(row.time_milli for row in rows) for key, rows in groups.items()}
    result = dict(reserved)
    everywhere: dict[str, int] = {}
    on_device: dict[str, list[str]] = {}
    for (tenant, device), milli in asked.items():
        everywhere[tenant] = everywhere.get(tenant, 0) + milli
        on_device.setdefault(device, []).append(tenant)
    for device, here in on_device.items():
        free = DEVICE_MILLI - sum(reserved[tenant, device] for tenant in here)
        extra = []
        for tenant in here:
            due = tenants[tenant].guarantee_milli * asked[tenant, device] // max(1, everywhere[tenant])
            more = max(0, due - reserved[tenant, device])
            extra.append(Part(tenant, max(1, more), more))
        for tenant, milli in water_fill(max(0, free), extra).items():
            result[tenant, device] += milli
    return result


def _spread(tenants: Mapping[str, TenantPolicy], given: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """What is left of each tenant's guarantee goes to its devices that are not promised in full, in equal parts: one
    whose device failed is made good where its other grants are, even those that asked for no time."""
    result = dict(given)
    left = {name: policy.guarantee_milli for name, policy in tenants.items()}
    free: dict[str, int] = {}
    for (tenant, device), milli in given.items():
        left[tenant] -= milli
        free[device] = free.get(device, DEVICE_MILLI) - milli
    while open_keys := [(tenant, device) for tenant, device in given if left[tenant] > 0 and free[device] > 0]:
        places = Counter(tenant for tenant, _ in open_keys)
        for device in {device: None for _, device in open_keys}:
            wants = {name: -(-left[name] // places[name]) for name, on in open_keys if on == device and left[name] > 0}
            parts = [Part(name, want, min(want, left[name])) for name, want in wants.items()]
            for name, milli in water_fill(free[device], parts).items():
                result[name, device] += milli
                left[name] -= milli
                free[device] -= milli
    return result
