"""A full grant: other errors of a call are reported as by the driver alone, and requests that fit succeed."""

from pathlib import Path

import pytest
from memory.memorybooks import peak
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import Interpose, Interposed

OUT, FINE = "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_SUCCESS"
BUSY = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
HELPERS = """
    import ctypes
    def plain(name, *arguments):
        return d.CUresult(getattr(lib, name)(*arguments)),
    def array(width, height=0, depth=0, format=0x20, channels=1, flags=0):
        return made(d.CUDA_ARRAY3D_DESCRIPTOR, Width=width, Height=height, Depth=depth, Format=d.CUarray_format(format),
                    NumChannels=channels, Flags=flags)
    def odd(width, height=0, depth=0, format=0x20, channels=1, flags=0, levels=None):
        about = (ctypes.c_uint64 * 5)(width, height, depth, format | channels << 32, flags)
        if levels is None:
            return plain("cuArray3DCreate_v2", out, about)
        return plain("cuMipmappedArrayCreate", out, about, levels)
    handle = ctypes.c_void_p(); out = ctypes.byref(handle)
    wide = (ctypes.c_int * 4)(0, 4, 0, 0)
    params = (ctypes.c_uint64 * 3)(ctypes.addressof(wide), 1, 0)
    text = b".version 7.0\\n.target sm_52\\n.address_size 64\\n.global .b8 named[7000000];\\n"
"""


@pytest.fixture
def worker(grant: Grant, interpose: Interpose) -> Interposed:
    """In a grant with at most 1 MiB left."""
    made = interpose(grant)
    made.do(HELPERS)
    grant.set_limit(CONTEXT + MIB)
    return made


@pytest.fixture
def alone(interpose: Interpose) -> Interposed:
    made = interpose(None)
    made.do(HELPERS)
    return made


CREATE = {"cuCtxCreate": "", "cuCtxCreate_v2": "", "cuCtxCreate_v3": "None, 0, ", "cuCtxCreate_v4": "None, "}
CONTEXTS = {
    "unknown flags": "plain('{}', out, {}0x100, 0)",
    "two ways to wait": "plain('{}', out, {}3, 0)",
    "both": "plain('{}', out, {}0xffff, 0)",
    "nowhere": "plain('{}', out, {}0, 9)",
}
WRONG = {
    **{f"{name}, {what}": call.format(name, more) for name, more in CREATE.items() for what, call in CONTEXTS.items()},
    "some processors": "plain('cuCtxCreate_v3', out, wide, 1, 0, 0)",
    "no processors": "plain('cuCtxCreate_v3', out, None, 1, 0, 0)",
    "fewer than none": "plain('cuCtxCreate_v3', out, wide, -1, 0, 0)",
    "some processors, since 12.5": "plain('cuCtxCreate_v4', out, params, 0, 0)",
    "an unknown format": "odd(1 << 17, 100, format=0x7777)",
    "three channels": "odd(1 << 17, 100, channels=3)",
    "no channel": "odd(1 << 17, 100, channels=0)",
    "two channels of one": "odd(1 << 17, 100, format=0xc0, channels=2)",
    "no width": "odd(0, 1 << 17, 100)",
    "too wide": "odd(1 << 18, 100)",
    "depth without height": "odd(1 << 17, 0, 100)",
    "a cube with five sides": "odd(1024, 1024, 5, flags=4)",
    "sides that are not square": "odd(1024, 2048, 6, flags=4)",
    "unknown flags of an array": "odd(1 << 17, 100, flags=1 << 20)",
    "a mipmap without levels": "odd(1 << 17, 100, levels=0)",
    "a mipmap of many levels": "odd(1 << 17, 100, levels=99)",
    "a mipmap of an unknown format": "odd(1 << 17, 100, format=0x7777, levels=3)",
    "text that is no program": "d.cuModuleLoadData(b'.global .b8 named[7000000];\\0')",
    "a comment": "d.cuModuleLoadData(b'// .version 7.0\\n.global .b8 named[7000000];\\0')",
    "other text": "d.cuModuleLoadData(b'hello' * 1000000 + b'\\0')",
    "text for nvcc": "plain('cuModuleLoadFatBinary', out, b'hello' * 1000000)",
    "options of which nothing is said": "plain('cuModuleLoadDataEx', out, text, 3, None, None)",
    "a file that is no program": "d.cuModuleLoad(path)",
}


