"""Asks the driver about memory of cuMemAlloc, and asks it for what such memory does not do. One command per line of
stdin; each is answered with a line of JSON: what was asked, and the result with what was stored.

Values that differ between runs are named: addresses by their distance from their allocation, numbers by the allocation
that had them first."""

import ctypes
import json
import sys
from dataclasses import dataclass
from typing import Any

from driver import (
    DEVICE,
    GIB,
    GRANULE,
    HOST,
    MIB,
    PAGE,
    READ_WRITE,
    Access,
    at,
    call,
    context,
    location,
    made,
    memory,
    number,
    ok,
    physical,
)

Answers = dict[str, Any]
ATTRIBUTES = {
    0: "none",
    1: "CONTEXT",
    2: "MEMORY_TYPE",
    3: "DEVICE_POINTER",
    4: "HOST_POINTER",
    5: "P2P_TOKENS",
    6: "SYNC_MEMOPS",
    7: "BUFFER_ID",
    8: "IS_MANAGED",
    9: "DEVICE_ORDINAL",
    10: "IS_LEGACY_CUDA_IPC_CAPABLE",
    11: "RANGE_START_ADDR",
    12: "RANGE_SIZE",
    13: "MAPPED",
    14: "ALLOWED_HANDLE_TYPES",
    15: "IS_GPU_DIRECT_RDMA_CAPABLE",
    16: "ACCESS_FLAGS",
    17: "MEMPOOL_HANDLE",
    18: "MAPPING_SIZE",
    19: "MAPPING_BASE_ADDR",
    20: "MEMORY_BLOCK_ID",
    21: "IS_HW_DECOMPRESS_CAPABLE",
    99: "unknown",
}
ADDRESSES = {3, 4, 11, 19}
NUMBERS = {7, 20}
TOGETHER = [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]


