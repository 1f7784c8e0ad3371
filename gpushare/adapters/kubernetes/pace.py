"""Rate limit for writes of a node's slice. Pure: time is an argument.

It bounds the writes of all nodes of a cluster to the API server, however often their devices change. A change is
written at once unless there were many recent ones; then several changes are combined into one later write.
"""

BURST = 10
"""Maximum number of writes in a row."""
REFILL_SECONDS = 60.0
"""Time after which one more write is allowed."""


class Pace:
    """A token bucket for one writer."""

    def __init__(self) -> None:
        self._left, self._at = float(BURST), 0.0

    def wait(self, now: float) -> float:
        """Returns the seconds until a write is allowed; 0: now."""
        self._left = min(float(BURST), self._left + max(0.0, now - self._at) / REFILL_SECONDS)
        self._at = now
        # Tolerance: fractions that should add up to 1 may sum to slightly less.
        return 0.0 if self._left > 1 - 1e-6 else (1 - self._left) * REFILL_SECONDS

    def wrote(self) -> None:
        """Records a write, or an attempt at one."""
        self._left -= 1
