"""What tenants borrowed lately, and the weights that follow from it."""

import asyncio
import math
import time
from collections.abc import Mapping
from fractions import Fraction

from gpushare.ledger.ledger import Ledger
from gpushare.ledger.usage import Span
from gpushare.policy import history
from gpushare.policy.entitlement import TenantState
from gpushare.policy.quota import NOISE, Had, Now, now
from gpushare.policy.tenant import TenantPolicy

_STEPS = 100
"""Of a tenant's own weight: finer changes are not worth working out all shares again."""
_HALF_LIVES = 6
"""As far back as the ledger is asked: less than two parts in a hundred are from before."""
_SPANS_PER_HALF_LIFE = 4
_SHORTEST_SECONDS = 60.0
"""Of a span that it is asked for: as long as its rows are."""


class History:
    """`factor` 0: nothing is remembered, and all have their own weights."""

    def __init__(self, factor: float = 0, half_life_seconds: float = 3600) -> None:
        self.factor, self._half_life = factor, half_life_seconds
        self.usage: dict[str, float] = {}
        """Milli for a second."""
        self.weights: dict[str, Fraction] = {}
        """In place of tenants' own; of those that it has none of, their own hold."""

    async def recall(self, ledger: Ledger, policies: Mapping[str, TenantPolicy], capacity: int) -> None:
        """Adds what the ledger has of before this start, as if the tenants had been then as they are now. Raises
        FailedError where it cannot be read."""
        step = max(_SHORTEST_SECONDS, self._half_life / _SPANS_PER_HALF_LIFE)
        until, step_ns = time.time_ns(), round(step * 1e9)
        usage: dict[str, float] = {}
        for number in reversed(range(math.ceil(_HALF_LIVES * self._half_life / step))):
            span = Span(until - (number + 1) * step_ns, until - number * step_ns)
            sums = await asyncio.to_thread(ledger.usage, "tenant", span)
            had = {str(key[0]): Had(used=row.used_ns * 1000 // step_ns) for key, row in sums.items()}
            borrowed = _borrowed(now(policies, had, capacity, frozenset()))
            usage = history.decayed(usage, borrowed, step, self._half_life)
        self.usage = {name: self.usage.get(name, 0) + usage.get(name, 0) for name in {**self.usage, **usage}}

    def follow(self, stands: Mapping[str, Now], policies: Mapping[str, TenantPolicy], seconds: float) -> bool:
        """How tenants stood in the last `seconds`. Returns whether weights are others than they were."""
        self.usage = history.decayed(self.usage, _borrowed(stands), seconds, self._half_life)
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


def _borrowed(stands: Mapping[str, Now]) -> dict[str, int]:
    """Nothing, where one had its guarantee to within what a second's leases are off by."""
    return {
        name: one.borrowed if one.borrowed * 1000 > NOISE * (one.used - one.borrowed) else 0
        for name, one in stands.items()
    }
