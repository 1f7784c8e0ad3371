"""Weights that take history into account: a tenant that recently borrowed more than its part gets a smaller part of
what is idle now. Pure."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from gpushare.policy.quota.entitlement import TenantState

Weights = Mapping[str, Fraction]
"""By tenant, in place of its own weight."""
_NOTHING = 1.0
"""In milli times seconds: usage below it is dropped, so that decay ends."""


def corrected(tenants: Iterable[TenantState], factor: Fraction | float) -> dict[str, Fraction]:
    """`max(0, w + factor * (w - u))`, times the sum of the weights, for tenants with a weight. w is a tenant's part of
    the weights and u its part of the usage, among its siblings in its tier, since weights are comparable among these
    only. Where none of them has any usage, the weights themselves."""
    peers: dict[tuple[str | None, int], list[TenantState]] = {}
    for tenant in tenants:
        if tenant.weight > 0:
            peers.setdefault((tenant.parent, tenant.tier), []).append(tenant)
    k, found = Fraction(factor), {}
    for here in peers.values():
        weights, usage = sum(tenant.weight for tenant in here), sum(Fraction(tenant.usage) for tenant in here)
        for tenant in here:
            had = Fraction(tenant.usage) * weights / usage if usage else Fraction(tenant.weight)
            found[tenant.name] = max(Fraction(0), tenant.weight + k * (tenant.weight - had))
    return found


def decayed(
    usage: Mapping[str, float], borrowed: Mapping[str, int], seconds: float, half_life: float
) -> dict[str, float]:
    """Usage, in milli times seconds, after `seconds` more in which each of `borrowed` had that many milli. Tenants not
    in `borrowed` are left out."""
    kept = 0.5 ** (seconds / half_life)
    found = {name: usage.get(name, 0.0) * kept + milli * seconds for name, milli in borrowed.items()}
    return {name: value for name, value in found.items() if value >= _NOTHING}
