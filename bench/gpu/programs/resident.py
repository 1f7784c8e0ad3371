"""Memory that gpushare may move, on command: one a line on stdin, one JSON object each on stdout.

alloc COUNT BYTES  allocates, and gives each allocation words of its own
copy out|in        copies all of it to pinned memory of the program's own, or back, and says how long that took
touch              copies eight bytes of it: where it is away, the call waits for it
same               whether all words are what they were
pairs COUNT BYTES  median of an allocation and its free
calls COUNT BYTES  medians of what backs an address with memory: create, map, access, unmap
pin BYTES          how long a memory file takes to fill and to register
"""

import ctypes
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")
HOST_PORTABLE, NON_BLOCKING, READ_WRITE = 1, 1, 3
PLACE_DEVICE = PINNED = 1
SPREAD = 16
"""Words of an allocation that `same` looks at."""

Address = ctypes.c_uint64


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("place", ctypes.c_int),
        ("device", ctypes.c_int),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = (("place", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int))


def must(result: int, what: str) -> None:
    if result:
        print(json.dumps({"event": "error", "name": f"{what}: CUDA error {result}"}), flush=True)
        sys.exit(1)


def call(name: str, *arguments: Any) -> None:
    must(getattr(cuda, name)(*arguments), name)


def timed(act: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - began


class Program:
    def __init__(self) -> None:
        context = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)
        self.blocks: list[tuple[int, int, int]] = []
        self.pinned: int | None = None

    def alloc(self, count: int, size: int) -> dict[str, Any]:
        for _ in range(count):
            address, word = Address(), 0x1000001 * (len(self.blocks) + 1) & 0xFFFFFFFF
            call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            call("cuMemsetD32_v2", address, ctypes.c_uint(word), ctypes.c_size_t(size // 4))
            self.blocks.append((address.value, size, word))
        call("cuCtxSynchronize")
        return {"bytes": sum(size for _, size, _ in self.blocks)}

    def copy(self, way: str) -> dict[str, Any]:
        if self.pinned is None:
            buffer = ctypes.c_void_p()
            size = sum(size for _, size, _ in self.blocks)
            call("cuMemHostAlloc", ctypes.byref(buffer), ctypes.c_size_t(size), HOST_PORTABLE)
            self.pinned = buffer.value or 0
        return {"ns": timed(lambda: self._all(way))}

    def _all(self, way: str) -> None:
        at = self.pinned or 0
        for address, size, _ in self.blocks:
            device, host, count = Address(address), ctypes.c_void_p(at), ctypes.c_size_t(size)
            if way == "out":
                call("cuMemcpyDtoHAsync_v2", host, device, count, self.stream)
            else:
                call("cuMemcpyHtoDAsync_v2", device, host, count, self.stream)
            at += size
        call("cuStreamSynchronize", self.stream)

    def touch(self) -> dict[str, Any]:
        word = ctypes.c_uint64()
        return {"ns": timed(lambda: call("cuMemcpyDtoH_v2", ctypes.byref(word), Address(self.blocks[0][0]), 8))}

    def same(self) -> dict[str, Any]:
        found, wrong = ctypes.c_uint32(), 0
        for address, size, word in self.blocks:
            for part in range(SPREAD):
                at = address + (size - 4) * part // (SPREAD - 1) // 4 * 4
                call("cuMemcpyDtoH_v2", ctypes.byref(found), Address(at), ctypes.c_size_t(4))
                wrong += found.value != word
        return {"words": SPREAD * len(self.blocks), "wrong": wrong}

    def pairs(self, count: int, size: int) -> dict[str, Any]:
        def pair() -> None:
            address = Address()
            call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            call("cuMemFree_v2", address)

        return {"ns": statistics.median(timed(pair) for _ in range(count))}

    def calls(self, count: int, size: int) -> dict[str, Any]:
        properties = Properties(type=PINNED, place=PLACE_DEVICE)
        access = Access(PLACE_DEVICE, 0, READ_WRITE)
        base, whole, each = Address(), ctypes.c_size_t(size), ctypes.byref
        call("cuMemAddressReserve", each(base), ctypes.c_size_t(size * count), ctypes.c_size_t(0), Address(0),
             ctypes.c_uint64(0))  # fmt: skip
        took: dict[str, list[int]] = {"create": [], "map": [], "access": [], "unmap": []}
        zero, places = ctypes.c_uint64(0), [Address(base.value + size * i) for i in range(count)]
        for at in places:
            handle = ctypes.c_uint64()
            steps: dict[str, Callable[[], None]] = {
                "create": lambda handle=handle: call("cuMemCreate", each(handle), whole, each(properties), zero),
                "map": lambda handle=handle, at=at: call("cuMemMap", at, whole, ctypes.c_size_t(0), handle, zero),
                "access": lambda at=at: call("cuMemSetAccess", at, whole, each(access), ctypes.c_size_t(1)),
            }
            for name, step in steps.items():
                took[name].append(timed(step))
            call("cuMemRelease", handle)
        for at in places:
            took["unmap"].append(timed(lambda at=at: call("cuMemUnmap", at, whole)))
        call("cuMemAddressFree", base, ctypes.c_size_t(size * count))
        return {name: statistics.median(found) for name, found in took.items()}

    def pin(self, size: int) -> dict[str, Any]:
        file = os.memfd_create("resident")
        filled = timed(lambda: os.posix_fallocate(file, 0, size))
        mapped = mmap.mmap(file, size)
        os.close(file)
        at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
        registered = timed(lambda: call("cuMemHostRegister_v2", at, ctypes.c_size_t(size), HOST_PORTABLE))
        call("cuMemHostUnregister", at)
        return {"fill_ns": filled, "register_ns": registered}


def main() -> None:
    program = Program()
    print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "quit":
            return
        answer = getattr(program, verb)(*(int(word) if word.isdigit() else word for word in rest))
        print(json.dumps({"event": verb, **answer}), flush=True)


if __name__ == "__main__":
    main()
