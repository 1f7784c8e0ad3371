"""How tenants stand at the moment: what each wants, is entitled to, has, borrows and lends. Pure.

All in milli of the node, of each tenant and all below it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpushare.policy.quota import families, tree
from gpushare.policy.quota.entitlement import TenantState
from gpushare.policy.quota.history import Weights
from gpushare.policy.quota.lending import lent
from gpushare.policy.quota.tenant import TenantPolicy

State = Literal["idle", "in_quota", "borrowing", "starved", "degraded"]
NOISE = 10
"""Per mille of the guarantee by which leases of the last second may exceed it."""
_SLACK = 50
"""Per mille of what a tenant is due: one that waits and is further below it than this is starved."""


@dataclass(frozen=True, slots=True)
class Had:
    """What a tenant's own grants had in the last second. `wants`: what those with work could use. `due`: what they
    should have got of the devices that they are on; None: not known, all of what their tenant is entitled to."""

    wants: int = 0
    used: int = 0
    waited: int = 0
    due: int | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """`waited`: 1000 is one grant that waited for one device all the time."""

    state: State
    demand: int
    entitlement: int
    used: int
    borrowed: int
    lent: int
    waited: int


def now(
    policies: Mapping[str, TenantPolicy],
    had: Mapping[str, Had],
    capacity: int,
    short: frozenset[str],
    weights: Weights | None = None,
) -> dict[str, Now]:
    """The standing of each tenant. `policies`: with what remains of their guarantees. `short`: tenants that have less
    than they were promised. `weights`: in place of the tenants' own."""
    own = {name: had.get(name, Had()) for name in policies}
    whole = dict.fromkeys(policies, 0)
    members: dict[str, list[str]] = {name: [] for name in policies}
    for name, policy in policies.items():
        for above in families.line(policies, name):
            whole[above] += policy.guarantee_milli
            members[above].append(name)
    states = [
        TenantState(
            name, whole[name], own[name].wants, policy.weight, policy.tier, policy.limit_milli, 0, policy.parent
        )
        for name, policy in policies.items()
    ]
    entitled = tree.entitle(capacity, states, weights).milli
    borrowed = {name: max(0, own[name].used - policy.guarantee_milli) for name, policy in policies.items()}
    unused = {name: max(0, policy.guarantee_milli - own[name].used) for name, policy in policies.items()}
    all_unused, all_borrowed = sum(unused.values()), sum(borrowed.values())
    given = {name: lent(left, all_unused, all_borrowed) for name, left in unused.items()}
    found = {}
    for name, family in members.items():
        all_had = [own[one] for one in family]
        wants, used = sum(one.wants for one in all_had), sum(one.used for one in all_had)
        waited = sum(one.waited for one in all_had)
        dues = [one.due for one in all_had if one.wants]
        due = entitled[name] if None in dues else min(entitled[name], sum(one or 0 for one in dues))
        beyond = max(0, used - whole[name])
        within = sum(borrowed[one] for one in family) - beyond  # lent by one of the family to another
        found[name] = Now(
            state=_state(name in short, wants, used, waited, due, whole[name]),
            demand=wants,
            entitlement=entitled[name],
            used=used,
            borrowed=beyond,
            lent=max(0, sum(given[one] for one in family) - within),
            waited=waited,
        )
    return found


def _state(short: bool, wants: int, used: int, waited: int, due: int, guaranteed: int) -> State:
    if short:
        return "degraded"
    if not wants:
        return "idle"
    if waited and used < due * (1000 - _SLACK) // 1000:
        return "starved"
    return "borrowing" if used > guaranteed * (1000 + NOISE) // 1000 else "in_quota"
