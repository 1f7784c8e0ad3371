"""Values in the pages of a grant (native/page/gs_page.h)."""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from gpushare._native import lib


class GrantState(enum.IntEnum):
    """`state` of the limits page."""

    RESERVED = lib.GS_GRANT_RESERVED
    ACTIVE = lib.GS_GRANT_ACTIVE
    SUSPENDED = lib.GS_GRANT_SUSPENDED
    RELEASED = lib.GS_GRANT_RELEASED


class Managed(enum.IntEnum):
    """Whether managed memory is charged like device memory or refused."""

    CHARGE = lib.GS_MANAGED_CHARGE
    REFUSE = lib.GS_MANAGED_REFUSE


class IdleMemory(enum.IntEnum):
    """Whether a grant's memory may be moved to host memory while it is not used."""

    KEEP = lib.GS_IDLE_KEEP
    LEND = lib.GS_IDLE_LEND


class Residency(enum.IntEnum):
    """Where the daemon wants a grant's movable memory (`enum gs_residency`)."""

    RESIDENT = lib.GS_RESIDENT
    PREPARED = lib.GS_PREPARED
    HOSTED = lib.GS_HOSTED


class Fixed(enum.IntEnum):
    """What stays on the device in a grant that lends idle memory (`enum gs_fixed`)."""

    SMALL = lib.GS_FIXED_SMALL
    DIRECT = lib.GS_FIXED_DIRECT
    POOLS = lib.GS_FIXED_POOLS
    ARRAYS = lib.GS_FIXED_ARRAYS
    MANAGED = lib.GS_FIXED_MANAGED
    MAPPED = lib.GS_FIXED_MAPPED
    EXPORTED = lib.GS_FIXED_EXPORTED
    SYNCED = lib.GS_FIXED_SYNCED


class Move(enum.IntEnum):
    """How a process carried that out (`enum gs_move`)."""

    MOVED = lib.GS_MOVED
    WORKING = lib.GS_MOVE_WORKING
    NO_HOST = lib.GS_MOVE_NO_HOST
    NO_DEVICE = lib.GS_MOVE_NO_DEVICE
    FAILED = lib.GS_MOVE_FAILED
    UNSEEN = lib.GS_MOVE_UNSEEN


class Refusal(enum.IntEnum):
    """Why a call that takes device memory was refused (`enum gs_refusal`)."""

    LIMIT = lib.GS_REFUSED_LIMIT
    DEVICE = lib.GS_REFUSED_DEVICE
    AWAY = lib.GS_REFUSED_AWAY


@dataclass(frozen=True, slots=True)
class Refused:
    """The calls of one process that were refused for want of device memory, as it says itself; untrusted. `calls`: a
    counter of 32 bits since it joined. Of the last one: the device's `ordinal` in the grant, what it asked for, what
    the grant had left, and a `Refusal`, or whatever else the process wrote."""

    calls: int
    ordinal: int
    asked_bytes: int
    left_bytes: int
    why: int


class HostCalls(NamedTuple):
    """What one process asked of its devices from the host since it joined, as it says itself; untrusted. `sync_calls`:
    calls whose answer it waited for. `bytes_in`: copied to devices; `bytes_out`: from them."""

    sync_calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What policy sets for one device of a grant. Shares in milli of the device. `instance`: a part of a partitioned
    device (MIG)."""

    uuid: bytes
    memory_bytes: int
    context_bytes: int
    guarantee_milli: int
    limit_milli: int
    instance: bool = False


@dataclass(frozen=True, slots=True)
class DeviceLease:
    """What the arbiter sets for one device. `inflight_bound_ns`: of estimated device time."""

    epoch: int
    held: bool
    contended: bool
    inflight_bound_ns: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One process of a grant."""

    index: int
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """What one process reports about itself on one device."""

    memory_bytes: int
    memory_pending: int
    busy_ns: int
    queue_end_ns: int
    launches: int
    wait_ns: int
    waiting: int
    inflight: int
    drained: int
    dependent: bool
    movable_bytes: int = 0
    hosted_bytes: int = 0
    clean_bytes: int = 0
    copied_bytes: int = 0
    touched: int = 0
    """A number that changes with each call besides launches that touches memory."""
    residency: int = 0
    """The last residency word that it carried out, or could not."""
    move: int = 0
    """Of that word; a `Move`, or whatever else the process wrote."""
    wants: bool = False
    returns: bool = False
    """Without a daemon, its memory has come back by itself, or is about to."""
    leaves: bool = False
    """Its work is done and there is host memory: all that can be moved is leaving."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event that one process reports, at `time_ns` (CLOCK_MONOTONIC); untrusted. `device`: ordinal in the grant, or
    None."""

    time_ns: int
    area: str
    device: int | None
    text: str
