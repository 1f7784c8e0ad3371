"""Wire types of `gpushare grant debug`. Units are those of gpushare.api.types."""

from msgspec import Struct


class DebugEvent(Struct, kw_only=True):
    """`at_ns`: wall time. `device`: ordinal in the grant, or None. `text`: as the process wrote it."""

    at_ns: int
    area: str
    device: int | None
    text: str


class DebugDevice(Struct, kw_only=True):
    """What one process reports about itself on one device; none of it is trusted.

    `ordinal`: in the grant. `drained_epoch`:
    of the last lease for which it said that its work was done. `dependent`: let through the bound on work in flight."""

    ordinal: int
    memory_bytes: int
    memory_pending_bytes: int
    busy_ns: int
    launches: int
    wait_ns: int
    waiting: int
    inflight: int
    queue_ns: int
    drained_epoch: int
    dependent: bool


class DebugProcess(Struct, kw_only=True):
    """What one process of the grant reports about itself; none of it is trusted."""

    pid: int
    slot: int
    devices: list[DebugDevice]
    events: list[DebugEvent]


class DebugLease(Struct, kw_only=True):
    """The words that the processes of the grant read. `bound_ns`: of estimated device time that may be in flight."""

    ordinal: int
    epoch: int
    held: bool
    contended: bool
    bound_ns: int


class GrantDebug(Struct, kw_only=True):
    """`daemon_epoch`: how many daemons have served the grant."""

    grant: str
    daemon_epoch: int
    leases: list[DebugLease]
    processes: list[DebugProcess]
