"""The arbiter's C API (native/arbiter/gs_arbiter.h) as typed objects: Python sets policy, C serves leases."""

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from msgspec import Struct

from gpushare._native import ffi, lib
from gpushare.binding.arbiter_events import Event, Refusals, Wanted, event_of
from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.errors import FailedError
from gpushare.policy.quota.shares import Share

MAX_DEVICES = lib.GS_ARBITER_MAX_DEVICES
EVENTS_KEPT = lib.GS_ARBITER_EVENTS
LATENCY_BUCKETS = lib.GS_LATENCY_BUCKETS
_EVENTS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of the arbiter (`struct gs_arbiter_config` explains them). Times in ns, the reserve in milli. The
    defaults are those of gs_arbiter_defaults; a test keeps them equal."""

    lease_ns: int = 20_000_000
    bound_ns: int = 2_000_000
    bound_alone_ns: int = 50_000_000
    revoke_overlap_ns: int = 1_000_000
    early_idle_ns: int = 200_000
    bucket_ns: int = 200_000_000
    credit_floor_ns: int = 1_000_000
    reserve_milli: int = 20
    realtime: bool = True


class Spans(Struct, frozen=True):
    """Durations of waits, or of reclaims, that have ended, in ns.

    Bucket i counts those below 2^i us and not in an earlier bucket, the last one all longer."""

    count: int = 0
    total_ns: int = 0
    max_ns: int = 0
    buckets: tuple[int, ...] = (0,) * LATENCY_BUCKETS


class GrantStats(Struct, frozen=True):
    """Counters of one grant on one device since it was added (`struct gs_grant_stats` in gs_arbiter.h). Times in ns."""

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
    wake_to_lease: tuple[int, ...] = ()
    """Buckets as in Spans."""
    wake_to_lease_ns: int = 0
    waited: Spans = Spans()
    reclaimed: Spans = Spans()
    marked: int = 0
    wait_owed_ns: int = 0
    wait_limit_ns: int = 0
    launches: int = 0
    had_ns: int = 0


_COUNTERS = tuple(name for name, kind in GrantStats.__annotations__.items() if kind is int)


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """How the time of one device was used since the arbiter began, in ns (`struct gs_device_stats`)."""

    wall_ns: int
    leased_ns: int
    switch_ns: int
    idle_ns: int
    idle_with_waiters_ns: int
    leases: int


class ShareFlags(enum.IntFlag):
    """How the leases of a grant are given.

    `GANG`: on all its devices at the same instant or on none. `BESIDE`: always alongside the leases of others, since
    nobody on this node could align them with those of the grant's peers on other nodes."""

    NONE = 0
    GANG = lib.GS_SHARE_GANG
    BESIDE = lib.GS_SHARE_BESIDE


def _raise(code: int, error: Any) -> None:
    if code < 0:
        raise FailedError(f"arbiter: {ffi.string(error.msg).decode(errors='replace')}")


def _buckets(row: Any) -> tuple[int, ...]:
    return tuple(ffi.unpack(row, LATENCY_BUCKETS))


