"""The simulated runtime's work beyond forwarding: textures, arrays, attributes, errors, launches that cannot run."""

import struct
from typing import Any

import pytest
from values.runtimes import MAJORS, START

OBJECTS = """
class Channels(ctypes.Structure):
    _fields_ = [("bits", I * 4), ("kind", I)]
class Pitched(ctypes.Structure):
    _fields_ = [("pointer", P), ("channels", Channels), ("width", Z), ("height", Z), ("pitch", Z)]
class Linear(ctypes.Structure):
    _fields_ = [("pointer", P), ("channels", Channels), ("bytes", Z)]
class Any(ctypes.Union):
    _fields_ = [("array", P), ("linear", Linear), ("pitched", Pitched)] + [("reserved", I * 32)] * (MAJOR == 13)
class Resource(ctypes.Structure):
    _fields_ = [("type", I), ("of", Any)] + [("flags", U)] * (MAJOR == 13)
class Texture(ctypes.Structure):
    _fields_ = [("address", I * 3), ("filter", I), ("read_mode", I), ("srgb", I), ("border", ctypes.c_float * 4),
                ("normalised", I), ("anisotropy", U), ("mipmap_filter", I), ("levels", ctypes.c_float * 3),
                ("no_trilinear", I), ("seamless", I)]
floats = Channels((32, 0, 0, 0), 2)
def cores():
    value = I()
    ok(rt.cudaDeviceGetAttribute(at(value), 16, 0))
    return value.value

# texture objects: what was described is what is described, in the runtime's terms
pointer, pitch = P(), Z()
ok(rt.cudaMallocPitch(at(pointer), at(pitch), Z(400), Z(8)))
resource, texture, back, found = Resource(type=3), Texture(read_mode=1, normalised=1), Texture(), Resource()
resource.of.pitched = Pitched(pointer, floats, 100, 8, pitch)
texture.border[2] = 0.5
handle = ctypes.c_ulonglong()
ok(rt.cudaCreateTextureObject(at(handle), at(resource), at(texture), None))
ok(rt.cudaGetTextureObjectTextureDesc(at(back), handle))
assert bytes(back) == bytes(texture)
ok(rt.cudaGetTextureObjectResourceDesc(at(found), handle))
assert found.type == 3 and list(found.of.pitched.channels.bits) == [32, 0, 0, 0]
assert (found.of.pitched.pointer, found.of.pitched.pitch) == (pointer.value, pitch.value)
ok(rt.cudaDestroyTextureObject(handle))
assert rt.cudaGetTextureObjectTextureDesc(at(back), handle) != 0
resource.of.pitched.channels.bits[0] = 5
assert rt.cudaCreateTextureObject(at(handle), at(resource), at(texture), None) == 20
linear = Resource(type=2)
linear.of.linear = Linear(pointer, floats, 400)
ok(rt.cudaCreateTextureObject(at(handle), at(linear), at(texture), None))
linear.type = 9
assert rt.cudaCreateTextureObject(at(handle), at(linear), at(texture), None) == 1
ok(rt.cudaDestroyTextureObject(ctypes.c_ulonglong(0)))

# a surface of an array
array, surface = P(), ctypes.c_ulonglong()
ok(rt.cudaMallocArray(at(array), at(floats), Z(16), Z(6), 2))
on = Resource(type=0)
on.of.array = array
ok(rt.cudaCreateSurfaceObject(at(surface), at(on)))
ok(rt.cudaGetSurfaceObjectResourceDesc(at(found), surface))
assert (found.type, found.of.array) == (0, array.value)
ok(rt.cudaDestroySurfaceObject(surface))

# copies of a number of bytes go on in the next row: rows have 64 bytes here, and 48 in the other array
source, out = bytes(i % 251 for i in range(300)), ctypes.create_string_buffer(300)
ok(rt.cudaMemcpyToArray(array, Z(20), Z(0), source, Z(300), 1))
row = ctypes.create_string_buffer(64)
ok(rt.cudaMemcpy2DFromArray(row, Z(64), array, Z(0), Z(1), Z(64), Z(1), 2))
assert row.raw == source[44:108]
ok(rt.cudaMemcpyFromArray(out, array, Z(20), Z(0), Z(300), 2))
assert out.raw == source
other = P()
ok(rt.cudaMallocArray(at(other), at(floats), Z(12), Z(8), 0))
ok(rt.cudaMemcpyArrayToArray(other, Z(4), Z(1), array, Z(20), Z(0), Z(300), 3))
out = ctypes.create_string_buffer(300)
ok(rt.cudaMemcpyFromArrayAsync(out, other, Z(4), Z(1), Z(300), 2, None))
ok(rt.cudaDeviceSynchronize())
assert out.raw == source
assert rt.cudaMemcpyToArray(array, Z(64), Z(0), source, Z(4), 1) == 1
assert rt.cudaMemcpyToArray(array, Z(60), Z(5), source, Z(8), 1) == 1

# a capture into a graph that the program has ends without being asked for the graph; another does not
stream, graph, node, count = P(), P(), P(), Z()
ok(rt.cudaStreamCreate(at(stream)))
ok(rt.cudaStreamBeginCapture(stream, 2))
ok(rt.cudaMemsetAsync(pointer, 0, Z(64), stream))
assert rt.cudaStreamEndCapture(stream, None) == 1
ok(rt.cudaStreamEndCapture(stream, at(graph)))
ok(rt.cudaStreamBeginCaptureToGraph(stream, graph, None, None, Z(0), 2))
ok(rt.cudaMemcpyAsync(pointer, source, Z(64), 1, stream))
ok(rt.cudaStreamEndCapture(stream, None))

# what nodes are
nodes, count = (P * 2)(), Z(2)
ok(rt.cudaGraphGetNodes(graph, nodes, at(count)))
assert count.value == 2
if MAJOR == 13:
    version, words = I(), {}
    ok(cu.cuDriverGetVersion(at(version)))
    for node in nodes:
        params = (Z * 34)()
        newer = 0 if version.value >= 13020 else 36  # a driver from before this function does not have it
        assert rt.cudaGraphNodeGetParams(P(node), params) == newer
        ok(cu.cuGraphNodeGetParams(P(node), params))
        words[params[0] & 0xffffffff] = list(params)
    assert set(words) == {1, 2}
    assert words[2][2] == pointer.value and pointer.value in words[1][4:]
    value = ctypes.c_ulonglong()
    ok(rt.cudaGraphConditionalHandleCreate_v2(at(value), graph, None, 0, 0))
    assert value.value

# attributes of streams: kept, copied, and refused where they mean nothing
class Window(ctypes.Structure):
    _fields_ = [("base", P), ("bytes", Z), ("ratio", ctypes.c_float), ("hit", I), ("miss", I), ("rest", I * 9)]
wanted, got, second = Window(pointer, 4096, 0.5, 2, 1), Window(), P()
ok(rt.cudaStreamSetAttribute(stream, 1, at(wanted)))
ok(rt.cudaStreamCreate(at(second)))
ok(rt.cudaStreamGetAttribute(second, 1, at(got)))
assert bytes(got) == bytes(64)
ok(rt.cudaStreamCopyAttributes(second, stream))
ok(rt.cudaStreamGetAttribute(second, 1, at(got)))
assert bytes(got) == bytes(wanted)
wanted.ratio = 2
assert rt.cudaStreamSetAttribute(stream, 1, at(wanted)) == 1
assert rt.cudaStreamSetAttribute(stream, 7, at(wanted)) == 1
urgent, priority = (I * 16)(-3), I()
ok(rt.cudaStreamSetAttribute(stream, 8, urgent))
ok(rt.cudaStreamGetPriority(stream, at(priority)))
assert priority.value == -3

# attributes of kernel nodes: kept, copied, and those of a clone are its own
node, plain, clone, there = P(), P(), P(), P()
class Node(ctypes.Structure):
    _fields_ = [("kernel", P), ("grid", U * 3), ("block", U * 3), ("shared", U), ("rest", P * 4)]
nodes = P()
ok(rt.cudaGraphCreate(at(nodes), 0))
work = P()
image = b".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry work()\\n{\\n  ret;\\n}\\n"
module = P()
ok(cu.cuModuleLoadData(at(module), image))
ok(cu.cuModuleGetFunction(at(work), module, b"work"))
shape = Node(work, (1, 1, 1), (1, 1, 1), 0)
for one in (node, plain):
    ok(cu.cuGraphAddKernelNode_v2(at(one), nodes, None, Z(0), at(shape)))
wanted.ratio = 0.5
ok(rt.cudaGraphKernelNodeSetAttribute(node, 1, at(wanted)))
ok(rt.cudaGraphClone(at(clone), nodes))
ok(rt.cudaGraphNodeFindInClone(at(there), node, clone))
ok(rt.cudaGraphKernelNodeCopyAttributes(plain, node))
wanted.bytes = 8192
ok(rt.cudaGraphKernelNodeSetAttribute(node, 1, at(wanted)))
for one, size in ((node, 8192), (plain, 4096), (there, 4096)):
    ok(rt.cudaGraphKernelNodeGetAttribute(one, 1, at(got)))
    assert got.bytes == size
assert rt.cudaGraphKernelNodeSetAttribute(node, 3, (I * 16)(1)) == 1
ok(rt.cudaGraphKernelNodeGetAttribute(node, 8, at(got)))
ok(rt.cudaGraphDestroy(clone))
ok(rt.cudaGraphDestroy(nodes))

# launches: what cannot run is refused, each with its own error
library, kernel, each = P(), P(), I()
image = b".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry work()\\n{\\n  ret;\\n}\\n"
ok(rt.cudaLibraryLoadData(at(library), image, None, None, 0, None, None, 0))
ok(rt.cudaLibraryGetKernel(at(kernel), library, b"work"))
class Attribute(ctypes.Structure):
    _fields_ = [("id", I), ("pad", I), ("value", I * 16)]
class Config(ctypes.Structure):
    _fields_ = [("grid", U * 3), ("block", U * 3), ("shared", U), ("stream", P), ("attributes", P), ("count", U)]
def launch(blocks, threads, shared, cooperative):
    attribute = Attribute(2, 0, (I * 16)(cooperative))
    config = Config((blocks, 1, 1), (threads, 1, 1), shared, None, ctypes.cast(at(attribute), P), 1)
    return cu.cuLaunchKernelEx(at(config), kernel, None, None)
ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(at(each), kernel, 256, Z(32768)))
most = each.value * cores()
ok(launch(most, 256, 32768, 1))
assert launch(most + 1, 256, 32768, 1) == 720
ok(launch(most + 1, 256, 32768, 0))
assert launch(1, 256, 65536, 0) == 1
ok(rt.cudaKernelSetAttributeForDevice(kernel, 8, 65536, 0))
ok(launch(1, 256, 65536, 0))

# names and descriptions of errors
for function in (rt.cudaGetErrorName, rt.cudaGetErrorString):
    function.restype = ctypes.c_char_p
assert rt.cudaGetErrorName(911) == b"cudaErrorExternalDevice"
assert rt.cudaGetErrorString(2) == b"out of memory" and rt.cudaGetErrorString(911) == b"external device"
assert rt.cudaGetErrorName(12345) == rt.cudaGetErrorString(12345) == b"unrecognized error code"
print("ok")
"""


