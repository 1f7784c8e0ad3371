"""Wire types of what a grant has of its devices. Units are those of gpushare.api.types."""

from typing import Literal

from msgspec import Struct

Health = Literal["healthy", "unhealthy"]


class GrantDevice(Struct, kw_only=True):
    """One device of a grant. `guaranteed_milli`: the part of `time_milli` that its tenant's guarantee covers now; 0 on
    a device that does not work. `memory_borrowed_bytes`: the part of the limit that it has on loan, of memory that is
    guaranteed to others. `memory_asked_bytes`: what was asked for, of which the limit is the whole pages of 2 MiB.
    `served_milli`, `served_limit_milli`: the guarantee and the limit with which it is served now,
    including its part of what its tenant has left unreserved and of its tenant's limit. `entitled_milli`: what it
    should get now: while it works, what it is served with and its part of what others leave. `used_milli`: device time
    that it was charged in the last second; `borrowed_milli`: the part of that beyond its guarantee; `lent_milli`: the
    part of what it is served with that it left and others used; `waited_milli`: how much of the second it waited
    without a lease. `share_got_milli`: its part of the work that the device did in that second. `waits`, `reclaims`:
    numbers of ended waits, and of leases taken from it in mid-work whose work has ended; `reclaim_ns`: time until that
    work was done. Counts of leases and revokes are of this run of the daemon, and so are histograms: entry i counts
    those shorter than 2^i us and in no earlier entry, the last one all longer. `memory_uncharged_bytes`: the part of
    the memory it holds that the driver counts beyond what its processes were charged. `marked`: number of processes
    that wrote impossible values (events of kind `lie`): while there is one, `busy_ns` grows with the leases and
    `memory_bytes` is the limit."""

    id: str
    index: int
    memory_limit_bytes: int
    time_milli: int
    time_limit_milli: int
    guaranteed_milli: int
    memory_borrowed_bytes: int = 0
    memory_asked_bytes: int = 0
    served_milli: int = 0
    served_limit_milli: int = 0
    memory_bytes: int = 0
    memory_uncharged_bytes: int = 0
    memory_peak_bytes: int = 0
    busy_ns: int = 0
    leased_ns: int = 0
    borrowed_ns: int = 0
    wait_ns: int = 0
    leases: int = 0
    waits: int = 0
    wait_max_ns: int = 0
    wait_histogram: list[int] = []
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0
    reclaim_histogram: list[int] = []
    revokes: int = 0
    wake_to_lease_max_ns: int = 0
    share_got_milli: int = 0
    entitled_milli: int = 0
    used_milli: int = 0
    borrowed_milli: int = 0
    lent_milli: int = 0
    waited_milli: int = 0
    marked: int = 0
    waiting: bool = False
    held: bool = False
    health: Health = "healthy"
