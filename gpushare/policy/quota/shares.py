"""What each grant gets on each device, as the arbiter takes it: guarantee, limit, weight, tier.

A grant's guarantee is what admission reserved for it, plus its part of what its tenant's guarantee has left unreserved,
which is split over the tenant's grants by their time. A tenant's weight is split the same way: two grants borrow no
more than one. So is its limit, which is for the whole node: the running grants together get at most that.
"""

import enum
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpushare.policy.quota import families
from gpushare.policy.quota.entitlement import Part, TenantState, entitle, water_fill
from gpushare.policy.quota.history import Weights
from gpushare.policy.quota.tenant import TenantPolicy

DEVICE_MILLI = 1000
_WEIGHT_SCALE = 1000
_WEIGHT_MAX = 2**32 - 1
_FINE = 1000  # units in a milli, so that small weights get a part too
_LEAST_CORRECTED = 100  # a weight never falls below a hundredth, whatever was borrowed
_LEAST_FREE = 50  # a fiftieth of what idle grants leave goes by weight
_FEW = 8  # grants of a tenant on one device whose split is kept: 1.7 KiB with all that it keeps alive
_WHOLE_WEIGHT = 1_000_000  # sum of the weights on a device where tenants nest
_OTHERS = 0  # tier there of those that get no more than they are guaranteed


class Workload(enum.IntEnum):
    """`class` of a grant; the values are enum gs_grant_class."""

    INTERACTIVE = 0
    INFERENCE = 1
    TRAINING = 2