def _spans(row: Any) -> Spans:
    return Spans(row.n, row.total_ns, row.max_ns, _buckets(row.bucket))


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
    """One C thread in this process that serves all devices. Methods may be called from any thread.

    Raises FailedError when the configuration makes no sense or the thread cannot be started."""

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        settings = ffi.new("struct gs_arbiter_config *")
        for item in fields(Config):
            setattr(settings, item.name, int(getattr(config, item.name)))
        out, error = ffi.new("gs_arbiter **"), ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_create(out, settings, error), error)
        self._arbiter: Any = out[0]
        self._read = 0
        self._stats: dict[int, dict[int, tuple[bytes, GrantStats]]] = {}
        """By handle and device, the last row and its object, which is reused: all grants are polled, and few rows
        change."""
        self._seen = ffi.new("uint64_t *", 0)
        self._rows = ffi.new("struct gs_event[]", _EVENTS_AT_ONCE)

    def close(self) -> None:
        """Stops the thread. Lease words stay as they are, so tenants go on; the pages may be closed afterwards."""
        if self._arbiter is not None:
            lib.gs_arbiter_destroy(self._arbiter)
            self._arbiter = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Serves a grant and returns its handle.

        devices[i], a number on the node, and shares[i] belong to ordinal i of the grant. Both pages have to stay open
        until `remove` has returned; `bell` is duplicated. A lease from an earlier arbiter is kept where it can be.
        Without flags a grant of several devices is a gang. Raises FailedError when a device or share makes no sense, or
        the table of grants is full."""
        if len(devices) != len(shares):
            raise FailedError(f"arbiter: {len(devices)} devices and {len(shares)} shares")
        handle, error = ffi.new("int32_t *"), ffi.new("struct gs_err *")
        rows, nodes = _shares(shares), ffi.new("uint32_t[]", list(devices))
        if flags is None:
            flags = ShareFlags.GANG if len(devices) > 1 else ShareFlags.NONE
        for row in rows:
            row.flags = int(flags)
        code = lib.gs_arbiter_grant_add(
            self._arbiter, limits.pointer, usage.pointer, usage.seats, nodes, len(devices), rows, bell, handle, error
        )
        _raise(code, error)
        return int(handle[0])

    def set_shares(self, handle: int, shares: Sequence[Share]) -> None:
        """Sets one share for each ordinal of the grant; its flags stay as they were added. Raises FailedError."""
        error = ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_grant_share(self._arbiter, handle, _shares(shares), error), error)

    def remove(self, handle: int) -> None:
        """Revokes the grant's leases and forgets it. Raises FailedError when there is no such grant."""
        error = ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_grant_remove(self._arbiter, handle, error), error)
        self._stats.pop(handle, None)

    def clear_slot(self, handle: int, slot: int) -> None:
        """Frees the slot of a process that has ended: its memory is given back, its metered time stays in the grant's
        sum. Raises FailedError when there is no such grant or slot."""
        error = ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_slot_clear(self._arbiter, handle, slot, error), error)

    def refused(self, handle: int, device: int, found: Refusals) -> None:
        """Records an event about a grant on one device, by number on the node. Raises FailedError if that is not
        there."""
        row, error = ffi.new("struct gs_refused *"), ffi.new("struct gs_err *")
        for item in fields(Refusals):
            setattr(row, item.name, int(getattr(found, item.name)))
        _raise(lib.gs_arbiter_refused(self._arbiter, handle, device, row, error), error)

    def grant_stats(self, handle: int, device: int) -> GrantStats:
        """The statistics of a grant on one device, by number on the node. Raises FailedError if it is not there."""
        row, error = ffi.new("struct gs_grant_stats *"), ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_grant_stats(self._arbiter, handle, device, row, error), error)
        raw, known = bytes(ffi.buffer(row)), self._stats.setdefault(handle, {})
        if (before := known.get(device)) is not None and before[0] == raw:
            return before[1]
        found = GrantStats(
            **{name: getattr(row, name) for name in _COUNTERS},
            waiting=bool(row.waiting),
            held=bool(row.held),
            runnable=bool(row.runnable),
            wake_to_lease=_buckets(row.wake_to_lease),
            waited=_spans(row.waited),
            reclaimed=_spans(row.reclaimed),
        )
        known[device] = raw, found
        return found

    def device_stats(self, device: int) -> DeviceStats:
        """The statistics of a device, a number on the node. Raises FailedError when there is no such number."""
        row, error = ffi.new("struct gs_device_stats *"), ffi.new("struct gs_err *")
        _raise(lib.gs_arbiter_device_stats(self._arbiter, device, row, error), error)
        return DeviceStats(**{item.name: getattr(row, item.name) for item in fields(DeviceStats)})

    def newest_event(self) -> int:
        """The sequence number of the newest event; 0: there is none."""
        return int(lib.gs_arbiter_newest_event(self._arbiter))

    def events_after(
        self, after: int, limit: int = EVENTS_KEPT, wanted: Wanted | None = None, *, latest: bool = False, most: int = 0
    ) -> tuple[list[Event], int, int]:
        """The wanted events after number `after`: the oldest `limit` of them or, with `latest`, the newest. `most`: the
        scan stops after about this many events, 0: it reads all.

        Also returns the number of the last event that was read, and how many older ones the record had lost."""
        found: deque[Event] = deque(maxlen=limit)
        lost = looked = 0
        while True:
            self._seen[0] = after
            n = lib.gs_arbiter_events(self._arbiter, self._seen, self._rows, _EVENTS_AT_ONCE)
            first = self._seen[0] - n + 1
            lost += first - 1 - after
            for i in range(n):
                row = self._rows[i]
                if wanted is not None and not wanted.matches(row):
                    continue
                if len(found) == limit and not latest:
                    return list(found), first + i - 1, lost
                found.append(event_of(first + i, row))
            looked, after = looked + n, int(self._seen[0])
            if n < _EVENTS_AT_ONCE or 0 < most <= looked:
                return list(found), after, lost

    def events(self) -> tuple[list[Event], int]:
        """The events since the last call, and how many older ones the record had lost."""
        found, self._read, lost = self.events_after(self._read)
        return found, lost
