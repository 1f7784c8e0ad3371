"""Frameworks without PyTorch: `python alone.py NAME` prints the results as JSON (programs.py)."""

import ctypes
import json
import os
import sys

GIB = 1 << 30
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def numba_alone():
    import numpy as np
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    @cuda.jit
    def add(a, b, out):
        at = cuda.grid(1)
        if at < a.size:
            out[at] = a[at] + b[at]

    stream, host = cuda.stream(), cuda.pinned_array(1 << 20, dtype=np.float32)
    host[:] = np.arange(1 << 20)
    a = cuda.to_device(host, stream=stream)
    b, out = cuda.device_array_like(a), cuda.managed_array(1 << 20, dtype=np.float32)
    begun, ended = cuda.event(), cuda.event()
    begun.record(stream)
    for _ in range(100):
        add[4096, 256, stream](a, b, out)
    ended.record(stream)
    stream.synchronize()
    kept, refused = [], ""
    try:
        for _ in range(20):
            kept.append(cuda.device_array(GIB, dtype=np.uint8))
    except CudaAPIError as error:
        refused = str(error)
    all_used = cuda.current_context().get_memory_info().free < GIB
    kept.clear()
    cuda.current_context().deallocations.clear()
    cuda.device_array(GIB, dtype=np.uint8)
    took_time = cuda.event_elapsed_time(begun, ended) > 0
    same = bool((a.copy_to_host() == host).all())
    return {"same": same, "refused": refused, "all_used": all_used, "took_time": took_time}


class Memory:
    """Accepted by Triton as a tensor."""

    dtype = "float32"

    def __init__(self, driver, count):
        found = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(found), ctypes.c_size_t(4 * count)) == 0
        self.address = found.value

    def data_ptr(self):
        return self.address


@program
def triton_alone():
    import triton
    import triton.language as tl
    from triton.runtime import driver

    @triton.jit
    def add(x, y, out, count, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        inside = at < count
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)

    @triton.jit
    def product(a, b, out, size, block: tl.constexpr):
        row, column = tl.program_id(0) * block + tl.arange(0, block), tl.program_id(1) * block + tl.arange(0, block)
        total = tl.zeros((block, block), dtype=tl.float32)
        for step in range(0, size, block):
            inner = step + tl.arange(0, block)
            left = tl.load(a + row[:, None] * size + inner[None, :])
            total += tl.dot(left, tl.load(b + inner[:, None] * size + column[None, :]))
        tl.store(out + row[:, None] * size + column[None, :], total)

    driver.active.set_current_device(0)
    cuda = ctypes.CDLL("libcuda.so.1")
    x, y, out = (Memory(cuda, 1 << 20) for _ in range(3))
    for _ in range(50):
        added = add[(1024,)](x, y, out, 1 << 20, block=1024)
        multiplied = product[(16, 16)](x, y, out, 1024, block=64)
    assert cuda.cuCtxSynchronize() == 0
    return {"target": str(driver.active.get_current_target()), "kernels": [added.name, multiplied.name]}


if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()), flush=True)
    if "HOLD" in os.environ:
        sys.stdin.read()
