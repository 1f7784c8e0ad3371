"""How often a node's slice may be written. Pure: time is an argument.

The API server has a bounded number of writes for all nodes of a cluster, whatever becomes of their devices. A change is
written at once unless several were just before it; then they are one write, later.
"""

BURST = 10
"""Writes in a row."""
REFILL_SECONDS = 60.0
"""After which there may be one more."""


class Pace:
    """Of one writer."""

    def __init__(self) -> None:
        self._left, self._at = float(BURST), 0.0

    def wait(self, now: float) -> float:
        """Seconds until there may be a write; 0: now."""
        self._left = min(float(BURST), self._left + max(0.0, now - self._at) / REFILL_SECONDS)
        self._at = now
        # A sum of many parts of one is a little less than one.
        return 0.0 if self._left > 1 - 1e-6 else (1 - self._left) * REFILL_SECONDS

    def wrote(self) -> None:
        """There was one, or an attempt at one."""
        self._left -= 1
