"""What tenants borrowed recently, and the weights that follow from it."""

import asyncio
import math
import time
from collections.abc import Mapping
from fractions import Fraction

from gpushare.ledger.ledger import Ledger
from gpushare.ledger.usage import Span
from gpushare.policy.quota import history
from gpushare.policy.quota.entitlement import TenantState
from gpushare.policy.quota.standing import NOISE, Had, Now, now
from gpushare.policy.quota.tenant import TenantPolicy

_STEPS = 100
"""Weights change in steps of 1/_STEPS of a tenant's own: finer changes are not worth recomputing all shares."""
_HALF_LIVES = 6
"""How far back the ledger is read: less than 2 % of the usage is older."""
_SPANS_PER_HALF_LIFE = 4
_SHORTEST_SECONDS = 60.0
"""Shortest span that is read: the length of the ledger's rows."""


class History:
    """`factor` 0: nothing is remembered, and all have their own weights."""

    def __init__(self, factor: float = 0, half_life_seconds: float = 3600) -> None:
        self.factor, self._half_life = factor, half_life_seconds
        self.usage: dict[str, float] = {}
        """By tenant, in milli of a device times seconds."""
        self.weights: dict[str, Fraction] = {}
        """Weights that replace the tenants' own; a tenant without an entry keeps its own."""

    async def recall(self, ledger: Ledger, policies: Mapping[str, TenantPolicy], capacity: int) -> None:
        """Adds usage from before this start, as the ledger has it, worked out for the present tenants. Raises
        FailedError where the ledger cannot be read."""
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

    def follow(self, standing: Mapping[str, Now], policies: Mapping[str, TenantPolicy], seconds: float) -> bool:
        """Adds what tenants borrowed in the last `seconds`. Returns whether weights have changed."""
        self.usage = history.decayed(self.usage, _borrowed(standing), seconds, self._half_life)
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


def _borrowed(standing: Mapping[str, Now]) -> dict[str, int]:
    """What each tenant borrowed; 0 if it had its guarantee to within the error of a second's leases."""
    return {
        name: one.borrowed if one.borrowed * 1000 > NOISE * (one.used - one.borrowed) else 0
        for name, one in standing.items()
    }
