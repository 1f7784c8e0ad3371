"""A tenant's policy, as the rules of shares take it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """`guarantee_milli`, `limit_milli`: of the whole node; None: no limit. `weight` 0: a scavenger. The guarantee is
    its own, without what is guaranteed to those below it; the limit is for it and all below it."""

    name: str
    guarantee_milli: int
    weight: int = 1
    tier: int = 0
    limit_milli: int | None = None
    parent: str | None = None
