"""Which grants would lose borrowed time if one more grant ran alongside them. Pure.

Time is taken back only by throttling: a lease ends at a kernel's end. A grant that has no more than its guarantee loses
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpushare.policy.quota.entitlement import TenantState, entitle
from gpushare.policy.quota.shares import DEVICE_MILLI

Rule = Literal["guarantee", "tier", "weight"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of one grant to one device. `wants_milli`: what it would use if all were free."""

    grant: str
    tenant: str
    guarantee_milli: int
    wants_milli: int
    weight: int = 1
    tier: int = 0

    def state(self) -> TenantState:
        """As the rules of entitlement take it."""
        return TenantState(self.grant, self.guarantee_milli, self.wants_milli, self.weight, self.tier)


@dataclass(frozen=True, slots=True)
class Loss:
    """`milli`: of the device's time."""

    grant: str
    tenant: str
    milli: int
    rule: Rule


def losses(new: Claim, here: Sequence[Claim]) -> list[Loss]:
    """What others lose to `new`, in the order in which they are throttled: scavengers, then lower tiers, then the
    largest loss per weight."""
    if new.wants_milli + sum(claim.wants_milli for claim in here) <= DEVICE_MILLI:
        return []
    states = [claim.state() for claim in here]
    promised = replace(new, wants_milli=min(new.wants_milli, new.guarantee_milli))
    before = entitle(DEVICE_MILLI, states).milli
    first = entitle(DEVICE_MILLI, [*states, promised.state()]).milli
    after = entitle(DEVICE_MILLI, [*states, new.state()]).milli
    found = []
    for claim in here:
        if (milli := before[claim.grant] - after[claim.grant]) > 0:
            by_guarantee = first[claim.grant] < before[claim.grant]
            lower = claim.weight == 0 or claim.tier < new.tier
            rule: Rule = "guarantee" if by_guarantee else "tier" if lower and new.weight else "weight"
            found.append((claim, Loss(claim.grant, claim.tenant, milli, rule)))
    found.sort(key=lambda row: (row[0].weight > 0, row[0].tier, -row[1].milli / max(1, row[0].weight), row[0].grant))
    return [loss for _, loss in found]
