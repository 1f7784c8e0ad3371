"""How long waits are expected to take, from those before. Pure: counts in buckets in, milliseconds out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

US_PER_MS = 1000


@dataclass(slots=True)
class Waited:
    """How long waits took. Entry i counts those below 2^i us and not below 2^(i-1), the last one all longer."""

    buckets: list[int] = field(default_factory=list)
    longest_ns: int = 0

    def add(self, buckets: Sequence[int], longest_ns: int) -> None:
        """Adds waits."""
        if len(self.buckets) < len(buckets):
            self.buckets += [0] * (len(buckets) - len(self.buckets))
        for number, count in enumerate(buckets):
            self.buckets[number] += count
        self.longest_ns = max(self.longest_ns, longest_ns)

    @property
    def count(self) -> int:
        """Number of waits."""
        return sum(self.buckets)

    def quantile_ms(self, part: float) -> float | None:
        """The duration that a part `part` of the waits did not exceed; None: there were none. Waits count as evenly
        spread within a bucket, and none as longer than the longest."""
        wanted = part * self.count
        if not wanted:
            return None
        longest = self.longest_ns / 1e6
        below = 0
        for number, count in enumerate(self.buckets):
            if count and below + count >= wanted:
                low = 2 ** (number - 1) / US_PER_MS if number else 0.0
                last = number == len(self.buckets) - 1
                high = longest if last else min(2**number / US_PER_MS, longest)
                return round(low + max(0.0, high - low) * (wanted - below) / count, 3)
            below += count
        return round(longest, 3)
