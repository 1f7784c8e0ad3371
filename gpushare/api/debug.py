"""Wire types of `gpushare grant debug`. Units are those of gpushare.api.types."""

from typing import Literal

from msgspec import Struct


class DebugEvent(Struct, kw_only=True):
    """An event that a process recorded. `at_ns`: wall time. `device`: its ordinal in the grant, or None. `text`: as the
    process wrote it."""

    at_ns: int
    area: str
    device: int | None
    text: str


class DebugDevice(Struct, kw_only=True):
    """What one process reports about itself on one device; none of it is trusted.

    `ordinal`: the device's in the grant. `drained_epoch`: epoch of the last lease for which it reported that its work
    was done. `dependent`: it has been let past the bound on work in flight. `hosted_bytes`, `clean_bytes`: of its
    `movable_bytes`, in host memory, and on the device with a current copy there. `residency_epoch`: the last at which
    it carried out where its memory is to be, or could not; `move`: how (enum gs_move). `wants_memory`: a call waits for
    memory that is in host memory."""

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
    movable_bytes: int = 0
    hosted_bytes: int = 0
    clean_bytes: int = 0
    residency_epoch: int = 0
    move: int = 0
    wants_memory: bool = False


class DebugProcess(Struct, kw_only=True):
    """What one process of the grant reports about itself; none of it is trusted."""

    pid: int
    slot: int
    devices: list[DebugDevice]
    events: list[DebugEvent]


class DebugLease(Struct, kw_only=True):
    """One device's lease as the processes of the grant read it. `bound_ns`: how much estimated device time may be in
    flight. `residency`: where its memory is to be, since `residency_epoch`; `room`: without a daemon it may come
    back."""

    ordinal: int
    epoch: int
    held: bool
    contended: bool
    bound_ns: int
    residency: Literal["resident", "prepared", "hosted"] = "resident"
    residency_epoch: int = 0
    room: bool = False


class GrantDebug(Struct, kw_only=True):
    """What the pages of a grant contain. `daemon_epoch`: how many daemons have served the grant."""

    grant: str
    daemon_epoch: int
    leases: list[DebugLease]
    processes: list[DebugProcess]
