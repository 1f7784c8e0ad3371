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
    "memory": PRIMARY
    + """
data, back = bytes(range(256)) * 256, bytearray(1 << 16)
p = ok(d.cuMemAlloc(len(data)))
ok(d.cuMemcpyHtoD(p, data, len(data)))
ok(d.cuMemcpyDtoH(back, p, len(data)))
assert data == back
ok(d.cuMemFree(p))
""",
    "time": PRIMARY
    + """
stream = ok(d.cuStreamCreate(0)); a, b = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
launch(20_000_000, stream)
ok(d.cuEventRecord(a, stream))
for _ in range(10): launch(1_000_000, stream)
ok(d.cuEventRecord(b, stream))
assert d.cuEventQuery(b)[0] == d.CUresult.CUDA_ERROR_NOT_READY
ok(d.cuEventSynchronize(b))
assert ok(d.cuEventElapsedTime(a, b)) == 10.0
""",
    "graph": PRIMARY
    + """
stream = ok(d.cuStreamCreate(0)); a, b = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
for _ in range(10): launch(1_000_000, stream)
status, ident, graph, deps, edges, n = ok(d.cuStreamGetCaptureInfo(stream))
assert status == d.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE and n == 1
graph = ok(d.cuStreamEndCapture(stream)); run = ok(d.cuGraphInstantiate(graph, 0))
launch(20_000_000, stream)
ok(d.cuEventRecord(a, stream)); ok(d.cuGraphLaunch(run, stream)); ok(d.cuEventRecord(b, stream))
ok(d.cuStreamSynchronize(stream))
assert ok(d.cuEventElapsedTime(a, b)) == 10.0
ok(d.cuGraphExecDestroy(run)); ok(d.cuGraphDestroy(graph))
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
    "host function": PRIMARY
    + """
called = []
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
stream = ok(d.cuStreamCreate(0))
launch(3_000_000, stream)
ok(d.cuLaunchHostFunc(stream, ctypes.cast(callback, ctypes.c_void_p).value, 7))
ok(d.cuStreamSynchronize(stream))
assert called == [7]
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(sim, program):
    sim.python(PRELUDE + PROGRAMS[program])
    assert sim.device()["bytes"] == 0
