"""The driver through cuda.bindings.driver, as used by numba, cuda.core and others."""

import pytest

PRELUDE = """
import ctypes
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
PTX = b'''.version 7.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns)
{
  ret;
}'''
ok(d.cuInit(0))
device = ok(d.cuDeviceGet(0))
"""

PRIMARY = """
ctx = ok(d.cuDevicePrimaryCtxRetain(device)); ok(d.cuCtxSetCurrent(ctx))
module = ok(d.cuModuleLoadData(PTX)); spin = ok(d.cuModuleGetFunction(module, b"spin_ns"))
def launch(ns, stream):
    value = ctypes.c_uint64(ns); params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(params), 0))
"""

PROGRAMS = {
    "facts": """
assert ok(d.cuDriverGetVersion()) == 13000
assert ok(d.cuDeviceGetName(64, device)).split(b"\\0")[0] == b"gpushare simulated GPU"
assert ok(d.cuDeviceTotalMem(device)) == 16 << 30
assert ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, device)) == 32
assert d.cuDeviceGet(9)[0] == d.CUresult.CUDA_ERROR_INVALID_DEVICE
assert ok(d.cuGetErrorName(d.CUresult.CUDA_ERROR_NOT_READY)) == b"CUDA_ERROR_NOT_READY"
""",
    "context": """
ctx = ok(d.cuCtxCreate(None, 0, device))
assert int(ok(d.cuCtxGetCurrent())) == int(ctx)
assert ok(d.cuCtxGetApiVersion(ctx)) == 3020
ok(d.cuCtxSynchronize())
ok(d.cuCtxDestroy(ctx))
assert d.cuCtxSynchronize()[0] == d.CUresult.CUDA_ERROR_INVALID_CONTEXT
""",
    "library": PRIMARY
    + """
lib = ok(d.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
kernel = ok(d.cuLibraryGetKernel(lib, b"spin_ns"))
assert ok(d.cuLibraryGetKernelCount(lib)) == 1
assert ok(d.cuKernelGetParamInfo(kernel, 0)) == (0, 8)
function = ok(d.cuKernelGetFunction(kernel))
assert d.cuLibraryGetKernel(lib, b"other")[0] == d.CUresult.CUDA_ERROR_NOT_FOUND
spin = function
launch(1000, 0)
ok(d.cuCtxSynchronize())
ok(d.cuLibraryUnload(lib))
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(sim, program):
    sim.python(PRELUDE + PROGRAMS[program])
    assert sim.device()["bytes"] == 0
