"""Binary programs: the memory declared by a cubin, a fatbin or its wrapper is charged."""

import struct
from pathlib import Path

import pytest
from pages.handmade import Grant
from run.driverclient import CONTEXT, MIB
from run.interposed import Interpose, Interposed, chunks

ALLOCATED, NO_BYTES = 2, 8  # SHF_ALLOC, SHT_NOBITS
FATBIN, WRAPPER = 0xBA55ED50, 0x466243B1
PTX, CUBIN = 1, 2


def cubin(*sections: tuple[int, int]) -> bytes:
    """A cubin with sections of (flags, size) that have no contents in the file, such as the zeroed memory of
    .nv.global."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, len(sections), 0
    )
    table = [struct.pack("<IIQQQQIIQQ", 0, NO_BYTES, flags, 0, 64, size, 0, 0, 1, 0) for flags, size in sections]
    return header + b"".join(table)


def fatbin(*parts: tuple[int, int, bytes, int, int]) -> bytes:
    """A fatbin with parts of (kind, architecture, data, compressed size, size before compression), as nvcc 13 writes
    them. The simulated device has compute capability 8.0."""
    packed = b""
    for kind, architecture, data, compressed, plain in parts:
        header = (kind, 0x101, 64, len(data), compressed, 0, 8, 1, architecture, 0, 0, 0x8011, 0, plain)
        packed += struct.pack("<HHIQIIHHIIIQQQ", *header) + data
    return struct.pack("<IHHQ", FATBIN, 1, 16, len(packed)) + packed


BIG, SMALL = cubin((ALLOCATED, 5 * MIB), (0, 80 * MIB), (ALLOCATED, 100)), cubin((ALLOCATED, MIB))
TEXT = b'.version 7.0\n.target sm_52\n.address_size 64\n// "\n.global .b8 named[7000000]; \n.file 1 "a{b"\n\0'
IMAGES = {
    "a cubin": (BIG, 5 * MIB + 512),
    "a cubin of nothing": (cubin((0, 80 * MIB)), 0),
    "the largest where none fits": (
        fatbin((CUBIN, 90, SMALL, 0, 0), (CUBIN, 75, BIG, 0, 0), (PTX, 90, TEXT, 0, 0)),
        7 * 1000 * 1000 + 4096,
    ),
    "the cubin of this device": (
        fatbin((CUBIN, 75, BIG, 0, 0), (CUBIN, 80, SMALL, 0, 0), (CUBIN, 86, BIG, 0, 0), (PTX, 80, TEXT, 0, 0)),
        MIB,
    ),
    "the larger of two for this device": (fatbin((CUBIN, 80, SMALL, 0, 0), (CUBIN, 80, BIG, 0, 0)), 5 * MIB + 512),
    "the newest PTX that it can compile": (
        fatbin(
            (PTX, 52, TEXT, 0, 0), (PTX, 75, b"?" * 800, 800, 3 * MIB), (PTX, 90, TEXT, 0, 0), (CUBIN, 90, BIG, 0, 0)
        ),
        3 * MIB,
    ),
    "a compressed part": (fatbin((CUBIN, 75, SMALL, 0, 0), (PTX, 75, b"?" * 800, 800, 11 * MIB)), 11 * MIB),
    "a part that claims to have shrunk": (fatbin((PTX, 75, b"?" * 3 * MIB, 3 * MIB, 5)), 3 * MIB),
    "a fatbin in a fatbin": (fatbin((CUBIN, 80, fatbin((CUBIN, 80, SMALL, 0, 0)), 0, 0)), 0),
    "a part beyond the end": (fatbin((CUBIN, 80, SMALL, 0, 0))[:-1] + b"\0", MIB),
    "a part without a header": (struct.pack("<IHHQ", FATBIN, 1, 16, 64) + bytes(64), 0),
}


WAYS = {
    "data": ("m = ok(d.cuModuleLoadData(data))", "ok(d.cuModuleUnload(m))"),
    "data with options": ("m = ok(d.cuModuleLoadDataEx(data, 0, [], []))", "ok(d.cuModuleUnload(m))"),
    "file": ("m = ok(d.cuModuleLoad(path))", "ok(d.cuModuleUnload(m))"),
    "wrapper": ("m = ok(d.cuModuleLoadFatBinary(ctypes.addressof(wrapper)))", "ok(d.cuModuleUnload(m))"),
    "library": (
        "l = ok(d.cuLibraryLoadData(data, None, None, 0, None, None, 0)); ok(d.cuLibraryGetModule(l))",
        "ok(d.cuLibraryUnload(l))",
    ),
}


@pytest.fixture
def worker(grant: Grant, interpose: Interpose) -> Interposed:
    made = interpose(grant)
    made.do("import ctypes")
    return made


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("way", WAYS)
def test_binaries(worker: Interposed, tmp_path: Path, way: str, name: str) -> None:
    image, taken = IMAGES[name]
    path = tmp_path / "image"
    path.write_bytes(image)
    worker.do(f"path = {str(path)!r}.encode(); data = open(path, 'rb').read()")
    worker.do(f"""
        at = ctypes.create_string_buffer(data)
        wrapper = (ctypes.c_uint64 * 3)({WRAPPER} | 1 << 32, ctypes.addressof(at), 0)
    """)
    load, unload = WAYS[way]
    worker.do(load)
    held = worker.charged() - CONTEXT
    assert chunks(taken) <= held <= chunks(taken + 4096)
    worker.do(unload)
    assert worker.charged() == CONTEXT


KERNELS, CODE, TABLE = 5, 20_000_000, 3_000_000
LIBRARY = f".version 7.0\n.target sm_52\n.address_size 64\n.global .b8 table[{TABLE}];\n//{'x' * CODE}\n" + "".join(
    f".visible .entry k{i}()\n{{\n\tret;\n}}\n" for i in range(KERNELS)
)


def parts(count: int) -> int:
    """The charge for the variables and `count` kernels."""
    return chunks(-(-TABLE // 512) * 512 + count * -(-len(LIBRARY) // KERNELS))


@pytest.fixture
def library(worker: Interposed, tmp_path: Path) -> Interposed:
    path = tmp_path / "library"
    path.write_text(LIBRARY)
    worker.do(f"l = ok(d.cuLibraryLoadFromFile({str(path).encode()!r}, None, None, 0, None, None, 0))")
    worker.do("def launch(k): ok(d.cuLaunchKernel(d.CUfunction(int(k)), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))")
    worker.do(f"ks = ok(d.cuLibraryEnumerateKernels({KERNELS}, l))")
    assert worker.charged() == CONTEXT
    return worker


def test_the_kernels_of_a_library_come_one_by_one(library: Interposed) -> None:
    """As the driver loads them: a program that uses one kernel of a large library does not have all of it on the
    device."""
    library.do("ok(d.cuLibraryGetGlobal(l, b'table'))")
    assert library.charged() - CONTEXT == parts(0)
    for used in range(1, KERNELS + 1):
        for _ in range(2):
            library.do(f"launch(ks[{used - 1}])")
            assert library.charged() - CONTEXT == parts(used)
    library.do("ok(d.cuKernelGetFunction(ks[0])); ok(d.cuLibraryGetGlobal(l, b'table'))")
    assert library.charged() - CONTEXT == parts(KERNELS)
    library.do("ok(d.cuLibraryUnload(l))")
    assert library.charged() == CONTEXT


def test_a_librarys_module_is_all_of_it(library: Interposed) -> None:
    library.do("launch(ks[1]); ok(d.cuLibraryGetModule(l))")
    assert library.charged() - CONTEXT == parts(KERNELS + 1)
    library.do("launch(ks[2])")
    assert library.charged() - CONTEXT == parts(KERNELS + 1), "it is there already"
    library.do("ok(d.cuLibraryUnload(l))")
    assert library.charged() == CONTEXT


def test_parts_go_with_their_context(library: Interposed) -> None:
    library.do("launch(ks[0]); other = ok(d.cuCtxCreate(None, 0, 0)); launch(ks[0])")
    assert library.charged() == 2 * (CONTEXT + parts(1))
    library.do("ok(d.cuCtxDestroy(other)); ok(d.cuCtxSetCurrent(ctx))")
    assert library.charged() - CONTEXT == parts(1)
    library.do("ok(d.cuLibraryUnload(l))")
    assert library.charged() == CONTEXT


def test_a_part_that_does_not_fit_is_refused_and_charged_nothing(library: Interposed) -> None:
    library.do("free, _ = ok(d.cuMemGetInfo()); p = ok(d.cuMemAlloc(free - 3000320))")
    full = library.charged()
    refused = "d.cuLaunchKernel(d.CUfunction(int(ks[1])), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"
    assert library.error(refused) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert library.charged() == full, "its variables had fitted"
    library.do("ok(d.cuMemFree(p)); launch(ks[1])")
    assert library.charged() - CONTEXT == parts(1)
