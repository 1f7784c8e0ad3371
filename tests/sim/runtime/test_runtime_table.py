"""The simulated runtime of each major version against the table of its functions: names, twins, zero arguments, and the
arrival of forwarded calls in the driver."""

import subprocess
from typing import Any

import pytest
from values.runtimes import MAJORS, START, table

from gpushare.paths import SIM_LIB_DIR


def names(major: int) -> set[str]:
    found = set()
    for row in table.runtime():
        if major in row.majors:
            found |= {row.name, f"{row.name}_{row.variant}" if row.variant else row.name}
    return found


@pytest.mark.parametrize("major", MAJORS)
def test_each_function_is_exported_under_its_version(major: int) -> None:
    library = SIM_LIB_DIR / f"libcudart.so.{major}"
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[2] for line in done.stdout.splitlines() if " T " in line}
    assert exported == {f"{name}@@libcudart.so.{major}" for name in names(major)}


@pytest.mark.parametrize("major", MAJORS)
def test_each_driver_function_named_exists(major: int) -> None:
    known = {symbol.name for symbol in table.driver()}
    for row in table.runtime():
        if row.does not in ("hand", "none"):
            assert row.does.removeprefix("start ").split("(")[0] in known, row


@pytest.mark.parametrize("major", MAJORS)
def test_nothing_given_is_answered(sim: Any, major: int) -> None:
    """With zeros for every argument, each function returns and does not crash. Skipped: `__` functions, which only
    nvcc's code calls, and cudaCreateChannelDesc, which returns a structure."""
    wanted = sorted(name for name in names(major) - {"cudaCreateChannelDesc"} if not name.startswith("__"))
    code = (
        START.format(major=major)
        + f"""
sys.stdout.reconfigure(line_buffering=True)
for name in {wanted!r}:
    print(name)
    getattr(rt, name)(*[P(0)] * 16)
print("ok")
"""
    )
    assert sim.python(code).splitlines()[-1] == "ok"


@pytest.mark.parametrize("major", MAJORS)
def test_what_is_not_simulated_is_not_supported(sim: Any, major: int) -> None:
    wanted = [row.name for row in table.runtime() if row.does == "none" and major in row.majors and row.name[0] != "_"]
    code = START.format(major=major) + f"print({{rt[name]() for name in {wanted!r}}}, rt.cudaGetLastError())"
    assert sim.python(code) == "{801} 801\n"


