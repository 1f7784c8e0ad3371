"""Entitlements of tenants that nest: each family splits what it is entitled to, before anything leaves it.

A tenant with children takes part among its siblings with what all below it want; what it is entitled to is then split
in the same way over its children and its own grants. So weights, tiers and scavengers are relations among siblings.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gpushare.errors import UsageError
from gpushare.policy.quota import entitlement
from gpushare.policy.quota.entitlement import Entitlement, TenantState


def families(tenants: Mapping[str, TenantState]) -> dict[str | None, list[TenantState]]:
    """Children by parent; None: those at the top. Parents are in order of depth. Raises UsageError for an unknown
    parent, or one that is below its own child."""
    below: dict[str | None, list[TenantState]] = {}
    for tenant in tenants.values():
        if tenant.parent is not None and tenant.parent not in tenants:
            raise UsageError(f"tenant {tenant.name!r}: there is no tenant {tenant.parent!r} to be its parent")
        below.setdefault(tenant.parent, []).append(tenant)
    found: dict[str | None, list[TenantState]] = {}
    level: Sequence[str | None] = [None]
    while level:
        here = {parent: below[parent] for parent in level if parent in below}
        found |= here
        level = [tenant.name for family in here.values() for tenant in family]
    reached = {tenant.name for family in found.values() for tenant in family}
    if circle := sorted(tenants.keys() - reached):
        raise UsageError(f"tenant {circle[0]!r} is below itself: its parents form a circle")
    return found


def check_guarantees(below: Mapping[str | None, Sequence[TenantState]], tenants: Mapping[str, TenantState]) -> None:
    """Raises UsageError where children are guaranteed more than their parent."""
    for parent, family in below.items():
        total = sum(tenant.guarantee for tenant in family)
        if parent is not None and total > tenants[parent].guarantee:
            raise UsageError(
                f"tenant {parent!r} is guaranteed {tenants[parent].guarantee}, and those below it {total} together:"
                " raise the one or lower the others"
            )


def wanted(below: Mapping[str | None, Sequence[TenantState]], tenants: Mapping[str, TenantState]) -> dict[str, int]:
    """What each tenant and all below it would take if everything were free."""
    demand = {name: tenant.demand for name, tenant in tenants.items()}
    found = {name: tenant.wanted for name, tenant in tenants.items()}
    for parent, family in reversed(list(below.items())):
        if parent is not None:
            total = demand[parent] + sum(found[tenant.name] for tenant in family)
            found[parent] = replace(tenants[parent], demand=total).wanted
    return found


def _wanting(tenant: TenantState, demand: int) -> TenantState:
    return tenant if tenant.demand == demand else replace(tenant, demand=demand)


def entitle(
    capacity: int, tenants: Iterable[TenantState], weights: Mapping[str, Fraction] | None = None
) -> Entitlement:
    """Entitlement of each tenant, with all below it, out of `capacity` milli-GPU. A tenant's `demand` is that of its
    own grants. `weights`: in place of the tenants' own. Raises UsageError for parents that form no tree."""
    by_name = {tenant.name: tenant for tenant in tenants}
    below = families(by_name)
    wants = wanted(below, by_name)
    milli: dict[str, int] = {}
    degraded = False
    for parent, family in below.items():
        takers = [_wanting(tenant, wants[tenant.name]) for tenant in family]
        if parent is not None:
            own, given = by_name[parent], sum(tenant.guarantee for tenant in family)
            # Its own grants are one more taker next to its children.
            takers.append(TenantState(own.name, max(0, own.guarantee - given), own.demand))
        # Without a parent's weight, since its name represents its own grants here.
        here = {tenant.name: weights[tenant.name] for tenant in family if tenant.name in weights} if weights else None
        found = entitlement.entitle(capacity if parent is None else milli[parent], takers, here)
        degraded |= found.degraded
        milli |= {tenant.name: found.milli[tenant.name] for tenant in family}
    return Entitlement({name: milli[name] for name in by_name}, degraded)
