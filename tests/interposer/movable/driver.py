"""Calls of the driver by their exported names, for programs of this folder. Arguments are numbers of at most 64 bits,
or places of ctypes, as the callee expects them."""

import ctypes
from typing import Any

LIBRARY = ctypes.CDLL("libcuda.so.1")
MIB, GIB, PAGE = 1 << 20, 1 << 30, 4096
GRANULE = 2 * MIB
DEVICE, HOST = 1, 2  # CU_MEM_LOCATION_TYPE_DEVICE, _HOST
READ_WRITE = 3
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # modes of captures


def call(name: str, *arguments: Any) -> int:
    """The function's result."""
    return int(
        getattr(LIBRARY, name)(*(ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments))
    )


def ok(name: str, *arguments: Any) -> None:
    result = call(name, *arguments)
    assert result == 0, f"{name}: {result}"


def number(value: int = 0) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def at(place: Any) -> Any:
    return ctypes.byref(place)


def made(name: str, *arguments: Any) -> int:
    """What a function stores at its first parameter."""
    place = number()
    ok(name, at(place), *arguments)
    return place.value


def location(kind: int, number: int = 0) -> int:
    """A CUmemLocation as it is passed by value."""
    return kind | number << 32


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of a device."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", ctypes.c_byte * 64),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


def physical(bytes: int = GRANULE) -> int:
    """A handle of physical memory."""
    return made("cuMemCreate", bytes, at(Properties(1, 0, DEVICE, 0)), 0)


def memory(bytes: int) -> int:
    return made("cuMemAlloc_v2", bytes)


def context() -> int:
    """A new context, which is current."""
    ok("cuInit", 0)
    return made("cuCtxCreate_v2", 0, 0)
