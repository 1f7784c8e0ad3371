"""Shares of nested tenants: a guarantee that nobody in a tenant uses goes to its family before anybody else, and a
limit covers all that are below it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpushare.policy.quota import tree
from gpushare.policy.quota.entitlement import TenantState
from gpushare.policy.quota.history import Weights
from gpushare.policy.quota.tenant import TenantPolicy

_ALL = 1 << 40
"""Milli: more than any node has."""


def nest(tenants: Mapping[str, TenantPolicy]) -> bool:
    """Whether any tenant is part of another."""
    return any(policy.parent is not None for policy in tenants.values())


def line(tenants: Mapping[str, TenantPolicy], name: str) -> list[str]:
    """The tenant, its parent, and so on."""
    found = [name]
    while (above := tenants[found[-1]].parent) is not None:
        found.append(above)
    return found


def dues(tenants: Mapping[str, TenantPolicy], using: Collection[str]) -> dict[str, TenantPolicy]:
    """The policies with the guarantees that hold while only `using` have grants: these get what is guaranteed to the
    others of their family, split as when all of them want all that they may have."""
    if not nest(tenants):
        return dict(tenants)
    own = {name: policy.guarantee_milli for name, policy in tenants.items()}
    roots = {name: line(tenants, name)[-1] for name in tenants}
    whole: dict[str, int] = {}
    for name, root in roots.items():
        whole[root] = whole.get(root, 0) + own[name]
    found = dict(tenants)
    for root, amount in whole.items():
        members = [name for name in tenants if roots[name] == root]
        if len(members) > 1 and any(name in using for name in members):
            states = _states(tenants, members, own, {name: _ALL for name in members if name in using})
            limited = [replace(state, limit=tenants[state.name].limit_milli) for state in states]
            got = _own_parts(limited, amount)
            found |= {name: replace(tenants[name], guarantee_milli=got[name]) for name in members}
    return found


def limits(tenants: Mapping[str, TenantPolicy], most: Mapping[str, int]) -> dict[str, int | None]:
    """Milli of the node that the grants of each tenant may have together, None: all. `most`: what the grants' own
    limits let them have. A family's limit is split over its members as their entitlements are."""
    found = {name: tenants[name].limit_milli for name in most}
    if not nest(tenants):
        return found
    members = dict.fromkeys(above for name in most for above in line(tenants, name))
    own = {name: tenants[name].guarantee_milli for name in most}
    states = [replace(state, limit=tenants[state.name].limit_milli) for state in _states(tenants, members, own, most)]
    parts = _own_parts(states, _ALL)
    return {name: parts[name] for name in most}


def entitled(
    tenants: Mapping[str, TenantPolicy],
    own: Mapping[str, int],
    wanted: Mapping[str, int],
    capacity: int,
    weights: Weights | None = None,
) -> dict[str, int]:
    """Entitlement of each tenant to one device, without those below it. `own`: guaranteed there to tenants that have
    grants on it. `wanted`: by those of them with running grants. `weights`: in place of the tenants' own."""
    members = dict.fromkeys(above for name in own for above in line(tenants, name))
    return _own_parts(_states(tenants, members, own, wanted), capacity, weights)


def _states(
    tenants: Mapping[str, TenantPolicy], members: Collection[str], own: Mapping[str, int], wanted: Mapping[str, int]
) -> list[TenantState]:
    whole = dict.fromkeys(members, 0)
    for name, milli in own.items():
        for above in line(tenants, name) if name in whole else ():
            whole[above] += milli
    return [
        TenantState(
            name,
            whole[name],
            wanted.get(name, 0),
            tenants[name].weight,
            tenants[name].tier,
            parent=tenants[name].parent,
        )
        for name in members
    ]


def _own_parts(states: Sequence[TenantState], capacity: int, weights: Weights | None = None) -> dict[str, int]:
    """What each gets without those below it."""
    result = tree.entitle(capacity, states, weights).milli
    parts = dict(result)
    for state in states:
        if state.parent is not None:
            parts[state.parent] -= result[state.name]
    return parts