@dataclass(frozen=True)
class Memory:
    name: str
    address: int
    bytes: int

    def places(self) -> dict[str, int]:
        """Addresses inside. Past the end of the last page asked for may be other memory."""
        places = {"first": 0, "second": 1, "middle": self.bytes // 2, "last": self.bytes - 1}
        if self.bytes % PAGE:
            places["past"] = self.bytes
        return {where: self.address + offset for where, offset in places.items()}


class Known:
    """Names of values."""

    def __init__(self, contexts: dict[int, str]) -> None:
        self.contexts, self.owners = contexts, dict[tuple[int, int], str]()

    def value(self, of: Memory, attribute: int, value: int) -> Any:
        if attribute == 1:
            return self.contexts.get(value, value and "another context")
        if attribute in ADDRESSES and 0 <= value - of.address <= of.bytes:
            return f"+{value - of.address}"
        if attribute in NUMBERS and value:
            return "of " + self.owners.setdefault((attribute, value), of.name)
        return value


def allocated(large: bool) -> list[Memory]:
    """One of each kind; the smallest is not movable in any grant. large: one that takes two handles, too."""
    sizes = {"64 KiB": 64 << 10, "1 MiB": MIB, "1 MiB + 1": MIB + 1, "2 MiB": 2 * MIB, "3 MiB + 7": 3 * MIB + 7}
    if large:
        sizes["1 GiB + 1"] = GIB + 1
    all = [Memory(name, memory(bytes), bytes) for name, bytes in sizes.items()]
    for name, width, height in (("rows of 1000", 1000, 3000), ("rows of 4096", 4096, 512)):
        address, pitch = number(), number()
        ok("cuMemAllocPitch_v2", at(address), at(pitch), width, height, 4)
        all.append(Memory(name, address.value, pitch.value * height))
    return all


def one_range(of: Memory, address: int) -> Answers:
    base, bytes = number(), number()
    result = call("cuMemGetAddressRange_v2", at(base), at(bytes), address)
    found = [result, result or base.value - of.address, result or bytes.value]
    only = [
        call("cuMemGetAddressRange_v2", at(base), 0, address),
        call("cuMemGetAddressRange_v2", 0, at(bytes), address),
    ]
    return {"cuMemGetAddressRange": found, "cuMemGetAddressRange of one": only}


def attributes(known: Known, of: Memory, address: int) -> Answers:
    answers: Answers = {}
    for which, name in ATTRIBUTES.items():
        place = (ctypes.c_uint64 * 2)()
        result = call("cuPointerGetAttribute", place, which, address)
        answers[f"cuPointerGetAttribute {name}"] = [result, result or known.value(of, which, place[0])]
    answers["cuPointerGetAttribute of nothing"] = call("cuPointerGetAttribute", 0, 1, address)
    places = [number() for _ in TOGETHER]
    pointers = (ctypes.c_void_p * len(places))(*(ctypes.addressof(place) for place in places))
    which_ones = (ctypes.c_int * len(places))(*TOGETHER)
    result = call("cuPointerGetAttributes", len(places), which_ones, pointers, address)
    for which, place in zip(TOGETHER, places, strict=True):
        answers[f"cuPointerGetAttributes {ATTRIBUTES[which]}"] = [result, known.value(of, which, place.value)]
    answers["cuPointerGetAttributes of nothing"] = call("cuPointerGetAttributes", 0, which_ones, pointers, address)
    return answers


def requests(of: Memory, address: int, mine: int) -> Answers:
    """Asks for what memory of cuMemAlloc is not for. mine: a handle of memory."""
    place, rights = (ctypes.c_uint64 * 16)(), Access(DEVICE, 0, READ_WRITE)
    rest = of.address + of.bytes - address
    pages = (rest + GRANULE - 1) // GRANULE * GRANULE
    here, pointer = location(DEVICE), ctypes.c_void_p(address)
    answers: Answers = {
        "cuMemGetAccess": call("cuMemGetAccess", place, at(number(here)), address),
        "cuMemSetAccess": call("cuMemSetAccess", address, pages, at(rights), 1),
        "cuMemSetAccess of nothing": call("cuMemSetAccess", address, 0, at(rights), 1),
        "cuMemRetainAllocationHandle": call("cuMemRetainAllocationHandle", place, pointer),
        "cuMemUnmap": call("cuMemUnmap", address, pages),
        "cuMemUnmap of a part": call("cuMemUnmap", address, GRANULE),
        "cuMemUnmap beyond": call("cuMemUnmap", address, 4 * GIB),
        "cuMemMap": call("cuMemMap", address, GRANULE, 0, mine, 0),
        "cuMemMap before": call("cuMemMap", address - GRANULE, 2 * GRANULE, 0, mine, 0),
        "cuMemAddressFree": call("cuMemAddressFree", address, pages),
        "cuMemRangeGetAttribute": call("cuMemRangeGetAttribute", place, 4, 1, address, rest),
        "cuStreamAttachMemAsync": call("cuStreamAttachMemAsync", 0, address, 0, 1),
        "cuMemHostRegister": call("cuMemHostRegister_v2", address // PAGE * PAGE, PAGE, 0),
        "cuMemHostUnregister": call("cuMemHostUnregister", address),
        "cuMemHostGetDevicePointer": call("cuMemHostGetDevicePointer_v2", place, address, 0),
        "cuMemHostGetFlags": call("cuMemHostGetFlags", place, address),
        "cuMemFreeHost": call("cuMemFreeHost", address),
        "cuIpcCloseMemHandle": call("cuIpcCloseMemHandle", address),
        "cuMemPoolExportPointer": call("cuMemPoolExportPointer", place, address),
        "cuMulticastBindAddr": call("cuMulticastBindAddr", mine, 0, address, GRANULE, 0),
        "cuLogicalEndpointBindAddr": call("cuLogicalEndpointBindAddr", 0, 0, 0, address, GRANULE, 0),
        "cuIpcGetMemHandle": call("cuIpcGetMemHandle", place, address),
        "cuIpcGetMemHandle of nothing": call("cuIpcGetMemHandle", 0, address),
        "cuPointerSetAttribute of nothing": call("cuPointerSetAttribute", 0, 6, address),
        "cuPointerSetAttribute of another": call("cuPointerSetAttribute", place, 7, address),
    }
    for advice in range(8):
        answers[f"cuMemAdvise {advice}"] = call("cuMemAdvise", address, rest, advice, 0)
        answers[f"cuMemAdvise_v2 {advice}"] = call("cuMemAdvise_v2", address, rest, advice, here)
        answers[f"cuMemAdvise {advice} host"] = call("cuMemAdvise_v2", address, rest, advice, location(HOST))
    graph, node = made("cuGraphCreate", 0), number()
    answers["cuGraphAddMemFreeNode"] = call("cuGraphAddMemFreeNode", at(node), graph, 0, 0, address)
    ok("cuGraphDestroy", graph)
    if address != of.address:
        answers["cuMemFree"] = call("cuMemFree_v2", address)
        answers["cuMemFreeAsync"] = call("cuMemFreeAsync", address, 0)
    return answers


class Program:
    def __init__(self) -> None:
        self.context = context()
        self.mine = physical()
        self.free = self._free()
        self.memory = allocated(sys.argv[1] == "large")
        self.known = Known({self.context: "its context"})

    def _free(self) -> int:
        free, total = number(), number()
        ok("cuMemGetInfo_v2", at(free), at(total))
        return free.value

    def ask(self) -> Answers:
        """Questions and refusals: nothing changes."""
        answers: Answers = {}
        for each in self.memory:
            for where, address in each.places().items():
                found = one_range(each, address) | attributes(self.known, each, address)
                if where in ("first", "middle"):
                    found |= requests(each, address, self.mine)
                answers |= {f"{each.name}, {where}: {what}": answer for what, answer in found.items()}
        answers["memory taken"] = self.free - self._free()
        return answers

    def synchronous(self) -> Answers:
        """CU_POINTER_ATTRIBUTE_SYNC_MEMOPS"""
        answers: Answers = {}
        for each in self.memory:
            for value in (1, 0, 1):
                place = number()
                results = [
                    call("cuPointerSetAttribute", at(number(value)), 6, each.address + 5),
                    call("cuPointerGetAttribute", at(place), 6, each.address),
                ]
                answers.setdefault(f"{each.name}: set", []).append([*results, place.value])
        return answers

    def end(self) -> Answers:
        """Every kind of memory is freed, and then unknown."""
        answers: Answers = {}
        for each in self.memory:
            answers[f"{each.name}: cuMemFree"] = call("cuMemFree_v2", each.address)
            answers[f"{each.name}: again"] = call("cuMemFree_v2", each.address)
            found = one_range(each, each.address) | attributes(self.known, each, each.address)
            answers |= {f"{each.name}, freed: {what}": answer for what, answer in found.items()}
        answers["memory taken"] = self.free - self._free()
        return answers

    def hold(self, function: str) -> None:
        """The next call of it, which is not this thread's, stops before it has an effect."""
        from memory.holds import BEFORE, Hold

        self.stop = Hold(function, BEFORE)

    def held(self) -> int:
        return self.stop.stopped(20)

    def release(self) -> bool:
        return self.stop.release()


def main() -> None:
    program = Program()
    for line in sys.stdin:
        command, *arguments = line.split()
        print(json.dumps(getattr(program, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
