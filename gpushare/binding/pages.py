"""The two shared pages of a grant (native/page/gs_page.h) as typed objects. No other Python file accesses their bytes.

The tenant can write the usage page, so nothing that is read from it can be trusted. A page that a tenant has truncated
reads as zeros and is `torn`; it does not kill this process.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from gpushare._native import ffi, lib
from gpushare.binding.page_words import (
    DeviceLease,
    DeviceLimits,
    Fixed,
    GrantState,
    HostCalls,
    IdleMemory,
    Managed,
    Refused,
    Residency,
    Slot,
    SlotUsage,
    TraceEvent,
)
from gpushare.errors import FailedError, RefusedError, UsageError

LIMITS_BYTES = ffi.sizeof("struct gs_limits")
USAGE_BYTES = ffi.sizeof("struct gs_usage")
MAX_DEVICES = lib.GS_MAX_DEVICES
MAX_SLOTS = lib.GS_MAX_SLOTS


def _raise(what: Path | str, code: int, error: Any) -> None:
    if code < 0:
        text = ffi.string(error.msg).decode(errors="replace")
        raise FailedError(f"page {what}: {text}")


_MOST = (1 << 63) - 1


class _Page:
    """A mapping that this object owns. `pointer` is valid until `close`."""

    _BYTES: int
    _TYPE: str
    _CHECK: Any

    def __init__(self, path: Path, descriptor: int, writable: bool) -> None:
        out = ffi.new("void **")
        error = ffi.new("struct gs_err *")
        _raise(path, lib.gs_page_map(descriptor, self._BYTES, int(writable), out, error), error)
        self.path = path
        self.pointer: Any = ffi.cast(self._TYPE, out[0])

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Self:
        """Maps an existing page. Raises FailedError where the file is missing or is not a valid page."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise FailedError(f"page {path}: cannot open it: {error.strerror}") from error
        try:
            page = cls(path, descriptor, writable)
        finally:
            os.close(descriptor)
        try:
            page.check()
        except FailedError:
            page.close()
            raise
        return page

    def check(self) -> None:
        """Raises FailedError unless it is a valid page of this kind and version."""
        error = ffi.new("struct gs_err *")
        _raise(self.path, self._CHECK(self.pointer, self._BYTES, error), error)

    @property
    def torn(self) -> bool:
        """Whether a tenant has truncated the file: it reads as zeros from then on, and its grant has to end."""
        return self.pointer is not None and bool(lib.gs_page_torn(self.pointer))

    @property
    def grant(self) -> str:
        """The id of the grant that the page names as its own."""
        return ffi.string(self.pointer.grant, lib.GS_GRANT_ID_BYTES).decode("ascii", errors="replace")

    def close(self) -> None:
        """Unmaps the page; the file stays. May be called twice."""
        if self.pointer is not None:
            lib.gs_page_unmap(self.pointer, self._BYTES)
            self.pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LimitsPage(_Page):
    """The daemon's page: tenants map it read-only. Lease words in it belong to the arbiter."""

    _BYTES = LIMITS_BYTES
    _TYPE = "struct gs_limits *"
    _CHECK = lib.gs_limits_check

    @property
    def ndevices(self) -> int:
        """How many devices the grant has."""
        return min(int(self.pointer.ndevices), MAX_DEVICES)

    def set_device(self, ordinal: int, device: DeviceLimits) -> None:
        """Changes limits of a living grant. Each word is stored atomically, so a reader sees the old or the new value.
        Raises UsageError for limits that make no sense."""
        _check_device(device)
        if not 0 <= ordinal < self.ndevices:
            raise UsageError(f"grant {self.grant} has no device {ordinal}: it has {self.ndevices}")
        words = self.pointer.device[ordinal]
        ffi.memmove(words.uuid, device.uuid, 16)
        words.instance = device.instance
        lib.gs_store64(ffi.addressof(words, "memory_bytes"), device.memory_bytes)
        lib.gs_store64(ffi.addressof(words, "context_bytes"), device.context_bytes)
        lib.gs_store32(ffi.addressof(words, "guarantee_milli"), device.guarantee_milli)
        lib.gs_store32(ffi.addressof(words, "limit_milli"), device.limit_milli)

    def uncharged(self, ordinal: int) -> int:
        """Bytes that count against the limit of one device although no process was charged for them."""
        return int(lib.gs_load64(ffi.addressof(self.pointer.device[ordinal], "uncharged_bytes")))

    def set_uncharged(self, ordinal: int, size: int) -> None:
        """Sets the number of uncharged bytes."""
        lib.gs_store64(ffi.addressof(self.pointer.device[ordinal], "uncharged_bytes"), size)

    def residency(self, ordinal: int) -> int:
        """The residency word of one device."""
        return int(lib.gs_load32(ffi.addressof(self.pointer.device[ordinal], "residency")))

    def set_residency(self, ordinal: int, residency: Residency) -> int:
        """Tells the grant's processes where its movable memory is to be. Returns the new word."""
        word = ffi.addressof(self.pointer.device[ordinal], "residency")
        epoch = (lib.gs_load32(word) >> lib.GS_RESIDENCY_SHIFT) + 1
        value = (epoch << lib.GS_RESIDENCY_SHIFT | residency) & 0xFFFFFFFF
        lib.gs_store32(word, value)
        lib.gs_futex_wake(word)
        return int(value)

    def set_room(self, ordinal: int, *, kept: bool) -> None:
        """Whether hosted memory may come back without a daemon."""
        lib.gs_store32(ffi.addressof(self.pointer.device[ordinal], "room"), int(kept))

    def room(self, ordinal: int) -> bool:
        """Whether hosted memory may come back without a daemon."""
        return bool(lib.gs_load32(ffi.addressof(self.pointer.device[ordinal], "room")))

    def set_allocation_wait(self, seconds: float) -> None:
        """How long an allocation waits at most for memory of the grant that others use; at most 49 days."""
        lib.gs_store32(ffi.addressof(self.pointer, "allocation_wait_ms"), round(seconds * 1000))

    @property
    def allocation_wait_ms(self) -> int:
        """How long an allocation waits at most for memory of the grant that others use."""
        return int(lib.gs_load32(ffi.addressof(self.pointer, "allocation_wait_ms")))

    def lease(self, ordinal: int) -> DeviceLease:
        """The lease of one device, by its ordinal in the grant."""
        words = self.pointer.device[ordinal]
        lease = lib.gs_load32(ffi.addressof(words, "lease"))
        return DeviceLease(
            epoch=lease >> 1,
            held=bool(lease & lib.GS_LEASE_HELD),
            contended=bool(lib.gs_load32(ffi.addressof(words, "contended"))),
            inflight_bound_ns=lib.gs_load64(ffi.addressof(words, "inflight_bound_ns")),
        )

    @property
    def state(self) -> GrantState:
        """The grant's state, which its processes read."""
        return GrantState(lib.gs_load32(ffi.addressof(self.pointer, "state")))

    @state.setter
    def state(self, value: GrantState) -> None:
        lib.gs_store32(ffi.addressof(self.pointer, "state"), value)

    @property
    def slots_high(self) -> int:
        """Slots at or above this number were never taken."""
        return lib.gs_load32(ffi.addressof(self.pointer, "slots_high"))

    @property
    def daemon_epoch(self) -> int:
        """Increases with each start of a daemon."""
        return lib.gs_load32(ffi.addressof(self.pointer, "daemon_epoch"))

    def renew_daemon_epoch(self) -> int:
        """Makes the grant's processes join again; called at each start of a daemon. Returns the new epoch."""
        return lib.gs_add32(ffi.addressof(self.pointer, "daemon_epoch"), 1)


