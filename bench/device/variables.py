"""A program with variables in device memory, which kernels change and which it can check.

variables.py SPIN_PTX WORDS_PTX SEED BYTES...

Has an allocation of each so many bytes and fills it, then prints {"bytes": all of them}, and answers each line of stdin
with a line of JSON:

cell NS    computes so long, and changes some of its memory: {"wait_ns": what its first kernel took beyond its length}
train NS   a thread submits kernels of this length, one after the other, and changes some of its memory: {}
work S NS  the same for S seconds of device time: {"began_ns", "ended_ns"}, monotonic, once they are over
steps      how many kernels of the thread have ended: {"steps"}
stop       the thread ends: {"steps"}
check      compares every word with what it has to be: {"wrong": blocks of BLOCK bytes that are not right}

The words of a block are equal, and are what all kernels that changed the block made of zero: a launch whose kernel ran
elsewhere, twice or not at all leaves others.
"""

import ctypes
import json
import random
import struct
import sys
import threading
import time
from pathlib import Path

BLOCK = 256 << 10
FIRST_NS = 2_000_000
AT_ONCE = 4
"""Kernels between two events of a thread that trains; as many again are in flight."""
CHANGED_EACH = 16
"""Of a training thread's kernels, one after so many changes a block."""


class Driver:
    """Calls by name."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise SystemExit(f"{name} failed with {code}")

    def made(self, name: str, *arguments: object, kind: type = ctypes.c_void_p) -> object:
        """What the call stores at its first argument."""
        found = kind()
        self(name, ctypes.byref(found), *arguments)
        return found


class Variables:
    """The context, which is current to the thread that made it, its kernels and its memory."""

    def __init__(self, spin: str, words: str, seed: int, sizes: list[int]) -> None:
        self.cuda, self.chance = Driver(), random.Random(seed)
        self.cuda("cuInit", 0)
        device = self.cuda.made("cuDeviceGet", 0, kind=ctypes.c_int)
        self.context = self.cuda.made("cuDevicePrimaryCtxRetain", device)
        self.cuda("cuCtxSetCurrent", self.context)
        self._spin, self._touch = self._kernel(spin, b"spin_ns"), self._kernel(words, b"touch_words")
        self.stream = self.cuda.made("cuStreamCreate", 1)
        self.blocks = [block for size in sizes for block in self._allocated(size)]
        self.values = [0] * len(self.blocks)
        for block in range(len(self.blocks)):
            self.change(block)
        self.cuda("cuCtxSynchronize")

    def _kernel(self, path: str, name: bytes) -> object:
        module = self.cuda.made("cuModuleLoadData", Path(path).read_bytes() + b"\0")
        return self.cuda.made("cuModuleGetFunction", module, name)

    def _allocated(self, size: int) -> list[tuple[int, int]]:
        """Address and length of each of its blocks."""
        address = int(self.cuda.made("cuMemAlloc_v2", ctypes.c_size_t(size), kind=ctypes.c_uint64).value)
        self.cuda("cuMemsetD8_v2", ctypes.c_uint64(address), 0, ctypes.c_size_t(size))
        return [(address + at, min(BLOCK, size - at)) for at in range(0, size, BLOCK)]

    def _launch(self, kernel: object, *values: int) -> None:
        given = [ctypes.c_uint64(value) for value in values]
        arguments = (ctypes.c_void_p * len(given))(*(ctypes.addressof(one) for one in given))
        self.cuda("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, arguments, None)

    def spin(self, ns: int) -> None:
        self._launch(self._spin, ns)

    def change(self, block: int) -> None:
        mask = self.chance.getrandbits(64)
        self._launch(self._touch, *self.blocks[block], mask)
        self.values[block] ^= mask

    def change_some(self) -> None:
        self.change(self.chance.randrange(len(self.blocks)))

    def wait(self) -> None:
        self.cuda("cuStreamSynchronize", self.stream)

    def wrong(self) -> int:
        """How many blocks are not what they have to be."""
        self.wait()
        back, found = ctypes.create_string_buffer(BLOCK), 0
        for (address, length), value in zip(self.blocks, self.values, strict=True):
            self.cuda("cuMemcpyDtoH_v2", back, ctypes.c_uint64(address), ctypes.c_size_t(length))
            found += back.raw[:length] != struct.pack("<Q", value) * (length // 8)
        return found


class Training:
    """A thread that submits kernels, until it is told to stop or so many have ended."""

    def __init__(self, variables: Variables, kernel_ns: int, most: int = 1 << 62) -> None:
        self._own, self._ns, self._most = variables, kernel_ns, most
        self._over = threading.Event()
        self.steps = 0
        self.began_ns = self.ended_ns = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        cuda = self._own.cuda
        cuda("cuCtxSetCurrent", self._own.context)
        marks = [cuda.made("cuEventCreate", 2) for _ in range(2)]
        self.began_ns, batches = time.monotonic_ns(), 0
        while not self._over.is_set() and self.steps < self._most:
            for _ in range(AT_ONCE):
                self._own.spin(self._ns)
            if batches % (CHANGED_EACH // AT_ONCE) == 0:
                self._own.change_some()
            cuda("cuEventRecord", marks[batches % 2], self._own.stream)
            batches += 1
            if batches > 1:
                cuda("cuEventSynchronize", marks[batches % 2])
                self.steps += AT_ONCE
        self._own.wait()
        self.steps = AT_ONCE * batches
        self.ended_ns = time.monotonic_ns()


def cell(own: Variables, ns: int) -> dict[str, int]:
    began = time.monotonic_ns()
    own.spin(FIRST_NS)
    own.wait()
    waited = time.monotonic_ns() - began - FIRST_NS
    own.change_some()
    for _ in range(ns // FIRST_NS - 1):
        own.spin(FIRST_NS)
    own.change_some()
    own.wait()
    return {"wait_ns": waited}


def main() -> None:
    spin, words, seed, *sizes = sys.argv[1:]
    own = Variables(spin, words, int(seed), [int(size) for size in sizes])
    print(json.dumps({"bytes": sum(length for _, length in own.blocks)}), flush=True)
    training: Training | None = None
    for line in sys.stdin:
        command, *numbers = line.split()
        answer: dict[str, int] = {}
        if command == "cell":
            answer = cell(own, int(numbers[0]))
        elif command == "train":
            training = Training(own, int(numbers[0]))
        elif command == "work":
            kernel_ns = int(numbers[1])
            work = Training(own, kernel_ns, int(float(numbers[0]) * 1e9 / kernel_ns))
            work.join()
            answer = {"began_ns": work.began_ns, "ended_ns": work.ended_ns}
        elif command == "check":
            answer = {"wrong": own.wrong()}
        elif training is not None:
            if command == "stop":
                training.stop()
            answer = {"steps": training.steps}
        print(json.dumps(answer), flush=True)


main()