@pytest.mark.parametrize("what", WRONG)
def test_other_errors_are_reported(worker: Interposed, alone: Interposed, tmp_path: Path, what: str) -> None:
    (tmp_path / "text").write_bytes(b"hello" * MIB)
    for each in (worker, alone):
        each.do(f"path = {str(tmp_path / 'text').encode()!r}")
    answer = alone.error(WRONG[what])
    assert answer not in (OUT, FINE)
    assert worker.error(WRONG[what]) == answer
    assert worker.charged() == CONTEXT


RIGHT = {
    "a context": "plain('cuCtxCreate_v2', out, 4, 0)",
    "a context, v3": "plain('cuCtxCreate_v3', out, None, 0, 0xf8, 0)",
    "a context, v4": "plain('cuCtxCreate_v4', out, None, 1, 0)",
    "an array": "odd(1 << 17, 100)",
    "a layered array": "odd(1 << 17, 0, 100, flags=1)",
    "a cube": "odd(1024, 1024, 6, flags=4)",
    "a mipmap": "odd(1 << 17, 100, format=0xc5, channels=4, levels=17)",
    "a program": "d.cuModuleLoadData(b'/* a */ // b\\n' + text + b'\\0')",
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_is_right_does_not_fit(worker: Interposed, alone: Interposed, sim: Simulator, what: str) -> None:
    assert worker.error(RIGHT[what]) == OUT
    assert worker.charged() == CONTEXT
    assert peak(sim) == 2 * CONTEXT, "nothing was made to find out"
    assert alone.error(RIGHT[what]) == FINE


ALLOCATIONS = {
    "memory": "d.cuMemAlloc(2 << 20)",
    "memory, v1": "plain('cuMemAlloc', out, 2 << 20)",
    "rows": "d.cuMemAllocPitch(1 << 20, 2, 4)",
    "managed memory": "d.cuMemAllocManaged(2 << 20, 1)",
    "an array": "odd(1 << 17, 100)",
    "a mipmap": "odd(1 << 17, 100, levels=3)",
}


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("what", ALLOCATIONS)
def test_an_allocation_ends_a_capture_whether_it_fits_or_not(
    worker: Interposed, alone: Interposed, what: str, mode: int
) -> None:
    """Modes global, thread-local and relaxed; only relaxed allows allocations."""
    answers = []
    for each in (alone, worker):
        each.do(f"s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode({mode})))")
        answers.append((each.error(ALLOCATIONS[what]), each.error("d.cuStreamEndCapture(s)")))
    assert answers[0] == ((FINE, FINE) if mode == 2 else (BUSY, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"))
    assert answers[1] == ((OUT, FINE) if mode == 2 else answers[0])
    assert worker.charged() == CONTEXT


ARRAYS = {
    "a mipmap of planes": ("4096, 3840, format=0x20, levels=13", 4096 * 3840 * 4),
    "a mipmap of cubes": ("256, 256, 240, format=0x20, levels=9", 256 * 256 * 240 * 4),
    "a mipmap of layers": ("1024, 1024, 15, format=0x20, flags=1, levels=11", 1024 * 1024 * 15 * 4),
    "a mipmap of lines": ("131072, format=0x20, channels=4, levels=18", 131072 * 16),
    "some levels": ("4096, 3840, format=0x20, levels=2", 4096 * 3840 * 4),
    "one level": ("4096, 3840, format=0x20, levels=1", 4096 * 3840 * 4),
    "normalised bytes": ("8192, 4096, format=0xc0", 8192 * 4096),
    "two of them": ("8192, 4096, format=0xc7, channels=2", 8192 * 4096 * 2),
    "four normalised halves": ("2048, 4096, format=0xcb, channels=4", 2048 * 4096 * 8),
    "ten bits, and two": ("4096, 4096, format=0x50, channels=4", 4096 * 4096 * 4),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_an_array_fits_where_it_fits(
    worker: Interposed, alone: Interposed, sim: Simulator, grant: Grant, what: str
) -> None:
    """To the last byte of the driver's allocation."""
    arguments, base = ARRAYS[what]
    call = f"odd({arguments})"
    assert alone.error(call) == FINE
    taken = alone.truth() - CONTEXT
    assert base <= taken < base * 2 + 18 * 512
    grant.set_limit(CONTEXT + taken - 512)
    assert worker.error(call) == OUT
    grant.set_limit(CONTEXT + taken)
    assert worker.error(call) == FINE
    assert worker.charged() == CONTEXT + taken
