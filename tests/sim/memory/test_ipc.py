"""Legacy inter-process handles: the same bytes in two processes, charged once."""

import os
import signal
from typing import Any

from run.simworker import held, start
from run.waiting import until


def test_two_processes_see_the_same_bytes(sim: Any) -> None:
    one, two = start(sim), start(sim)
    one.do("p = ok(d.cuMemAlloc(100_000)); q = ok(d.cuMemAlloc(100)); put(p, b'from one')")
    one.do("h = ok(d.cuIpcGetMemHandle(p))")
    handle = one.get("list(ctypes.string_at(h.getPtr(), 64))")
    two.do(f"""
        h = d.CUipcMemHandle(); ctypes.memmove(h.getPtr(), bytes({handle}), 64); a = ok(d.cuIpcOpenMemHandle(h, 1))
        b = ok(d.cuIpcOpenMemHandle(h, 1))
    """)
    assert two.get("int(a) == int(b)")
    assert two.get("get(a, 8) == b'from one'")
    two.do("put(a, b'from two')")
    assert one.get("get(p, 8) == b'from two'")
    assert (held(sim, one), held(sim, two)) == (100_352 + 512, 0)
    assert two.get("ok(d.cuMemGetAddressRange(a))[1]") == 100_000
    assert two.error("d.cuMemFree(a)") == "CUDA_ERROR_INVALID_VALUE"
    assert two.error("d.cuIpcCloseMemHandle(a)") == "CUDA_SUCCESS"
    assert two.get("get(a, 8) == b'from two'")
    assert two.error("d.cuIpcCloseMemHandle(a)") == "CUDA_SUCCESS"
    assert two.error("d.cuIpcCloseMemHandle(a)") == "CUDA_ERROR_INVALID_VALUE"


def test_what_cannot_be_opened(sim: Any) -> None:
    one, two = start(sim), start(sim)
    one.do("p = ok(d.cuMemAlloc(1000)); h = ok(d.cuIpcGetMemHandle(p))")
    assert one.error("d.cuIpcOpenMemHandle(h, 1)") == "CUDA_ERROR_INVALID_CONTEXT"
    assert one.error("d.cuIpcGetMemHandle(d.CUdeviceptr(int(p) + 1))") == "CUDA_ERROR_INVALID_VALUE"
    assert two.error("d.cuIpcOpenMemHandle(d.CUipcMemHandle(), 1)") == "CUDA_ERROR_INVALID_VALUE"
    handle = one.get("list(ctypes.string_at(h.getPtr(), 64))")
    guessed = handle[:8] + [1] * 16 + handle[24:]
    two.do(f"h = d.CUipcMemHandle(); ctypes.memmove(h.getPtr(), bytes({guessed}), 64)")
    assert two.error("d.cuIpcOpenMemHandle(h, 1)") == "CUDA_ERROR_INVALID_VALUE"
    os.kill(one.pid, signal.SIGKILL)
    one.process.wait(10)
    until(lambda: not sim.process(one.pid)["alive"], "the engine sees the end")
    two.do(f"ctypes.memmove(h.getPtr(), bytes({handle}), 64)")
    assert two.error("d.cuIpcOpenMemHandle(h, 1)") == "CUDA_ERROR_INVALID_VALUE"
