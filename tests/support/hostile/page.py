"""Attacks on the usage page: on any of its words, random or aimed, and on the file under it."""

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator

from hostile.program import Hostile

from gpushare._native import ffi

BYTES = ffi.sizeof("struct gs_usage")
SLOT, WORDS, RING = (ffi.sizeof(f"struct gs_{name}") for name in ("slot", "slot_device", "trace_ring"))
SLOTS, TRACE = ffi.offsetof("struct gs_usage", "slot"), ffi.offsetof("struct gs_usage", "trace")
DEVICES = ffi.offsetof("struct gs_slot", "device")


def fields(name: str) -> dict[str, tuple[int, int]]:
    """Offset and size of each field of a structure."""
    return {field: (one.offset, ffi.sizeof(one.type)) for field, one in ffi.typeof(f"struct gs_{name}").fields}


PAGE_FIELDS, SLOT_FIELDS, DEVICE_FIELDS, RING_FIELDS, EVENT_FIELDS = map(
    fields, ("usage", "slot", "slot_device", "trace_ring", "trace_event")
)


@contextlib.contextmanager
def page(hostile: Hostile) -> Iterator[tuple[int, mmap.mmap]]:
    assert hostile.directory is not None
    descriptor = os.open(hostile.directory / "usage", os.O_RDWR)
    try:
        with mmap.mmap(descriptor, BYTES) as mapped:  # refused while the file is shorter
            yield descriptor, mapped
    finally:
        os.close(descriptor)


def word(hostile: Hostile, size: int) -> bytes:
    now = time.monotonic_ns()
    values = (0, 1, 2, 4096, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    aimed = (now, now + 10**6, now + 10**9, now + 10**18, now - 10**9, 20 * 10**6, 10**15)
    value = hostile.random.choice((*values, *aimed, hostile.random.getrandbits(64), os.getpid()))
    return struct.pack("<Q", value)[:size] if size <= 8 else os.urandom(size)


def slot_index(hostile: Hostile) -> int:
    """Mostly one of the first slots, which are in use."""
    return hostile.random.choice((0, 0, 1, 2, 3, hostile.random.randrange(40), hostile.random.randrange(1024)))


def write_fields(hostile: Hostile, base: int, names: dict[str, tuple[int, int]]) -> None:
    with page(hostile) as (_, mapped):
        for name in hostile.random.sample(sorted(names), hostile.random.randint(1, len(names))):
            offset, size = names[name]
            mapped[base + offset : base + offset + size] = word(hostile, size)


def device_words(hostile: Hostile) -> None:
    """Falsifies what the interposer reports: times, memory, launches, waiting, drained, collectives, cut."""
    for _ in range(hostile.count(1, 20)):
        device = hostile.random.choice((0, 0, 0, hostile.random.randrange(16)))
        write_fields(hostile, SLOTS + slot_index(hostile) * SLOT + DEVICES + device * WORDS, DEVICE_FIELDS)


def every_slot(hostile: Hostile) -> None:
    """Writes the same lie to all slots, so that sums overflow."""
    offset, size = DEVICE_FIELDS[hostile.random.choice(sorted(DEVICE_FIELDS))]
    lie = word(hostile, size)
    with page(hostile) as (_, mapped):
        for slot in range(1024):
            at = SLOTS + slot * SLOT + DEVICES + offset
            mapped[at : at + size] = lie


def slot_headers(hostile: Hostile) -> None:
    names = {name: place for name, place in SLOT_FIELDS.items() if name not in ("device", "reserved")}
    for _ in range(hostile.count(1, 20)):
        write_fields(hostile, SLOTS + slot_index(hostile) * SLOT, names)


def page_header(hostile: Hostile) -> None:
    write_fields(hostile, 0, {name: PAGE_FIELDS[name] for name in ("magic", "version", "size", "nslots", "grant")})


def trace(hostile: Hostile) -> None:
    ring = TRACE + hostile.random.choice((0, 0, hostile.random.randrange(32))) * RING
    write_fields(hostile, ring, {name: RING_FIELDS[name] for name in ("count", "generation")})
    for _ in range(hostile.count(1, 20)):
        event = ring + RING_FIELDS["event"][0] + hostile.random.randrange(63) * ffi.sizeof("struct gs_trace_event")
        write_fields(hostile, event, EVENT_FIELDS)


def spray(hostile: Hostile) -> None:
    """Writes random bytes anywhere."""
    with page(hostile) as (_, mapped):
        for _ in range(hostile.count(1, 50)):
            data = hostile.random.randbytes(hostile.random.choice((1, 4, 8, 64, 2048)))
            at = hostile.random.choice((hostile.random.randrange(BYTES), hostile.random.randrange(8192)))
            at = min(at, BYTES - len(data))
            mapped[at : at + len(data)] = data


def zeros(hostile: Hostile) -> None:
    with page(hostile) as (_, mapped):
        mapped[:] = bytes(BYTES)


def flicker(hostile: Hostile) -> None:
    """Flips a word between two values while the daemon reads."""
    name = hostile.random.choice(sorted(DEVICE_FIELDS))
    offset, size = DEVICE_FIELDS[name]
    at, lies = SLOTS + DEVICES + offset, [word(hostile, size), word(hostile, size)]
    with page(hostile) as (_, mapped):
        for turn in range(hostile.count(1000, 5000)):
            mapped[at : at + size] = lies[turn % 2]


def longer(hostile: Hostile) -> None:
    """Extends the file. If that fills the file system, only this grant suffers."""
    with page(hostile) as (descriptor, _):
        os.ftruncate(descriptor, hostile.random.choice((BYTES + 1, 2 * BYTES, 1 << 30, 1 << 40)))


def fill(hostile: Hostile) -> None:
    """Allocates 16 MiB times the scale behind the page, then truncates again."""
    with page(hostile) as (descriptor, _):
        try:
            os.posix_fallocate(descriptor, BYTES, (16 << 20) * hostile.scale)
        finally:
            os.ftruncate(descriptor, BYTES)


def holes(hostile: Hostile) -> None:
    """Punches holes into the file; they read as zeros."""
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    with page(hostile) as (descriptor, _):
        at = hostile.random.randrange(BYTES // 4096) * 4096
        libc.fallocate64(descriptor, 3, *map(__import__("ctypes").c_int64, (at, 4096 * hostile.count(1, 16))))


def locks(hostile: Hostile) -> None:
    assert hostile.directory is not None
    descriptor = hostile.hold(os.open(hostile.directory / "usage", os.O_RDWR))
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, 1024, 1)  # F_SETLEASE, F_WRLCK: the next open waits for the holder


def modes(hostile: Hostile) -> None:
    assert hostile.directory is not None
    path = hostile.directory / "usage"
    os.chmod(path, hostile.random.choice((0, 0o444, 0o600, 0o777, 0o4777)))
    with contextlib.suppress(OSError):
        os.setxattr(path, "user.a", bytes(60_000))
    os.chmod(path, 0o600)


def shorter(hostile: Hostile) -> None:
    """Truncates the file, which ends this grant and no other."""
    with page(hostile) as (descriptor, _):
        os.ftruncate(descriptor, hostile.random.choice((0, 1, 4095, 4096, BYTES // 2, BYTES - 4096, BYTES - 1)))


MENU: dict[str, Callable[[Hostile], None]] = {
    attack.__name__: attack
    for attack in (
        device_words, every_slot, slot_headers, page_header, trace, spray, zeros, flicker, longer, fill, holes, locks,
        modes, shorter,
    )
}  # fmt: skip
