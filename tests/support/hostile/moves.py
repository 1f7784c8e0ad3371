"""Attacks on the moving of memory: by a tenant that suspends its own grant, and lies about what has become of that."""

import contextlib
import socket
import struct
from collections.abc import Callable

from hostile.joins import connected, join
from hostile.page import DEVICE_FIELDS, DEVICES, SLOT, SLOTS, page
from hostile.program import Hostile
from pages.joinmessages import request, segment_request

from gpushare._native import ffi, lib
from gpushare.client import Client
from gpushare.errors import GpushareError

_WORD = ffi.offsetof("struct gs_limits", "device") + ffi.offsetof("struct gs_device_limits", "residency")
_SIZES = (0, 1, 1 << 21, 1 << 29, 1 << 30, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def _word(hostile: Hostile) -> int:
    assert hostile.directory is not None
    with open(hostile.directory / "limits", "rb") as limits:
        limits.seek(_WORD)
        return int(struct.unpack("<I", limits.read(4))[0])


def _says(hostile: Hostile, **words: int) -> None:
    """Writes words into its own slot, or the first one."""
    slot = hostile.joined[0] if hostile.joined else 0
    with page(hostile) as (_, mapped):
        for name, value in words.items():
            offset, size = DEVICE_FIELDS[name]
            at = SLOTS + slot * SLOT + DEVICES + offset
            mapped[at : at + size] = struct.pack("<Q", value & ((1 << 64) - 1))[:size]


def _looks(hostile: Hostile, count: int) -> None:
    slot, generation = hostile.joined or (0, 0)
    for _ in range(count):
        own = hostile.random.random() < 0.8
        at = slot if own else hostile.random.choice((0, 1, 1023, 1024, 0xFFFF, (1 << 32) - 1))
        connected(hostile).send(request(slot=at, generation=generation, magic=lib.GS_LOOK_MAGIC))


def suspends(hostile: Hostile) -> None:
    """Says that it has memory, has it suspended, resumed, suspended again, while it says anything about it."""
    assert hostile.directory is not None
    client, grant = Client(hostile.socket_path), hostile.directory.parent.name
    with contextlib.suppress(OSError):
        join(hostile)
    for _ in range(hostile.count(2, 6)):
        pick = hostile.random.choice
        size = pick(_SIZES)
        _says(hostile, memory_bytes=size, movable_bytes=pick((size, *_SIZES)), hosted_bytes=pick(_SIZES))
        with contextlib.suppress(GpushareError):
            client.suspend(grant, hold=pick((True, False)))
        word = pick((_word(hostile), _word(hostile), hostile.random.getrandbits(32)))
        _says(hostile, residency=word, move=pick((0, 0, 1, 3, 5, 77)), hosted_bytes=pick((size, *_SIZES)))
        with contextlib.suppress(socket.timeout, OSError):
            _looks(hostile, hostile.count(1, 20))
        _says(hostile, flags=pick((0, lib.GS_SLOT_WANTS)))
        if pick((True, False)):
            with contextlib.suppress(GpushareError):
                client.resume(grant)


def looks(hostile: Hostile) -> None:
    with contextlib.suppress(OSError):
        _looks(hostile, hostile.count(10, 200))


def flaps(hostile: Hostile) -> None:
    """Wants its memory and does not, over and over, while it is away, on its way, or here."""
    with contextlib.suppress(OSError):
        join(hostile)
    with contextlib.suppress(OSError):
        for number in range(hostile.count(20, 200)):
            _says(hostile, flags=lib.GS_SLOT_WANTS * (number % 2), residency=_word(hostile), move=0)
            _looks(hostile, 1)


def segments(hostile: Hostile) -> None:
    """Asks for segments of the host pool that it does not take."""
    slot, generation = hostile.joined or (0, 0)
    with contextlib.suppress(OSError):
        for _ in range(hostile.count(10, 100)):
            asked = segment_request(hostile.random.choice(_SIZES), slot, generation, hostile.random.choice((0, 0, 1)))
            connected(hostile).send(asked)


def yields(hostile: Hostile) -> None:
    """Says that it is idle, is to move, is to come back, for no program of its own."""
    with contextlib.suppress(OSError):
        for _ in range(hostile.count(10, 200)):
            what = hostile.random.choice((0, 1, 2, 3, hostile.random.getrandbits(32)))
            connected(hostile).send(request(slot=what, magic=lib.GS_YIELD_MAGIC))


MENU: dict[str, Callable[[Hostile], None]] = {
    attack.__name__: attack for attack in (suspends, looks, flaps, segments, yields)
}
