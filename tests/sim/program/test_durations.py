"""How long kernels take: by their shape and name, and never less with more blocks."""

import ctypes
import itertools
import struct

import pytest
from run import built

SMS, THREADS, SHARED, RESERVED = 108, 2048, 167_936, 1024  # native/sim/model/card.h
SHORTEST, BYTES = 2_000, 1_555.2  # ns; bytes per ns
OTHER = 12  # bytes moved by a thread of a kernel that is in no family (native/sim/program/families.c)


class Shape(ctypes.Structure):
    _fields_ = [
        ("blocks", ctypes.c_uint64),
        ("columns", ctypes.c_uint32),
        ("threads", ctypes.c_uint),
        ("registers", ctypes.c_uint),
        ("shared", ctypes.c_uint64),
    ]


@pytest.fixture(scope="module")
def rule():
    made = ctypes.CDLL(str(built.program("durations.so")))
    made.sim_kernel_ns.restype = ctypes.c_uint64
    made.sim_work_of.restype = ctypes.c_void_p
    made.sim_work_of.argtypes = [ctypes.c_char_p]
    made.sim_resident_blocks.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64]
    return made


@pytest.fixture
def takes(rule):
    def run(blocks, threads=256, name=b"work", columns=1, registers=32, shared=0):
        shape = Shape(blocks, columns, threads, registers, shared)
        return rule.sim_kernel_ns(ctypes.byref(shape), ctypes.c_void_p(rule.sim_work_of(name)))

    return run


def test_a_short_kernel_takes_the_floor(takes):
    assert takes(1, 1) == takes(1) == takes(SMS) == SHORTEST


@pytest.mark.parametrize("name", [b"work", b"triton_red_fused_0", b"gemm", b"flash_fwd_kernel"])
@pytest.mark.parametrize(("threads", "shared"), [(32, 0), (128, 40_000), (1024, 0), (1000, 166_912)])
def test_more_blocks_never_take_less(takes, name, threads, shared):
    counts = sorted(
        {*range(1, 300), *range(1700, 1800), *(2**power + one for power in range(9, 63) for one in (-1, 0))}
    )
    times = [takes(blocks, threads, name, shared=shared) for blocks in counts]
    assert all(less <= more for less, more in itertools.pairwise(times))
    assert times[-1] <= 3600 * 10**9


def test_one_block_more_than_fit_is_a_wave_more(takes):
    """Blocks of one warp and half of the shared memory: two fit a multiprocessor, and none takes less than 1 us."""
    shared = SHARED // 2 - RESERVED
    assert takes(3 * 2 * SMS, 32, shared=shared) == 3_000
    assert takes(3 * 2 * SMS + 1, 32, shared=shared) == 4_000


def test_memory_is_the_limit_of_a_wide_kernel(takes):
    wave = SMS * THREADS
    assert takes(10 * wave // 256) == pytest.approx(10 * wave * OTHER / BYTES, abs=1)
    assert takes(10 * wave // 1024, 1024) == takes(10 * wave // 256)


def test_a_block_computes_on_one_multiprocessor(takes):
    """Products: a block has 2 x 128 x 128 x 1024 operations, at 2048 per clock of 1.41 GHz."""
    one = 2 * 128 * 128 * 1024 / (2048 * 1.41)
    assert takes(1, name=b"cutlass_80_gemm") == takes(SMS, name=b"cutlass_80_gemm") == int(one)
    assert takes(SMS + 1, name=b"cutlass_80_gemm") == int(2 * one)


def test_attention_grows_with_the_keys(takes):
    short, long = (takes(SMS * columns, 128, b"_Z16flash_fwd_kernelv", columns) for columns in (8, 80))
    assert long == pytest.approx(100 * short, rel=1e-3)  # ten times the blocks, each with ten times the keys


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "fit"),
    [
        (1024, 32, 0, 2),
        (32, 32, 0, 32),  # at most as many blocks
        (33, 32, 0, 32),
        (256, 64, 0, 4),
        (256, 65, 0, 3),  # a warp gets registers in multiples of 256
        (128, 32, 48 << 10, 3),
        (128, 32, SHARED - RESERVED, 1),
        (128, 32, SHARED, 0),
    ],
)
def test_what_fits_a_multiprocessor(rule, threads, registers, shared, fit):
    assert rule.sim_resident_blocks(threads, registers, shared) == fit


