"""A program's own clock, as libfaketime gives it one: neither the meter nor the device goes by it."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from pages.handmade import Grant, Simulator
from run import built

from gpushare import paths

KERNEL_NS, KERNELS = 2_000_000, 100
PROGRAM = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def ok(result): assert result == 0, result
context, module, spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
ok(cuda.cuInit(0)); ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)); ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuModuleLoadData(ctypes.byref(module), open({str(paths.SPIN_PTX)!r}, "rb").read() + b"\\0"))
ok(cuda.cuModuleGetFunction(ctypes.byref(spin), module, b"spin_ns"))
ns = ctypes.c_uint64({KERNEL_NS}); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
for _ in range({KERNELS}):
    ok(cuda.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
ok(cuda.cuCtxSynchronize())
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("speed", ["20", "0.05"])
def test_the_books_do_not_bend(
    grant: Grant, sim: Simulator, environment: Callable[..., dict[str, str]], speed: str
) -> None:
    preload = f"{paths.INTERPOSER}:{paths.INTERPOSER_ML}:{built.program('falseclock.so')}"
    env = environment(grant, preload) | {"FALSECLOCK": speed}
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "done\n"
        took_ns = (time.monotonic() - began) * 1e9
        true, metered = sim.busy_ns(program.pid), grant.slot().busy_ns
        program.communicate("\n", timeout=30)
    assert program.returncode == 0
    assert true == pytest.approx(KERNEL_NS * KERNELS, rel=0.02)
    assert took_ns >= true
    # The meter's error on a busy machine is small beside what such a clock would make of it.
    assert metered == pytest.approx(true, rel=0.5)
