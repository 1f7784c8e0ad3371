"""Device time that a grant took, by the driver's count, beyond what it had by its own reports and what is due to it,
and when its processes are stopped for that. No clock, no I/O: times and facts are arguments.

Leases rest on what the interposer in a tenant's process reports. The driver still sees a tenant that bypasses it,
reports too little or runs without a lease. Such a tenant is not ended: it is stopped until it has had no more than its
share, as often as needed.

The arbiter charges a grant for only a part of the time while others report that they run too. Those reports may be
false, so they are no evidence against it: all the time that it can have used counts as had.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

DOUBT_NS = 1_000_000_000
"""How far a report may be ahead of the driver's count, whose samples come up to a second late; and the unexplained use
that is no error of measuring: reports are wrong by a quarter at most, and late by less than a second."""
STOP_NS, GO_NS = 50_000_000, 0
"""Owed time above which a grant that was found is stopped, and down to which it stays stopped. The cycle is far above
the 20 ms below which freezing is not worth its cost."""
MOST_NS = 5_000_000_000
"""Most that is owed, the rest is forgiven: a kernel that runs for a minute cannot be told from others while it does."""
LEAST_MILLI = 10
"""Milli of a device due to a grant that is guaranteed nothing, so that it is not stopped for ever."""
FORGIVEN_NS = 10_000_000_000
"""A grant that was not stopped for this long is trusted again."""

_Key = TypeVar("_Key", bound=Hashable)


def sliced(used_ns: Mapping[_Key, int], wall_ns: int) -> dict[_Key, int]:
    """What each had of one device in that time. A driver may count for each process how long it had a kernel there,
    also while the device was another's. If that adds up to more than the time that passed, all are scaled down alike,
    since the device slices evenly."""
    whole = sum(used_ns.values())
    if whole <= wall_ns:
        return dict(used_ns)
    return {key: ns * wall_ns // whole for key, ns in used_ns.items()}


@dataclass(slots=True)
class Account:
    """One grant on one device. `owed_ns`: what it took beyond what it had and what was due to it. `found`: that was too
    much to be an error. `stopped`: its processes are to be stopped now."""

    doubt_ns: int = DOUBT_NS
    owed_ns: int = field(init=False)
    found: bool = False
    stopped: bool = False
    _due_milli: int = LEAST_MILLI
    _went_ns: int = 0
    """How long it has run since it was last stopped."""

    def __post_init__(self) -> None:
        self.owed_ns = -self.doubt_ns

    def follow(self, used_ns: int, had_ns: int, due_milli: int, wall_ns: int) -> None:
        """Accounts for `wall_ns`, in which it used the device for `used_ns` by the driver's count, and had it for
        `had_ns` by its own reports (GrantStats.had_ns). `due_milli`: what it should get of the device, as far as is
        known; while it is stopped, no less counts than what was due before."""
        if not self.stopped or due_milli > self._due_milli:
            self._due_milli = max(due_milli, LEAST_MILLI)
        owed = self.owed_ns + used_ns - max(had_ns, wall_ns * self._due_milli // 1000)
        self.owed_ns = min(max(owed, -STOP_NS if self.found else -self.doubt_ns), MOST_NS)
        if not self.found:
            self.found = self.stopped = self.owed_ns >= self.doubt_ns
            return
        self.stopped = self.owed_ns > (GO_NS if self.stopped else STOP_NS)
        self._went_ns = 0 if self.stopped else self._went_ns + wall_ns
        if self._went_ns >= FORGIVEN_NS:
            self.found = False
