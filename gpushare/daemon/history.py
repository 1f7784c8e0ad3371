"""What tenants borrowed lately, and the weights that follow from it. A daemon that starts knows nothing of before."""

from collections.abc import Mapping
from fractions import Fraction

from gpushare.policy import history
from gpushare.policy.entitlement import TenantState
from gpushare.policy.quota import NOISE, Now
from gpushare.policy.tenant import TenantPolicy

_STEPS = 100
"""Of a tenant's own weight: finer changes are not worth working out all shares again."""


class History:
    """`factor` 0: nothing is remembered, and all have their own weights."""

    def __init__(self, factor: float = 0, half_life_seconds: float = 3600) -> None:
        self.factor, self._half_life = factor, half_life_seconds
        self.usage: dict[str, float] = {}
        """Milli for a second."""
        self.weights: dict[str, Fraction] = {}
        """In place of tenants' own; of those that it has none of, their own hold."""

    def follow(self, now: Mapping[str, Now], policies: Mapping[str, TenantPolicy], seconds: float) -> bool:
        """How tenants stood in the last `seconds`. Returns whether weights are others than they were."""
        borrowed = {name: one.borrowed if _borrows(one) else 0 for name, one in now.items()}
        self.usage = history.decayed(self.usage, borrowed, seconds, self._half_life)
        states = [
            TenantState(
                name,
                guarantee=0,
                demand=0,
                weight=policy.weight,
                tier=policy.tier,
                usage=self.usage.get(name, 0),
                parent=policy.parent,
            )
            for name, policy in policies.items()
        ]
        weights = {
            name: Fraction(round(weight * _STEPS / policies[name].weight) * policies[name].weight, _STEPS)
            for name, weight in history.corrected(states, self.factor).items()
        }
        changed, self.weights = weights != self.weights, weights
        return changed


def _borrows(now: Now) -> bool:
    """Not who had its guarantee to within what a second's leases are off by."""
    return now.borrowed * 1000 > NOISE * (now.used - now.borrowed)
