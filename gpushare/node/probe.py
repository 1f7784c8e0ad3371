"""What one context costs in device memory: `python -m gpushare.node.probe DEVICE_ID`, prints JSON {"context_bytes": N}.

A process of its own, because a CUDA context and its memory would stay with the daemon for life. NVML's per-process
numbers leave out the context's own buffers, so the whole device's free memory is read before and after. Others may
allocate meanwhile: the smallest of several rounds counts.
"""

import ctypes
import json
import os
import sys
import uuid

from gpushare.errors import FailedError, GpushareError
from gpushare.node import nvml as nvml_backend

ROUNDS = 3


def _check(name: str, result: int) -> None:
    if result != 0:
        raise FailedError(f"{name} failed with CUDA error {result}: check that the device is usable by this user")


def _ordinal(cuda: ctypes.CDLL, device_id: str) -> int:
    """The driver's number of the device, which may differ from NVML's."""
    wanted = uuid.UUID(device_id.removeprefix("GPU-")).bytes
    count = ctypes.c_int()
    _check("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))
    for ordinal in range(count.value):
        found = (ctypes.c_ubyte * 16)()
        _check("cuDeviceGetUuid", cuda.cuDeviceGetUuid_v2(found, ordinal))
        if bytes(found) == wanted:
            return ordinal
    raise FailedError(f"the CUDA driver does not show device {device_id}: see dmesg and `nvidia-smi`")


def measure(device_id: str) -> int:
    """Bytes of device memory that creating a context takes."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # may hide or renumber what is asked for
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise FailedError(f"cannot load the CUDA driver: {error}") from None
    nvml = nvml_backend.load()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(device_id)
    except nvml.NVMLError as error:
        raise FailedError(f"NVML does not know device {device_id}: {error}") from None
    _check("cuInit", cuda.cuInit(0))
    ordinal = _ordinal(cuda, device_id)
    costs: list[int] = []
    for _ in range(ROUNDS):
        before: int = nvml.nvmlDeviceGetMemoryInfo(handle).used
        context = ctypes.c_void_p()
        _check("cuCtxCreate", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, ordinal))
        after: int = nvml.nvmlDeviceGetMemoryInfo(handle).used
        _check("cuCtxDestroy", cuda.cuCtxDestroy_v2(context))
        costs.append(after - before)
    return max(0, min(costs))


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m gpushare.node.probe DEVICE_ID", file=sys.stderr)
        return 2
    try:
        cost = measure(sys.argv[1])
    except GpushareError as error:
        print(f"probe: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"context_bytes": cost}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
