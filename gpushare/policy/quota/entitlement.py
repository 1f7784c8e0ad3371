"""Who is entitled to how much device time now: guarantees first, then what is idle, by tier and weight, then
scavengers.

All in milli-GPU. The result depends on the set of tenants, not on their order, and always adds up to what can be used:
min(capacity, sum of demands).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class TenantState:
    """`demand`: what its runnable grants could use now. `limit`: None: no limit; one below the guarantee caps that too.
    `usage`: decayed borrowed usage; the smaller one wins a tie. `parent`: read only by gpushare.policy.quota.tree."""

    name: str
    guarantee: int
    demand: int
    weight: int = 1
    tier: int = 0
    limit: int | None = None
    usage: float = 0
    parent: str | None = None

    @property
    def wanted(self) -> int:
        """Milli that it would take if all were free."""
        return self.demand if self.limit is None else min(self.demand, self.limit)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """`degraded`: guarantees that are wanted exceed the capacity, and all shrink in proportion."""

    milli: dict[str, int]
    degraded: bool


@dataclass(frozen=True, slots=True)
class Part:
    """One taker of `water_fill`: at most `cap`, in proportion to `weight` (above 0)."""

    name: str
    weight: int
    cap: int
    usage: float = 0


def water_fill(amount: int, parts: Iterable[Part]) -> dict[str, int]:
    """Splits `amount` by weight, no part above its cap; what capped parts leave goes to the others. Remainders of a
    unit go to the largest fraction, then to the smaller usage, then by name."""
    open_parts = [part for part in parts if part.cap > 0]
    if sum(part.cap for part in open_parts) <= amount:
        return {part.name: part.cap for part in open_parts}
    given: dict[str, int] = {}
    left = amount
    while open_parts:
        weights = sum(part.weight for part in open_parts)
        full = [part for part in open_parts if part.cap * weights <= left * part.weight]
        if not full:
            break
        # All of these are capped even when each of the others takes its whole proportion.
        for part in full:
            given[part.name] = part.cap
            left -= part.cap
        open_parts = [part for part in open_parts if part.name not in given]
    if not open_parts:
        return given
    weights = sum(part.weight for part in open_parts)
    for part in open_parts:
        given[part.name] = left * part.weight // weights
    remainder = left - sum(given[part.name] for part in open_parts)
    order = sorted(open_parts, key=lambda part: (-(left * part.weight % weights), part.usage, part.name))
    for part in order[:remainder]:
        given[part.name] += 1
    return given


def entitle(
    capacity: int, tenants: Iterable[TenantState], weights: Mapping[str, Fraction] | None = None
) -> Entitlement:
    """The entitlement of each tenant out of `capacity` milli-GPU. `weights`: replace the tenants' own weights above 0
    (gpushare.policy.quota.history). One that is 0 there borrows what others of its tier leave: tiers stay strict."""
    by_name = {tenant.name: tenant for tenant in tenants}
    wanted = {name: tenant.wanted for name, tenant in by_name.items()}
    base = {name: min(tenant.guarantee, wanted[name]) for name, tenant in by_name.items()}
    if sum(base.values()) > capacity:
        parts = [Part(name, by_name[name].guarantee, cap, by_name[name].usage) for name, cap in base.items()]
        shrunk = water_fill(capacity, parts)
        return Entitlement({name: shrunk.get(name, 0) for name in by_name}, degraded=True)
    entitled = dict(base)
    left = capacity - sum(base.values())

    def lend(borrowers: Mapping[str, int | Fraction]) -> None:
        nonlocal left
        unit = math.lcm(*(weight.denominator for weight in borrowers.values()))
        parts = [
            Part(name, int(weight * unit), wanted[name] - base[name], by_name[name].usage)
            for name, weight in borrowers.items()
        ]
        for name, milli in water_fill(left, parts).items():
            entitled[name] += milli
            left -= milli

    weighted = [tenant for tenant in by_name.values() if tenant.weight > 0]
    for tier in sorted({tenant.tier for tenant in weighted}, reverse=True):
        here = [tenant for tenant in weighted if tenant.tier == tier]
        now = {tenant.name: (weights or {}).get(tenant.name, tenant.weight) for tenant in here}
        lend({name: weight for name, weight in now.items() if weight})
        lend({tenant.name: tenant.weight for tenant in here if not now[tenant.name]})
    lend(dict.fromkeys((tenant.name for tenant in by_name.values() if tenant.weight == 0), 1))
    return Entitlement(entitled, degraded=False)
