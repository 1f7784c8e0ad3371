"""Who is entitled to how much device time now: guarantees first, then what is idle, by tier and weight, then
scavengers.

All in milli-GPU. The result depends on the set of tenants, not on their order, and always adds up to what can be used:
min(capacity, sum of demands).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantState:
    """`demand`: what its runnable grants could use now. `limit` None: none; one below the guarantee caps that too.
    `usage`: decayed borrowed usage; who has less wins a tie. `parent`: read by gpushare.policy.tree alone."""

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
    """`degraded`: there is less than what is guaranteed and wanted, and all shrink in proportion."""

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
    given: dict[str, int] = {}
    left = min(amount, sum(part.cap for part in open_parts))
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


def entitle(capacity: int, tenants: Iterable[TenantState]) -> Entitlement:
    """The entitlement of each tenant out of `capacity` milli-GPU."""
    by_name = {tenant.name: tenant for tenant in tenants}
    wanted = {name: tenant.wanted for name, tenant in by_name.items()}
    base = {name: min(tenant.guarantee, wanted[name]) for name, tenant in by_name.items()}
    if sum(base.values()) > capacity:
        parts = [Part(name, by_name[name].guarantee, cap, by_name[name].usage) for name, cap in base.items()]
        shrunk = water_fill(capacity, parts)
        return Entitlement({name: shrunk.get(name, 0) for name in by_name}, degraded=True)
    entitled = dict(base)
    left = capacity - sum(base.values())

    def lend(borrowers: Iterable[TenantState], *, equally: bool) -> None:
        nonlocal left
        parts = [Part(t.name, 1 if equally else t.weight, wanted[t.name] - base[t.name], t.usage) for t in borrowers]
        for name, milli in water_fill(left, parts).items():
            entitled[name] += milli
            left -= milli

    weighted = [tenant for tenant in by_name.values() if tenant.weight > 0]
    for tier in sorted({tenant.tier for tenant in weighted}, reverse=True):
        lend((tenant for tenant in weighted if tenant.tier == tier), equally=False)
    lend((tenant for tenant in by_name.values() if tenant.weight == 0), equally=True)
    return Entitlement(entitled, degraded=False)
