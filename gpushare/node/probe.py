"""Measures what one context costs in device memory: `python -m gpushare.node.probe DEVICE_ID` prints JSON
{"context_bytes": N, "listed_bytes": M}: the total, and the part that NVML counts for the process.

Each round runs in its own process, because a CUDA context and its memory would stay with the daemon until it ends, and
because a grant is charged for a process's first context. NVML's per-process numbers leave out the context's own
buffers, so the whole device's used memory is read before and after. Other processes may allocate meanwhile: the
smallest of several rounds counts.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from gpushare.errors import FailedError, GpushareError
from gpushare.node import nvml as nvml_backend
from gpushare.node.devices import ContextCost

ROUNDS = 3
_ONCE = "--once"  # one round, in this very process
_ROUND_SECONDS = 20.0
_SETTLE_SECONDS, _LOOK_SECONDS = 2.0, 0.05  # the driver may free an ended process's memory a little later


def _check(name: str, result: int) -> None:
    if result != 0:
        raise FailedError(f"{name} failed with CUDA error {result}: check that the device is usable by this user")


def _ordinal(cuda: ctypes.CDLL, device_id: str) -> int:
    """Returns CUDA's number of the device, which may differ from NVML's."""
    wanted = uuid.UUID(device_id.removeprefix("GPU-")).bytes
    count = ctypes.c_int()
    _check("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))
    for ordinal in range(count.value):
        found = (ctypes.c_ubyte * 16)()
        _check("cuDeviceGetUuid", cuda.cuDeviceGetUuid_v2(found, ordinal))
        if bytes(found) == wanted:
            return ordinal
    raise FailedError(f"the CUDA driver does not show device {device_id}: see dmesg and `nvidia-smi`")


def _settled(used: Callable[[], int]) -> int:
    deadline = time.monotonic() + _SETTLE_SECONDS
    before, now = -1, used()
    while now != before and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        before, now = now, used()
    return now


def _listed(nvml: Any, handle: Any) -> int | None:
    """Returns the bytes that NVML counts for this process; None if it does not report them."""
    try:
        rows = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    return next((row.usedGpuMemory for row in rows if row.pid == os.getpid()), None)


def measure_here(device_id: str) -> ContextCost:
    """Makes this process's first context and returns its cost. Raises FailedError."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it may hide or renumber the device
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise FailedError(f"cannot load the CUDA driver: {error}") from None
    nvml = nvml_backend.load()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(device_id)
    except nvml.NVMLError as error:
        raise FailedError(f"NVML does not know device {device_id}: {error}") from None
    before = _settled(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
    _check("cuInit", cuda.cuInit(0))
    context = ctypes.c_void_p()
    _check("cuCtxCreate", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, _ordinal(cuda, device_id)))
    after: int = nvml.nvmlDeviceGetMemoryInfo(handle).used
    listed = _listed(nvml, handle)
    _check("cuCtxDestroy", cuda.cuCtxDestroy_v2(context))
    size = max(0, after - before)
    return ContextCost(size, size if listed is None else min(size, listed))


def _elsewhere(device_id: str) -> ContextCost:
    command = [sys.executable, "-P", "-m", "gpushare.node.probe", _ONCE, device_id]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ROUND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FailedError(f"no context within {_ROUND_SECONDS:.0f} s: see dmesg and `nvidia-smi`") from None
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise FailedError(reason[0].removeprefix("probe: "))
    found = json.loads(done.stdout)
    return ContextCost(found["context_bytes"], found["listed_bytes"])


def main() -> int:
    """Measures on the device named on the command line and prints JSON."""
    *option, device_id = sys.argv[1:] or [""]
    if option not in ([], [_ONCE]) or not device_id:
        print("usage: python -m gpushare.node.probe DEVICE_ID", file=sys.stderr)
        return 2
    try:
        cost = measure_here(device_id) if option else min(_elsewhere(device_id) for _ in range(ROUNDS))
    except GpushareError as error:
        print(f"probe: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"context_bytes": cost.size_bytes, "listed_bytes": cost.listed_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
