"""A process that joins its grant, then uses the device without the interposer, so that its slot reports none of it.

It is started without the preload. Each line of standard input has a number: the ns of each kernel from then on; the
first one starts an endless series of kernels.
"""

import ctypes
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda.bindings import driver
from run.joiner import Joined
from run.worker import context, ok

from gpushare.paths import SPIN_PTX

BATCH = 40
"""Kernels launched before each synchronize, so that the device is almost always busy."""

joined = Joined()
ok(driver.cuInit(0))
context()
module = ok(driver.cuModuleLoadData(SPIN_PTX.read_bytes() + bytes(1)))
spin = ok(driver.cuModuleGetFunction(module, b"spin_ns"))
joined.say()
ns = 0


def work() -> None:
    context()
    while True:
        for _ in range(BATCH):
            ok(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ((ns,), (ctypes.c_uint64,)), 0))
        ok(driver.cuCtxSynchronize())


for line in sys.stdin:
    if not ns:
        threading.Thread(target=work, daemon=True).start()
    ns = int(line)
