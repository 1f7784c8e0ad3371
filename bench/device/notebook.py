"""A notebook-like program: now and then a cell of 20 ms of device time, and nothing in between.

notebook.py PTX SECONDS SEED [PERIOD_MS]

One cell per period (default 1000 ms: 2 % of the device) at a random moment of it. Prints {"event": "ready"}, waits for
a line, then works and prints {"waits_ns": [...], "cells_ns": [...]}: for each cell, the time that its first kernel took
beyond its length, and the time of the whole cell.
"""

import ctypes
import json
import random
import sys
import time
from pathlib import Path

KERNEL_NS, KERNELS = 2_000_000, 10


def main() -> None:
    ptx, seconds, seed, period_ms = (
        sys.argv[1],
        float(sys.argv[2]),
        int(sys.argv[3]),
        float((sys.argv[4:] or ["1000"])[0]),
    )
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
    length = ctypes.c_uint64(KERNEL_NS)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(length))

    def launch() -> None:
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)

    print(json.dumps({"event": "ready"}), flush=True)
    sys.stdin.readline()
    chance = random.Random(seed)
    waits, cells = [], []
    begin = time.monotonic()
    period = period_ms / 1000
    for number in range(int(seconds / period)):
        at = begin + (number + chance.random() * 0.9) * period
        time.sleep(max(0.0, at - time.monotonic()))
        start = time.monotonic_ns()
        launch()
        call("cuCtxSynchronize")
        waits.append(time.monotonic_ns() - start - KERNEL_NS)
        for _ in range(KERNELS - 1):
            launch()
        call("cuCtxSynchronize")
        cells.append(time.monotonic_ns() - start)
    print(json.dumps({"waits_ns": waits, "cells_ns": cells}), flush=True)
    sys.stdin.readline()


main()