PROGRAM = """
import ctypes
from ctypes import byref, c_size_t, c_uint, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def ok(status):
    assert status == 0, status
ok(cuda.cuInit(0))
context = c_void_p()
ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
image = b'''.version 7.0
.target sm_80
.address_size 64
.visible .entry work()
{
  .shared .align 4 .b8 tile[65536];
  ret;
}
'''
"""


def cubin(registers, shared):
    """A binary with the kernel `work`, whose resource needs are written as ptxas writes them."""
    allocated, strings, no_bytes = 2, 3, 8
    texts = [b"", b".shstrtab", b".text.work", b".nv.shared.work"]
    names = (b"\0".join(texts) + b"\0").ljust(64, b"\0")
    rows = [
        (0, 0, 0, 0, 0),
        (strings, 0, 64, len(names), 0),
        (1, allocated, 64, 0, registers << 24 | 7),
        (no_bytes, allocated, 64, shared, 2),
    ]
    table = [
        struct.pack("<IIQQQQIIQQ", names.index(text + b"\0"), kind, flags, 0, at, size, 0, info, 1, 0)
        for text, (kind, flags, at, size, info) in zip(texts, rows, strict=True)
    ]
    head = (b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, 64 + len(names), 0, 64, 0, 0, 64, len(rows), 1)
    return struct.pack("<16sHHIQQQIHHHHHH", *head) + names + b"".join(table)


def fatbin(*parts):
    packed = b""
    for architecture, data in parts:
        packed += struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(data), 0, 0, 8, 1, architecture, 0, 0, 0x11, 0, 0)
        packed += data
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(packed)) + packed


DRIVER = """
module, function, fit = c_void_p(), c_void_p(), ctypes.c_int()
ok(cuda.cuModuleLoadData(byref(module), image))
ok(cuda.cuModuleGetFunction(byref(function), module, b"work"))
ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(fit), function, 64, c_size_t(0)))
assert fit.value == 2
ok(cuda.cuLaunchKernel(function, GRID, 1, 1, 64, 1, 1, 0, None, None, None))
ok(cuda.cuCtxSynchronize())
"""
RUNTIME = """
rt = ctypes.CDLL("libcudart.so.13")
class Dim(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]
library, kernel = c_void_p(), c_void_p()
ok(rt.cudaLibraryLoadData(byref(library), image, None, None, 0, None, None, 0))
ok(rt.cudaLibraryGetKernel(byref(kernel), library, b"work"))
ok(rt.cudaLaunchKernel(kernel, Dim(GRID, 1, 1), Dim(64, 1, 1), None, c_size_t(0), None))
ok(rt.cudaDeviceSynchronize())
"""


NEEDS = """
module, function, value = c_void_p(), c_void_p(), ctypes.c_int()
ok(cuda.cuModuleLoadData(byref(module), IMAGE))
ok(cuda.cuModuleGetFunction(byref(function), module, b"work"))
for attribute in (4, 1):
    ok(cuda.cuFuncGetAttribute(byref(value), attribute, function))
    print(value.value)
ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(value), function, 256, c_size_t(0)))
print(value.value)
"""


@pytest.mark.parametrize(
    ("image", "registers", "shared", "fit"),
    [
        (cubin(128, 100), 128, 100, 2),
        (cubin(40, 30_000), 40, 30_000, 5),
        (fatbin((80, cubin(64, 0)), (75, cubin(16, 0)), (90, cubin(255, 0))), 64, 0, 4),
        (fatbin((90, cubin(255, 0))), 32, 0, 8),  # no binary for this device: as if the image declared nothing
    ],
    ids=["cubin", "shared memory", "fatbin", "another device's"],
)
def test_what_a_binary_declares_of_its_kernels(sim, image, registers, shared, fit):
    printed = sim.python(PROGRAM + NEEDS.replace("IMAGE", repr(image)))
    assert [int(line) for line in printed.split()] == [registers, shared, fit]


@pytest.mark.parametrize("launch", [DRIVER, RUNTIME], ids=["driver", "runtime"])
@pytest.mark.parametrize(
    ("options", "grid", "expected"),
    [((), 1, SHORTEST), ((), 7 * 2 * SMS + 1, 8_000), (("--kernel-ns", "12345"), 7 * 2 * SMS + 1, 12_345)],
)
def test_the_device_takes_that_long(simulator, launch, options, grid, expected):
    """By the shared memory that the image states, two blocks fit: waves of 1 us. --kernel-ns is taken as it is."""
    simulator.start(*options)
    simulator.python(PROGRAM + launch.replace("GRID", str(grid)))
    assert simulator.device()["busy_ns"] == expected