SCENES = """
stream, graph, other, node, second, exec_ = P(), P(), P(), P(), P(), P()
status, key, count = I(9), ctypes.c_ulonglong(), Z()
dependencies, edges = P(), P()
driver_status = I()

# capture: the runtime's result is the driver's
ok(rt.cudaStreamCreateWithFlags(at(stream), 1))
ok(rt.cudaGraphCreate(at(graph), 0))
ok(rt.cudaGraphAddEmptyNode(at(node), graph, None, Z(0)))
ok(rt.cudaStreamBeginCaptureToGraph(stream, graph, at(node), None, Z(1), 2))
info = "cudaStreamGetCaptureInfo" + ("_v3" if MAJOR == 12 else "")
ok(rt[info](stream, at(status), at(key), at(other), at(dependencies), at(edges), at(count)))
ok(cu.cuStreamIsCapturing(stream, at(driver_status)))
assert status.value == driver_status.value == 1 and key.value and other.value == graph.value and count.value == 1
assert ctypes.cast(dependencies, ctypes.POINTER(P))[0] == node.value
update = "cudaStreamUpdateCaptureDependencies" + ("_v2" if MAJOR == 12 else "")
ok(rt[update](stream, None, None, Z(0), 1))
ok(rt[info](stream, at(status), None, None, None, None, at(count)))
assert count.value == 0
device = P()
ok(rt.cudaMalloc(at(device), Z(4096)))
ok(rt.cudaMemsetAsync(device, 7, Z(4096), stream))
ok(rt.cudaStreamEndCapture(stream, at(other)))
assert other.value == graph.value
ok(cu.cuGraphGetNodes(graph, None, at(count)))
assert count.value == 2

# nodes: a copy of one dimension, with the kinds of a copy
host = (ctypes.c_ubyte * 64)()
ok(rt.cudaGraphAddMemcpyNode1D(at(second), graph, None, Z(0), host, device, Z(64), 2))
class Copy(ctypes.Structure):
    _fields_ = [("words", Z * 20)]
copy = Copy()
ok(rt.cudaGraphMemcpyNodeGetParams(second, at(copy)))
assert copy.words[4] == device.value and copy.words[16] == 64
assert rt.cudaGraphAddMemcpyNode1D(at(second), graph, None, Z(0), host, device, Z(64), 9) == 21
before, after = (P * 1)(node), (P * 1)(second)
edge = (None,) if MAJOR == 13 else ()
ok(rt.cudaGraphAddDependencies(graph, before, after, *edge, Z(1)))
ok(rt.cudaGraphNodeGetDependencies(second, None, *edge, at(count)))
assert count.value == 1

# a user object lives as long as the graph that retains it
freed = []
destroy = ctypes.CFUNCTYPE(None, P)(lambda _: freed.append(1))
thing = P()
ok(rt.cudaUserObjectCreate(at(thing), P(1), destroy, 1, 1))
ok(rt.cudaGraphRetainUserObject(graph, thing, 1, 1))
assert not freed
ok(rt.cudaGraphDestroy(graph))
ok(rt.cudaDeviceSynchronize())
assert freed == [1]

# pools, graph memory
pool, value = P(), ctypes.c_ulonglong(1)
ok(rt.cudaDeviceGetDefaultMemPool(at(pool), 0))
class Access(ctypes.Structure):
    _fields_ = [("type", I), ("id", I), ("flags", I)]
ok(rt.cudaMemPoolSetAccess(pool, at(Access(1, 0, 3)), Z(1)))
ok(rt.cudaDeviceGetGraphMemAttribute(0, 0, at(value)))
assert value.value == 0
ok(rt.cudaDeviceGraphMemTrim(0))

# IPC: the handle is the driver's
ours, theirs = (ctypes.c_ubyte * 64)(), (ctypes.c_ubyte * 64)()
ok(rt.cudaIpcGetMemHandle(ours, device))
ok(cu.cuIpcGetMemHandle(theirs, device))
assert bytes(ours) == bytes(theirs)

# a library and its kernel
library, kernel, kernels = P(), P(), U()
image = b".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry work()\\n{\\n  ret;\\n}\\n"
ok(rt.cudaLibraryLoadData(at(library), image, None, None, 0, None, None, 0))
ok(rt.cudaLibraryGetKernelCount(at(kernels), library))
assert kernels.value == 1
ok(rt.cudaLibraryGetKernel(at(kernel), library, b"work"))
ok(rt.cudaKernelSetAttributeForDevice(kernel, 8, 1024, 0))
got = I()
ok(cu.cuKernelGetAttribute(at(got), 8, kernel, 0))
assert got.value == 1024
ok(rt.cudaLibraryUnload(library))

# hints: CUDA 12 has a device number, CUDA 13 a place
managed = P()
ok(rt.cudaMallocManaged(at(managed), Z(65536), 1))
class Place(ctypes.Structure):
    _fields_ = [("type", I), ("id", I)]
for name in ["cudaMemAdvise"] if MAJOR == 13 else ["cudaMemAdvise_v2"]:
    ok(rt[name](managed, Z(65536), 3, Place(1, 0)))
if MAJOR == 12:
    ok(rt.cudaMemAdvise(managed, Z(65536), 3, 0))
    ok(rt.cudaMemPrefetchAsync(managed, Z(65536), 0, stream))

# arrays: in elements, by the array's format
class Channels(ctypes.Structure):
    _fields_ = [("bits", I * 4), ("kind", I)]
class Extent(ctypes.Structure):
    _fields_ = [("sizes", Z * 3)]
array, channels, extent = P(), Channels((32, 32, 0, 0), 2), Extent()
ok(rt.cudaMallocArray(at(array), at(channels), Z(16), Z(4), 0))
ok(rt.cudaArrayGetInfo(at(channels), at(extent), None, array))
assert list(extent.sizes) == [16, 4, 0] and list(channels.bits) == [32, 32, 0, 0]
source, back = bytes(range(256)) * 2, ctypes.create_string_buffer(512)
ok(rt.cudaMemcpy2DToArray(array, Z(0), Z(0), source, Z(128), Z(128), Z(4), 1))
ok(rt.cudaMemcpy2DFromArray(back, Z(128), array, Z(0), Z(0), Z(128), Z(4), 2))
assert back.raw == source
channels.bits[0] = 5
assert rt.cudaMallocArray(at(array), at(channels), Z(16), Z(4), 0) == 20

# properties: the structure of this version, and no byte beyond it
size = 1008 if MAJOR == 13 else 1032
memory = ctypes.create_string_buffer(b"\\xee" * 2048, 2048)
ok(rt["cudaGetDeviceProperties" + ("_v2" if MAJOR == 12 else "")](memory, 0))
assert memory.raw[size:] == b"\\xee" * (2048 - size) and memory.raw[size - 4:size] == bytes(4)
cores, offset = I(), 384 if MAJOR == 13 else 388
ok(cu.cuDeviceGetAttribute(at(cores), 16, 0))
assert int.from_bytes(memory.raw[offset:offset + 4], "little") == cores.value
version = I()
ok(rt.cudaRuntimeGetVersion(at(version)))
assert version.value // 1000 == MAJOR

# flags of the device; an error is remembered by the thread until it is read
flags = U()
ok(rt.cudaGetDeviceFlags(at(flags)))
assert flags.value & 8
assert rt.cudaSetDeviceFlags(0x40000000) == 1
assert (rt.cudaPeekAtLastError(), rt.cudaGetLastError(), rt.cudaGetLastError()) == (1, 1, 0)

# entry points: of the legacy and of the per-thread default stream
legacy, own, found = P(), P(), I()
ok(rt.cudaGetDriverEntryPoint(b"cuStreamSynchronize", at(legacy), ctypes.c_ulonglong(0), at(found)))
ok(rt.cudaGetDriverEntryPoint_ptsz(b"cuStreamSynchronize", at(own), ctypes.c_ulonglong(0), at(found)))
assert legacy.value == ctypes.cast(cu.cuStreamSynchronize, P).value
assert own.value == ctypes.cast(cu.cuStreamSynchronize_ptsz, P).value

# a twin uses the thread's own stream: captured there, and not in the legacy stream
ok(rt.cudaStreamBeginCapture(P(2), 2))
ok(rt.cudaMemsetAsync_ptsz(device, 0, Z(64), None))
ok(rt.cudaStreamEndCapture(P(2), at(graph)))
ok(cu.cuGraphGetNodes(graph, None, at(count)))
assert count.value == 1
print("ok")
"""


@pytest.mark.parametrize("major", MAJORS)
def test_calls_arrive_in_the_driver(sim: Any, major: int) -> None:
    assert sim.python(START.format(major=major) + f"MAJOR = {major}\n" + SCENES) == "ok\n"
