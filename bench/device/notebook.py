"""A notebook-like program: now and then a cell of 20 ms of device time, and nothing in between.

notebook.py PTX SECONDS SEED [PERIOD_MS [KERNELS [KERNEL_NS]]]

One cell per period (default 1000 ms: 2 % of the device) at a random moment of it; shorter ones are like requests to a
server. Prints {"event": "ready"}, waits for a line, then works and prints {"waits_ns": [...], "cells_ns": [...]}: for
each cell, the time that its first kernel took beyond its length, and the time of the whole cell.
"""

import ctypes
import json
import random
import sys
import time
from pathlib import Path

WORK = (1000, 10, 2_000_000)
"""Without arguments: the period in ms, how many kernels, and how long each is."""


def main() -> None:
    ptx, seconds, seed, *work = sys.argv[1:]
    period, kernels, kernel_ns = map(int, [*work, *map(str, WORK[len(work) :])])
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise SystemExit(f"{name} failed with {code}")

    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), Path(ptx).read_bytes() + b"\0")
    call("cuModuleGetFunction", ctypes.byref(function), module, b"spin_ns")
    length = ctypes.c_uint64(kernel_ns)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(length))

    def launch() -> None:
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)

    print(json.dumps({"event": "ready"}), flush=True)
    sys.stdin.readline()
    chance = random.Random(int(seed))
    waits, cells = [], []
    begin = time.monotonic()
    for number in range(int(1000 * float(seconds) / period)):
        at = begin + (number + chance.random() * 0.9) * period / 1000
        time.sleep(max(0.0, at - time.monotonic()))
        start = time.monotonic_ns()
        launch()
        call("cuCtxSynchronize")
        waits.append(time.monotonic_ns() - start - kernel_ns)
        for _ in range(kernels - 1):
            launch()
        call("cuCtxSynchronize")
        cells.append(time.monotonic_ns() - start)
    print(json.dumps({"waits_ns": waits, "cells_ns": cells}), flush=True)
    sys.stdin.readline()


main()