@dataclass(frozen=True, slots=True)
class Share:
    """`struct gs_share`: the share of one grant on one device."""

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
    promised twice. What it leaves is surplus. The tenant's running grants get first what is their own tenant's, by
    their weights: these break no guarantee when they are updated late."""
    running = {row.grant for row in placed} if runnable is None else runnable
    using = {row.tenant for row in placed}
    due, groups = families.dues(tenants, using), _groups(placed)
    guaranteed = _spread(due, _guarantees(due, groups))
    milli = {device: _splits(guaranteed[device], here) for device, here in groups.items()}
    limits = _limits(tenants, placed, milli, running)
    apart = {tenant: _Pull(_weight(tenants[tenant], weights), tenants[tenant].tier) for tenant in using}
    result = {}
    for device, here in groups.items():
        own, most = milli[device], limits[device]
        promised = _promises(here, guaranteed[device], own, most, running)
        if any(tenants[tenant].parent is not None for tenant in here):
            usual = {tenant: _Pull(_weight(tenants[tenant], None), _OTHERS) for tenant in here}
            pulls = usual | _family_pulls(tenants, promised, guaranteed[device], weights)
        else:
            usual, pulls = apart, apart | _pulls(tenants, promised, weights)
        for tenant, rows in here.items():
            working = sum([_part(row) for row in rows if row.grant in running])
            for row in rows:
                pull, parts = usual[tenant], working + _part(row)
                if row.grant in running:
                    pull, parts = pulls[tenant], working
                limit = most[row.grant]
                result[row.grant, device] = Share(
                    guarantee_milli=min(own[row.grant], limit),
                    limit_milli=limit,
                    weight=min(max(pull.weight * _part(row) // parts, 1), _WEIGHT_MAX) if pull.weight else 0,
                    tier=pull.tier,
                    workload=row.workload,
                )
    return result


def entitlements(here: Mapping[str, Share], working: Collection[str]) -> dict[str, int]:
    """What each of these grants, which the arbiter serves on one device with these shares, should get of it now, in
    milli: those with work get what they are guaranteed, and of the rest by tier and weight up to their limits; the
    others get nothing."""
    states = [
        TenantState(grant, share.guarantee_milli, share.limit_milli, share.weight, share.tier)
        for grant, share in here.items()
        if grant in working
    ]
    return dict.fromkeys(here, 0) | entitle(DEVICE_MILLI, states).milli


def _part(row: Placed) -> int:
    """The grant's part of its tenant's weight; the least for one that asked for no time."""
    return max(1, row.time_milli)


_Groups = Mapping[str, Mapping[str, list[Placed]]]
"""By device and tenant."""
_Milli = Mapping[str, Mapping[str, int]]
"""By device, and there by tenant or by grant."""


def _groups(placed: Iterable[Placed]) -> _Groups:
    found: dict[str, dict[str, list[Placed]]] = {}
    for row in placed:
        found.setdefault(row.device, {}).setdefault(row.tenant, []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class _Pull:
    """A tenant's weight and tier for the surplus of one device."""

    weight: int
    tier: int


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a tenant with running grants is promised on one device. `unused`: the part of its idle grants. `limit`: of
    the running ones together."""

    milli: int
    unused: int
    limit: int


def _promises(
    here: Mapping[str, list[Placed]],
    guaranteed: Mapping[str, int],
    milli: Mapping[str, int],
    limits: Mapping[str, int],
    running: Collection[str],
) -> dict[str, _Promise]:
    """Promises to the tenants with running grants on one device. `guaranteed`: by tenant; `milli`, `limits`: by
    grant."""
    found = {}
    for tenant, rows in here.items():
        work = [row.grant for row in rows if row.grant in running]
        if work:
            unused = sum(milli[row.grant] for row in rows) - sum(milli[grant] for grant in work)
            found[tenant] = _Promise(guaranteed[tenant], unused, sum(limits[grant] for grant in work))
    return found


def _weight(policy: TenantPolicy, weights: Weights | None) -> int:
    """A tenant's weight for the arbiter, which knows no weight of 0 within a tier. Time taken at a small weight is made
    up for at a larger one later: that must not take minutes."""
    own = policy.weight * _WEIGHT_SCALE
    now = (weights or {}).get(policy.name)
    return own if now is None or not own else max(own // _LEAST_CORRECTED, round(now * _WEIGHT_SCALE))


def _pulls(
    tenants: Mapping[str, TenantPolicy], promised: Mapping[str, _Promise], weights: Weights | None
) -> dict[str, _Pull]:
    """Pulls of the tenants with running grants, such that each gets its entitlement, including what its own idle grants
    leave, while all of them want all they may have; empty where no idle grant leaves anything. Tenants that get more
    than their running grants are guaranteed are in the highest tier, with a weight by the difference."""
    unused = sum(promise.unused for promise in promised.values())
    if not unused:
        return {}
    policies = [tenants[name] for name in promised]
    states = [
        TenantState(
            policy.name,
            promised[policy.name].milli * _FINE,
            promised[policy.name].limit * _FINE,
            policy.weight,
            policy.tier,
        )
        for policy in policies
    ]
    entitled = entitle(DEVICE_MILLI * _FINE, states, weights).milli
    parts = {name: max(0, entitled[name] - (due.milli - due.unused) * _FINE) for name, due in promised.items()}
    weighted = [policy for policy in policies if policy.weight]
    top = max((policy.tier for policy in weighted), default=0)
    # Never 0: running grants leave surplus too at times, and no tenant may be excluded from that.
    least = max(unused // _LEAST_FREE, 1) * _FINE
    highest = {policy.name: policy.weight for policy in weighted if policy.tier == top}
    of_highest = sum(highest.values())
    for name, weight in highest.items():
        parts[name] = max(parts[name], promised[name].unused * _FINE + least * weight // of_highest)
    unit = _WEIGHT_SCALE * max(1, sum(policy.weight for policy in policies if parts[policy.name]))
    return _pulls_of(parts, unit, top)


def _pulls_of(parts: Mapping[str, int], unit: int, tier: int) -> dict[str, _Pull]:
    """Pulls in proportion to `parts`, with weights that add up to about `unit`; none for a part of 0."""
    whole = sum(parts.values())
    return {name: _Pull(max(1, unit * part // whole), tier) for name, part in parts.items() if part}


def _family_pulls(
    tenants: Mapping[str, TenantPolicy],
    promised: Mapping[str, _Promise],
    own: Mapping[str, int],
    weights: Weights | None,
) -> dict[str, _Pull]:
    """The same where tenants nest, whose weights and tiers mean nothing outside their family: by what each is to have
    beyond the guarantees of its running grants. `own`: guaranteed here, also to tenants without running grants."""
    held = {name: milli * _FINE for name, milli in own.items()}
    wants = {name: promise.limit * _FINE for name, promise in promised.items()}

    def beyond(by: Weights | None) -> dict[str, int]:
        entitled = families.entitled(tenants, held, wants, DEVICE_MILLI * _FINE, by)
        return {name: max(0, entitled[name] - (due.milli - due.unused) * _FINE) for name, due in promised.items()}

    parts = beyond(weights)
    if weights:
        parts = {name: max(parts[name], part // _LEAST_CORRECTED) for name, part in beyond(None).items()}
    return _pulls_of(parts, _WHOLE_WEIGHT, _OTHERS + 1)


def _splits(guaranteed: Mapping[str, int], here: Mapping[str, list[Placed]]) -> dict[str, int]:
    """What each grant on one device gets of what its tenant is guaranteed there."""
    found: dict[str, int] = {}
    for tenant, rows in here.items():
        split = _split_kept if len(rows) <= _FEW else _split
        found.update(split(guaranteed[tenant], tuple(rows)))
    return found


def _split(milli: int, rows: tuple[Placed, ...]) -> Mapping[str, int]:
    """What is reserved for each, and the rest by time; equally where no grant asked for any. No grant gets more than
    its limit; the others get the rest."""
    asked = any(row.time_milli for row in rows)
    own = {row.grant: min(row.guaranteed_milli, row.limit_milli) for row in rows}
    parts = [Part(row.grant, row.time_milli if asked else 1, row.limit_milli - own[row.grant]) for row in rows]
    rest = water_fill(milli - sum(own.values()), [part for part in parts if part.weight > 0])
    return {grant: least + rest.get(grant, 0) for grant, least in own.items()}


_split_kept = functools.lru_cache(maxsize=4096)(_split)
"""The same for small groups, of which few change at a time: 7 MiB at most."""


def _limits(
    tenants: Mapping[str, TenantPolicy], placed: Collection[Placed], milli: _Milli, running: Collection[str]
) -> dict[str, dict[str, int]]:
    """By device and grant: the grant's own limit, or its part of its tenant's. All of a tenant's limit is split over
    its running grants. An idle grant has what it would have if all ran, so that it is not shut out when it wakes; the
    next call, with it in `running`, corrects the sum."""
    limits: dict[str, dict[str, int]] = {}
    for row in placed:
        limits.setdefault(row.device, {})[row.grant] = row.limit_milli
    for rows in (placed, [row for row in placed if row.grant in running]):
        by_tenant: dict[str, list[Placed]] = {}
        for row in rows:
            by_tenant.setdefault(row.tenant, []).append(row)
        most = {name: sum([row.limit_milli for row in mine]) for name, mine in by_tenant.items()}
        for name, part in families.limits(tenants, most).items():
            if part is not None:
                due = {(row.grant, row.device): milli[row.device][row.grant] for row in by_tenant[name]}
                for (grant, device), limit in _part_of_limit(part, by_tenant[name], due).items():
                    limits[device][grant] = limit
    return limits


def _is_free(limit: int | None, rows: list[Placed]) -> bool:
    """Whether the limit is no less than all the time of these devices."""
    return limit is None or limit >= DEVICE_MILLI * len({row.device for row in rows})


def _part_of_limit(
    limit: int | None, rows: list[Placed], due: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], int]:
    """Splits a limit: first what each is guaranteed (`due`), the rest by time."""
    if limit is None or _is_free(limit, rows):
        return {(row.grant, row.device): row.limit_milli for row in rows}  # the limit does not bind
    by_name = {f"{row.grant} {row.device}": row for row in rows}
    # One unit each comes first: no arbiter serves a limit of 0.
    left = max(0, limit - len(rows))
    floor = {name: max(1, due[row.grant, row.device]) for name, row in by_name.items()}
    kept = water_fill(left, [Part(name, least - 1, least - 1) for name, least in floor.items()])
    parts = [Part(name, max(1, row.time_milli), row.limit_milli - floor[name]) for name, row in by_name.items()]
    rest = water_fill(left - sum(kept.values()), parts)
    return {(row.grant, row.device): 1 + kept.get(name, 0) + rest.get(name, 0) for name, row in by_name.items()}


def _guarantees(tenants: Mapping[str, TenantPolicy], groups: _Groups) -> dict[str, dict[str, int]]:
    """What each tenant is guaranteed on each device: what is reserved there, plus its part of what nobody reserved."""
    asked: dict[str, dict[str, int]] = {}
    everywhere = Counter[str]()
    for device, here in groups.items():
        asked[device] = {tenant: sum([row.time_milli for row in rows]) for tenant, rows in here.items()}
        everywhere.update(asked[device])
    result = {}
    for device, here in groups.items():
        found = {tenant: sum([row.guaranteed_milli for row in rows]) for tenant, rows in here.items()}
        extra = []
        for tenant, milli in asked[device].items():
            more = tenants[tenant].guarantee_milli * milli // max(1, everywhere[tenant]) - found[tenant]
            if more > 0:
                extra.append(Part(tenant, more, more))
        for tenant, milli in water_fill(max(0, DEVICE_MILLI - sum(found.values())), extra).items():
            found[tenant] += milli
        result[device] = found
    return result


def _spread(tenants: Mapping[str, TenantPolicy], given: _Milli) -> _Milli:
    """Spreads what is left of each tenant's guarantee over its devices that are not promised in full, in equal parts: a
    tenant whose device failed is compensated where its other grants are, even those that asked for no time."""
    result = {device: dict(here) for device, here in given.items()}
    left = {name: policy.guarantee_milli for name, policy in tenants.items()}
    free = {device: DEVICE_MILLI - sum(here.values()) for device, here in given.items()}
    for here in given.values():
        for tenant, milli in here.items():
            left[tenant] -= milli
    while True:
        takers = {
            device: [tenant for tenant in here if left[tenant] > 0]
            for device, here in given.items()
            if free[device] > 0
        }
        places = Counter(tenant for here in takers.values() for tenant in here)
        if not places:
            return result
        wants = {name: -(-left[name] // count) for name, count in places.items()}
        for device, names in takers.items():
            parts = [Part(name, wants[name], min(wants[name], left[name])) for name in names]
            for name, milli in water_fill(free[device], parts).items():
                result[device][name] += milli
                left[name] -= milli
                free[device] -= milli