class UsagePage(_Page):
    """The page that tenants write: the daemon writes slot headers, each process the rest of its slot."""

    _BYTES = USAGE_BYTES
    _TYPE = "struct gs_usage *"
    _CHECK = lib.gs_usage_check

    def __init__(self, path: Path, descriptor: int, writable: bool) -> None:
        super().__init__(path, descriptor, writable)
        self.seats: Any = ffi.new("struct gs_seats *")  # this process's record of the slots, which the arbiter uses

    def claim(self, limits: LimitsPage, pid: int) -> Slot:
        """A slot for the process `pid` (host pid, from peer credentials). Raises RefusedError when all are taken, or
        there is no memory for another one."""
        self._make_room(limits.slots_high)
        slot, generation, error = ffi.new("uint32_t *"), ffi.new("uint32_t *"), ffi.new("struct gs_err *")
        code = lib.gs_slot_claim(limits.pointer, self.pointer, self.seats, pid, slot, generation, error)
        if code == -errno.ENOSPC:
            raise RefusedError(ffi.string(error.msg).decode())
        _raise(self.path, code, error)
        return Slot(slot[0], generation[0], pid)

    def _make_room(self, index: int) -> None:
        """Allocates a slot that was never taken: a write to it on a full file system would tear the page."""
        start, size = ffi.offsetof("struct gs_usage", "slot"), ffi.sizeof("struct gs_slot")
        if index >= MAX_SLOTS:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                os.posix_fallocate(descriptor, start + index * size, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise RefusedError(f"there is no room for another process in {self.path} ({error.strerror})") from None

    def keep(self, slot: Slot, since_ns: int) -> None:
        """Gives a slot back to the process that had it before a restart. `since_ns`: when it began, monotonic."""
        lib.gs_seat_keep(self.seats, slot.index, slot.generation, slot.pid, max(0, since_ns))

    def set_capacity(self, memory_bytes: Sequence[int]) -> None:
        """Sets the memory of each device, by ordinal: no process is believed to hold more."""
        self.seats.capacity_bytes[0 : len(memory_bytes)] = list(memory_bytes)

    def taken(self) -> Iterator[Slot]:
        """Slots that this process assigned with `claim` or `keep`."""
        return (Slot(i, seat.generation, seat.pid) for i, seat in enumerate(self.seats.seat) if seat.taken)

    def live_slots(self, limits: LimitsPage) -> Iterator[Slot]:
        """Slots that are taken, and those that only the page marks so, which a tenant may have written."""
        for index in range(min(limits.slots_high, MAX_SLOTS)):
            slot, seat = self.pointer.slot[index], self.seats.seat[index]
            if seat.taken or lib.gs_load32(ffi.addressof(slot, "state")) == lib.GS_SLOT_LIVE:
                known = seat if seat.taken else slot
                yield Slot(index, known.generation, known.pid)

    def usage(self, index: int, ordinal: int) -> SlotUsage:
        """What a process reports of itself on one device, by its ordinal in the grant; numbers are capped at 2^63 - 1.
        For display only: charging uses the arbiter's validated values."""
        words = self.pointer.slot[index].device[ordinal]

        def load64(name: str) -> int:
            return min(_MOST, lib.gs_load64(ffi.addressof(words, name)))

        def load32(name: str) -> int:
            return lib.gs_load32(ffi.addressof(words, name))

        # Written last: what is read after it is at least as new as the word that it answers.
        residency, flags = load32("residency"), load32("flags")
        hosted = load64("hosted_bytes")  # before what it is a part of, which may become less meanwhile
        return SlotUsage(
            memory_bytes=load64("memory_bytes"),
            memory_pending=load64("memory_pending"),
            busy_ns=load64("busy_ns"),
            queue_end_ns=load64("queue_end_ns"),
            launches=load64("launches"),
            wait_ns=load64("wait_ns"),
            waiting=load32("waiting"),
            inflight=load32("inflight"),
            drained=load32("drained"),
            dependent=bool(flags & lib.GS_SLOT_DEPENDENT),
            movable_bytes=load64("movable_bytes"),
            hosted_bytes=hosted,
            clean_bytes=load64("clean_bytes"),
            copied_bytes=load64("copied_bytes"),
            touched=lib.gs_load32(ffi.addressof(self.pointer.slot[index], "touched")),
            residency=residency,
            move=load32("move"),
            wants=bool(flags & lib.GS_SLOT_WANTS),
            returns=bool(flags & lib.GS_SLOT_RETURNS),
            leaves=bool(flags & lib.GS_SLOT_LEAVES),
        )

    def fixed(self, index: int) -> dict[Fixed, int]:
        """Bytes that a process reports as such that cannot be moved, where there are any; untrusted. For grants that
        lend idle memory, which have one device."""
        words = ffi.addressof(self.pointer.slot[index], "fixed_bytes")
        said = {kind: min(_MOST, lib.gs_load64(words[0] + kind)) for kind in Fixed}
        return {kind: size for kind, size in said.items() if size}

    def refusals(self, index: int) -> int:
        """How many calls of a process were refused for want of device memory: `Refused.calls`."""
        return int(lib.gs_load32(ffi.addressof(self.pointer.slot[index], "refusals")))

    def refused(self, index: int) -> Refused:
        """The same with the last of them; sizes are capped at 2^63 - 1."""
        slot = self.pointer.slot[index]
        calls = self.refusals(index)  # written last
        return Refused(
            calls=calls,
            ordinal=slot.refused_device,
            asked_bytes=min(_MOST, lib.gs_load64(ffi.addressof(slot, "refused_bytes"))),
            left_bytes=min(_MOST, lib.gs_load64(ffi.addressof(slot, "refused_left"))),
            why=slot.refused_why,
        )

    def host_calls(self, index: int) -> HostCalls:
        """What a process says of its calls; numbers are capped at 2^63 - 1."""
        slot = self.pointer.slot[index]
        words = ("sync_calls", "host_bytes_in", "host_bytes_out")
        return HostCalls(*(min(_MOST, lib.gs_load64(ffi.addressof(slot, name))) for name in words))

    def since_ns(self, index: int) -> int:
        """When the process in a slot joined, or began if that was before a restart; monotonic."""
        return int(self.seats.seat[index].since_ns)

    def trace(self, slot: Slot) -> list[TraceEvent]:
        """The last events of the process in the slot, oldest first. Empty for slots without a ring, and for one whose
        process has written none since it joined."""
        if slot.index >= lib.GS_TRACE_RINGS:
            return []
        ring = self.pointer.trace[slot.index]
        if ring.generation != slot.generation:
            return []
        count = lib.gs_load64(ffi.addressof(ring, "count"))
        found = []
        for number in range(max(0, count - lib.GS_TRACE_EVENTS), count):
            event = ring.event[number % lib.GS_TRACE_EVENTS]
            area, text = lib.gs_trace_area(event.kind), lib.gs_trace_text(event.kind)
            if area and text:
                device = event.device if 0 <= event.device < MAX_DEVICES else None
                words = ffi.string(text).decode().replace("%llu", "{}").format(event.a, event.b)
                found.append(TraceEvent(event.time_ns, ffi.string(area).decode(), device, words))
        return found


def new_limits(
    grant: str,
    devices: Sequence[DeviceLimits],
    *,
    managed: Managed = Managed.CHARGE,
    idle_memory: IdleMemory = IdleMemory.KEEP,
    daemon_epoch: int = 1,
) -> bytes:
    """Content of the file of a new limits page. Raises UsageError for limits that make no sense, and FailedError for an
    invalid grant id or number of devices."""
    for device in devices:
        _check_device(device)
    page, error = ffi.new("struct gs_limits *"), ffi.new("struct gs_err *")
    for words, device in zip(page.device, devices, strict=False):  # gs_limits_init refuses more devices than a page has
        ffi.memmove(words.uuid, device.uuid, 16)
        words.instance = device.instance
        words.memory_bytes, words.context_bytes = device.memory_bytes, device.context_bytes
        words.guarantee_milli, words.limit_milli = device.guarantee_milli, device.limit_milli
    page.managed, page.idle_memory = managed, idle_memory
    _raise(grant, lib.gs_limits_init(page, LIMITS_BYTES, grant.encode(), len(devices), daemon_epoch, error), error)
    return bytes(ffi.buffer(page))


def new_usage(grant: str) -> bytes:
    """First bytes of the file of a new usage page; zeros follow, up to USAGE_BYTES. Raises FailedError for an invalid
    grant id."""
    head, error = ffi.new("char[]", lib.GS_USAGE_HEAD_BYTES), ffi.new("struct gs_err *")
    page = ffi.cast("struct gs_usage *", head)
    _raise(grant, lib.gs_usage_init(page, USAGE_BYTES, grant.encode(), error), error)
    return bytes(ffi.buffer(head))


def held(limits: LimitsPage, usage: UsagePage, ordinal: int) -> tuple[int, int]:
    """Bytes of one device that the processes of a grant claim to hold: without, and with what calls in progress may
    take. Tenants can write any numbers; they are capped at 2^63 - 1."""
    sums = ffi.new("uint64_t[2]")
    lib.gs_page_held(limits.pointer, usage.pointer, ordinal, sums, sums + 1)
    return min(_MOST, sums[0]), min(_MOST, sums[1])


def _check_device(device: DeviceLimits) -> None:
    if len(device.uuid) != 16:
        raise UsageError(f"a device uuid has 16 bytes, not {len(device.uuid)}")
    if device.memory_bytes < 0 or device.context_bytes < 0:
        raise UsageError("memory limits are not negative")
    if not 0 <= device.guarantee_milli <= device.limit_milli <= 1000:
        raise UsageError(
            f"a guarantee of {device.guarantee_milli} thousandths and a limit of {device.limit_milli} are not 0 <="
            " guarantee <= limit <= 1000"
        )