@pytest.mark.parametrize("major", MAJORS)
def test_results_in_the_runtimes_own_terms(sim: Any, major: int) -> None:
    assert sim.python(START.format(major=major) + f"MAJOR = {major}\n" + OBJECTS) == "ok\n"


def cubin(**variables: int) -> bytes:
    """The smallest ELF file that names these variables with their sizes."""
    names, symbols = b"\0", bytes(24)
    for name, size in variables.items():
        symbols += struct.pack("<IBBHQQ", len(names), 1, 0, 1, 0, size)
        names += name.encode() + b"\0"
    body = symbols + names
    sections = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 64, len(symbols), 1, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64 + len(symbols), len(names), 0, 0, 1, 0)
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 51, 7, 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 2, 1
    )
    return header + body + sections


def test_variables_of_machine_code_are_found(sim: Any) -> None:
    whole = cubin(options=6144, raw=1000)
    broken = whole[:40] + (1 << 40).to_bytes(8, "little") + whole[48:]
    code = (
        START.format(major=13)
        + f"""
library, address, size = P(), ctypes.c_uint64(), Z()
ok(rt.cudaSetDevice(0))
ok(rt.cudaLibraryLoadData(at(library), {whole!r}, None, None, 0, None, None, 0))
ok(rt.cudaLibraryGetGlobal(at(address), at(size), library, b"options"))
assert size.value == 6144
ok(rt.cudaMemset(ctypes.c_void_p(address.value), 1, size))
before = address.value
ok(rt.cudaLibraryGetGlobal(at(address), at(size), library, b"options"))
assert address.value == before
ok(rt.cudaLibraryGetGlobal(at(address), at(size), library, b"raw"))
assert size.value == 1000 and address.value != before
assert rt.cudaLibraryGetGlobal(at(address), at(size), library, b"ra") == 500
assert rt.cudaLibraryLoadData(at(library), {broken!r}, None, None, 0, None, None, 0) == 200
print("ok")
"""
    )
    assert sim.python(code) == "ok\n"
