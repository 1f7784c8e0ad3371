"""The arbiter's C API (native/include/gs_arbiter.h) as typed objects: Python sets policy, C serves leases."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Self

from gpushare._native import ffi, lib
from gpushare.errors import FailedError
from gpushare.pages import LimitsPage, UsagePage
from gpushare.policy.shares import Share

MAX_DEVICES = lib.GS_ARBITER_MAX_DEVICES
_EVENTS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Config:
    """Times in ns. The values of gs_arbiter_defaults; a test holds them together."""

    lease_ns: int = 20_000_000
    bound_ns: int = 2_000_000
    bound_alone_ns: int = 50_000_000
    revoke_overlap_ns: int = 1_000_000
    early_idle_ns: int = 200_000
    bucket_ns: int = 200_000_000
    credit_floor_ns: int = 1_000_000
    reserve_milli: int = 20
    realtime: bool = True


@dataclass(frozen=True, slots=True)
class GrantStats:
    leased_ns: int
    borrowed_ns: int
    busy_ns: int
    wait_ns: int
    leases: int
    revokes: int
    waits: int
    wake_to_lease_max_ns: int
    memory_bytes: int
    memory_peak_bytes: int
    waiting: bool
    held: bool
    processes: int
    runnable: bool
    wake_to_lease: tuple[int, ...] = field(default=())
    """Bucket i counts waits shorter than 2^i us, the last one all longer."""


@dataclass(frozen=True, slots=True)
class DeviceStats:
    wall_ns: int
    leased_ns: int
    switch_ns: int
    idle_ns: int
    idle_with_waiters_ns: int
    leases: int


class EventKind(enum.IntEnum):
    LEASE = lib.GS_EVENT_LEASE
    REVOKE = lib.GS_EVENT_REVOKE
    HANDOVER = lib.GS_EVENT_HANDOVER
    WAKE = lib.GS_EVENT_WAKE
    LATE = lib.GS_EVENT_LATE
    BESIDE = lib.GS_EVENT_BESIDE


@dataclass(frozen=True, slots=True)
class Event:
    """`value` is ns: since the grant's wake (LEASE), since the revoke (HANDOVER, LATE, BESIDE). -1: nobody."""

    sequence: int
    t_ns: int
    kind: EventKind
    device: int
    grant: int
    other: int
    value: int


class ShareFlags(enum.IntFlag):
    """How the leases of a grant are given. `GANG`: on all its devices at one instant or on none. `BESIDE`: always
    beside those of others, where nobody here could align them with the grant's peers elsewhere."""

    NONE = 0
    GANG = lib.GS_SHARE_GANG
    BESIDE = lib.GS_SHARE_BESIDE


def _raise(code: int, error: Any) -> None:
    if code < 0:
        raise FailedError(f"arbiter: {ffi.string(error.msg).decode(errors='replace')}")


def _shares(shares: Sequence[Share]) -> Any:
    rows = ffi.new("struct gs_share[]", len(shares))
    for row, share in zip(rows, shares, strict=True):
        row.guarantee_milli = share.guarantee_milli
        row.limit_milli = share.limit_milli
        row.weight = share.weight
        row.tier = share.tier
        row.class_ = int(share.workload)
    return rows


class Arbiter:
    """One thread in this process that serves all devices. Methods may be called from any thread."""

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        settings = ffi.new("struct gs_arbiter_config *")
        for item in fields(Config):
            setattr(settings, item.name, int(getattr(config, item.name)))
        out, error = ffi.new("gs_arbiter **"), ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_create(out, settings, error), error)
        self._arbiter: Any = out[0]
        self._seen = ffi.new("uint64_t *", 0)
        self._rows = ffi.new("struct gs_event[]", _EVENTS_AT_ONCE)

    def close(self) -> None:
        """Stops the thread. Lease words stay as they are, so tenants go on; the pages may be closed afterwards."""
        if self._arbiter is not None:
            lib.gs_arbiter_destroy(self._arbiter)
            self._arbiter = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(
        self,
        limits: LimitsPage,
        usage: UsagePage,
        devices: Sequence[int],
        shares: Sequence[Share],
        bell: int,
        flags: ShareFlags | None = None,
    ) -> int:
        """Serves a grant and gives its handle. devices[i] and shares[i] belong to ordinal i of the grant. Both pages
        stay open until `remove` returned; `bell` is duplicated. A lease word that is held already is taken over.
        Without flags a grant of several devices is a gang."""
        if len(devices) != len(shares):
            raise FailedError(f"arbiter: {len(devices)} devices and {len(shares)} shares")
        handle, error = ffi.new("int32_t *"), ffi.new("struct gs_err *")
        rows, nodes = _shares(shares), ffi.new("uint32_t[]", list(devices))
        if flags is None:
            flags = ShareFlags.GANG if len(devices) > 1 else ShareFlags.NONE
        for row in rows:
            row.flags = int(flags)
        code = lib.gs_arbiter_grant_add(
            self._arbiter, limits.pointer, usage.pointer, nodes, len(devices), rows, bell, handle, error
        )
        _raise(code, error)
        return int(handle[0])

    def set_shares(self, handle: int, shares: Sequence[Share]) -> None:
        """One share for each ordinal of the grant; how its leases are given stays as it was added."""
        error = ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_grant_share(self._arbiter, handle, _shares(shares), error), error)

    def remove(self, handle: int) -> None:
        """Takes the grant's leases back and forgets it."""
        error = ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_grant_remove(self._arbiter, handle, error), error)

    def clear_slot(self, handle: int, slot: int) -> None:
        """The slot's process is dead: its bytes are back, its metered time stays in the grant's sum."""
        error = ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_slot_clear(self._arbiter, handle, slot, error), error)

    def grant_stats(self, handle: int, device: int) -> GrantStats:
        row, error = ffi.new("struct gs_grant_stats *"), ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_grant_stats(self._arbiter, handle, device, row, error), error)
        return GrantStats(
            leased_ns=row.leased_ns,
            borrowed_ns=row.borrowed_ns,
            busy_ns=row.busy_ns,
            wait_ns=row.wait_ns,
            leases=row.leases,
            revokes=row.revokes,
            waits=row.waits,
            wake_to_lease_max_ns=row.wake_to_lease_max_ns,
            memory_bytes=row.memory_bytes,
            memory_peak_bytes=row.memory_peak_bytes,
            waiting=bool(row.waiting),
            held=bool(row.held),
            processes=row.processes,
            runnable=bool(row.runnable),
            wake_to_lease=tuple(row.wake_to_lease),
        )

    def device_stats(self, device: int) -> DeviceStats:
        row, error = ffi.new("struct gs_device_stats *"), ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_device_stats(self._arbiter, device, row, error), error)
        return DeviceStats(**{item.name: getattr(row, item.name) for item in fields(DeviceStats)})

    def events(self) -> tuple[list[Event], int]:
        """What happened since the last call, and how many older events the ring had lost."""
        found: list[Event] = []
        lost = 0
        while True:
            before = self._seen[0]
            n = lib.gs_arbiter_events(self._arbiter, self._seen, self._rows, _EVENTS_AT_ONCE)
            first = self._seen[0] - n + 1
            lost += first - 1 - before
            for i in range(n):
                row = self._rows[i]
                found.append(
                    Event(first + i, row.t_ns, EventKind(row.kind), row.device, row.grant, row.other, row.value)
                )
            if n < _EVENTS_AT_ONCE:
                return found, lost
