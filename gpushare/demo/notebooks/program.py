"""A notebook's program, or a trainer's: variables on the device whose every byte it knows, and kernels that change
them. Python's standard library and the driver are all that it uses.

program.py DIRECTORY    # of spin.ptx and words.ptx

It reads commands from stdin, one per line, and answers each with one JSON object:

fill SIZE SEED    allocates so many bytes of variables, and fills them with bytes that follow from the seed
cell MASK NS      flips the bits of MASK in each 8-byte word of all variables, by kernels, then computes for NS;
                  `wait_ns` is from the first launch until that kernel had run
check             copies all variables back; `wrong` is how many of them are not what they should be
train NS          steps follow until `rest`; each changes one variable and computes for NS

Any error of the driver ends it with status 1, out of memory included.
"""

import ctypes
import functools
import json
import os
import random
import select
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

PIECE = 16 << 20
"""Size of a variable, in bytes."""
_SHIFT = 4096
_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def say(**facts: Any) -> None:
    """Answers."""
    print(json.dumps(facts), flush=True)


class Driver:
    """The CUDA driver. A call that fails ends the program."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, function: str, *arguments: Any) -> None:
        """Calls a function of it."""
        if code := self._library[function](*arguments):
            self._fail(function, code)

    def _fail(self, function: str, code: int) -> NoReturn:
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        say(event="error", call=function, error=code, name=(name.value or b"an unknown error").decode())
        sys.exit(1)

    def loaded(self, text: bytes, function: str) -> ctypes.c_void_p:
        """Returns a kernel of a PTX text."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), text + b"\0")
        self("cuModuleGetFunction", ctypes.byref(kernel), module, function.encode())
        return kernel


class Variables:
    """Device memory in pieces of PIECE bytes, and what each should hold: a part of `_bytes`, each 8-byte word xor the
    piece's mask."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._bytes = b""
        self._back = bytearray(PIECE)
        self.addresses: list[ctypes.c_uint64] = []
        self.masks: list[int] = []

    def fill(self, size: int, seed: int) -> None:
        """Allocates `size` bytes and fills them."""
        count = size // PIECE
        self._bytes = random.Random(seed).randbytes(PIECE + count * _SHIFT)  # noqa: S311
        for i in range(count):
            address = ctypes.c_uint64()
            self._driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(PIECE))
            self._driver("cuMemcpyHtoD_v2", address, self._bytes[i * _SHIFT :][:PIECE], ctypes.c_size_t(PIECE))
            self.addresses.append(address)
            self.masks.append(0)

    def wrong(self) -> int:
        """Returns how many pieces are not what they should be: every byte is compared."""
        back = (ctypes.c_char * PIECE).from_buffer(self._back)
        found = 0
        for i, (address, mask) in enumerate(zip(self.addresses, self.masks, strict=True)):
            self._driver("cuMemcpyDtoH_v2", back, address, ctypes.c_size_t(PIECE))
            found += self._back != memoryview(self._masked(mask))[i * _SHIFT :][:PIECE]
        return found

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _masked(self, mask: int) -> bytes:
        size = len(self._bytes)
        flips = int.from_bytes(mask.to_bytes(8, "little") * (size // 8), "little")
        return (int.from_bytes(self._bytes, "little") ^ flips).to_bytes(size, "little")


class Program:
    """`directory`: of the PTX texts."""

    def __init__(self, directory: Path) -> None:
        self._driver = Driver()
        device, context, self._stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._driver("cuInit", 0)
        self._driver("cuDeviceGet", ctypes.byref(device), 0)
        self._driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._driver("cuCtxSetCurrent", context)
        self._driver("cuStreamCreate", ctypes.byref(self._stream), 1)
        self._spin = self._driver.loaded((directory / "spin.ptx").read_bytes(), "spin_ns")
        self._touch = self._driver.loaded((directory / "words.ptx").read_bytes(), "touch_words")
        self._variables = Variables(self._driver)
        self._training_ns = self._steps = 0
        say(event="ready", pid=os.getpid())

    def serve(self) -> None:
        """Obeys until stdin ends."""
        pending = b""
        while True:
            if self._training_ns and not select.select([0], [], [], 0)[0]:
                self._step()
                continue
            if not (read := os.read(0, 4096)):
                return
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                self._obey(line.decode().split())

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["fill", size, seed]:
                self._variables.fill(int(size), int(seed))
                say(event="fill", bytes=len(self._variables.addresses) * PIECE)
            case ["cell", mask, ns]:
                self._cell(int(mask), int(ns))
            case ["check"]:
                say(event="check", wrong=self._variables.wrong(), of=len(self._variables.addresses))
            case ["train", ns]:
                self._training_ns = int(ns)
                say(event="train")
            case ["rest"]:
                self._training_ns = 0
                say(event="rest", steps=self._steps)
            case _:
                say(event="unknown")

    def _cell(self, mask: int, ns: int) -> None:
        began = time.monotonic_ns()
        self._change(0, mask)
        self._wait()
        waited = time.monotonic_ns() - began
        for i in range(1, len(self._variables.addresses)):
            self._change(i, mask)
        self._compute(ns)
        self._wait()
        say(event="cell", wait_ns=waited)

    def _step(self) -> None:
        """One variable after the other, each round with a mask of its own."""
        rounds, i = divmod(self._steps, len(self._variables.addresses))
        self._change(i, (rounds + 1) * _MULTIPLIER & _WORD)
        self._compute(self._training_ns)
        self._wait()
        self._steps += 1

    def _change(self, i: int, mask: int) -> None:
        self._launch(self._touch, 256, self._variables.addresses[i], ctypes.c_uint64(PIECE), ctypes.c_uint64(mask))
        self._variables.masks[i] ^= mask

    def _compute(self, ns: int) -> None:
        self._launch(self._spin, 1, ctypes.c_uint64(ns))

    def _launch(self, kernel: ctypes.c_void_p, threads: int, *arguments: Any) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._driver("cuLaunchKernel", kernel, 1, 1, 1, threads, 1, 1, 0, self._stream, pointers, None)

    def _wait(self) -> None:
        self._driver("cuStreamSynchronize", self._stream)


if __name__ == "__main__":
    Program(Path(sys.argv[1])).serve()
