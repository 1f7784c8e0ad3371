"""Driver failures that are rare in practice: the program gets the driver's result, and the accounting matches the
simulator."""

from pathlib import Path

import pytest
from pages.handmade import MS, Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import CHUNK, Faults, Interpose, Interposed, ptx

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "native"
UNKNOWN, OUT = "CUDA_ERROR_UNKNOWN", "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def worker(faults: Faults, grant: Grant, interpose: Interpose) -> Interposed:
    return interpose(grant)


ARRAY = "made(d.CUDA_ARRAY3D_DESCRIPTOR, Width=1000, Height=300, Depth=0, Format=d.CUarray_format({}), NumChannels=1)"
FLOATS = ARRAY.format(0x20)

FREES = {
    "cuMemFree_v2": ("p = ok(d.cuMemAlloc(3000000))", "d.cuMemFree(p)"),
    "cuMemFree_v2 of a block": ("p = ok(d.cuMemAllocAsync(3000000, 0))", "d.cuMemFree(p)"),
    "cuMemFreeAsync": ("p = ok(d.cuMemAlloc(3000000))", "d.cuMemFreeAsync(p, 0)"),
    "cuMemFreeAsync of a block": ("p = ok(d.cuMemAllocAsync(3000000, 0))", "d.cuMemFreeAsync(p, 0)"),
    "cuArrayDestroy": (f"a = ok(d.cuArray3DCreate({FLOATS}))", "d.cuArrayDestroy(a)"),
    "cuMipmappedArrayDestroy": (f"a = ok(d.cuMipmappedArrayCreate({FLOATS}, 2))", "d.cuMipmappedArrayDestroy(a)"),
    "cuMemRelease": ("h = ok(d.cuMemCreate(2 << 20, on_device(), 0))", "d.cuMemRelease(h)"),
    "cuModuleUnload": ("m = ok(d.cuModuleLoad(PROGRAM))", "d.cuModuleUnload(m)"),
    "cuLibraryUnload": (
        "l = ok(d.cuLibraryLoadFromFile(PROGRAM, None, None, 0, None, None, 0)); ok(d.cuLibraryGetModule(l))",
        "d.cuLibraryUnload(l)",
    ),
    "cuCtxDestroy_v2": ("c = ok(d.cuCtxCreate(None, 0, 0)); ok(d.cuCtxSetCurrent(ctx))", "d.cuCtxDestroy(c)"),
    "cuMemPoolDestroy": ("p = pool()", "d.cuMemPoolDestroy(p)"),
}


@pytest.mark.parametrize("case", FREES)
def test_what_the_driver_does_not_free_stays_charged(
    worker: Interposed, faults: Faults, tmp_path: Path, case: str
) -> None:
    name, (take, give) = case.split()[0], FREES[case]
    program = ptx(tmp_path / "p.ptx", ("k", 0))
    worker.do(f"PROGRAM = {str(program).encode()!r}; {take}")
    held = worker.charged()
    for _ in range(2):
        faults(**{name: 999})
        assert worker.error(give) == UNKNOWN
        assert worker.charged() == held
    faults()
    worker.do(f"ok({give}); ok(d.cuCtxSynchronize())")
    assert worker.error(give) != "CUDA_SUCCESS"
    assert worker.charged() == CONTEXT


def test_the_driver_is_asked_nothing_about_a_context_that_is_gone(worker: Interposed, faults: Faults) -> None:
    """A real driver may crash on such a handle; this one ends the program in cuCtxGetApiVersion."""
    faults(cuCtxGetApiVersion=-1)
    worker.do("c, a = ctypes.c_void_p(), ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(c), 0, 0) == 0")
    worker.do("assert lib.cuCtxAttach(ctypes.byref(a), 0) == lib.cuCtxAttach(ctypes.byref(a), 0) == 0")
    for left in (2 * CONTEXT, 2 * CONTEXT, CONTEXT):
        worker.do("assert lib.cuCtxDetach(c) == 0")
        assert worker.charged() == left
    assert worker.get("lib.cuCtxDetach(c)") != 0
    worker.do("ok(d.cuCtxSetCurrent(ctx))")


def test_an_attach_that_fails_holds_nothing(worker: Interposed, faults: Faults) -> None:
    worker.do("c, a = ctypes.c_void_p(), ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(c), 0, 0) == 0")
    faults(cuCtxAttach=999)
    assert worker.get("lib.cuCtxAttach(ctypes.byref(a), 0)") == 999
    assert worker.charged() == 2 * CONTEXT
    worker.do("assert lib.cuCtxDetach(c) == 0")
    assert worker.charged() == CONTEXT


MAKES = {
    "cuMemAlloc_v2": "d.cuMemAlloc(3000000)",
    "cuMemAllocManaged": "d.cuMemAllocManaged(3000000, 1)",
    "cuMemAllocAsync": "d.cuMemAllocAsync(3000000, 0)",
    "cuMemCreate": "d.cuMemCreate(2 << 20, on_device(), 0)",
    "cuMemPoolCreate": "d.cuMemPoolCreate(PROPERTIES)",
    "cuModuleLoadData": "d.cuModuleLoadData(TEXT)",
    "cuLibraryGetModule": "d.cuLibraryGetModule(l)",
    "cuLibraryGetGlobal": "d.cuLibraryGetGlobal(l, b'v')",
    "cuKernelGetFunction": "d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(l, b'k')))",
    "cuCtxSetLimit": "d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE, 4096)",
    "cuStreamBeginCapture_v2": ("d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)"),
}


@pytest.mark.parametrize("name", MAKES)
def test_what_the_driver_does_not_make_is_not_charged(
    worker: Interposed, faults: Faults, tmp_path: Path, name: str
) -> None:
    program = ptx(tmp_path / "p.ptx", ("k", 0), variables=".visible .global .b8 v[3000000];")
    worker.do(f"""
        TEXT = open({str(program)!r}, 'rb').read() + b'\\0'
        l = ok(d.cuLibraryLoadData(TEXT, None, None, 0, None, None, 0))
        s = ok(d.cuStreamCreate(1))
        PROPERTIES = d.CUmemPoolProps()
        PROPERTIES.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        PROPERTIES.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    """)
    faults(**{name: 999})
    for _ in range(2):
        assert worker.error(MAKES[name]) == UNKNOWN
        assert worker.charged() == CONTEXT
    faults()
    assert worker.error(MAKES[name]) == "CUDA_SUCCESS"
    worker.charged()


def test_rows_that_lie_wider_apart_than_known(worker: Interposed, faults: Faults, grant: Grant) -> None:
    faults(pitch=1)
    worker.do("p, pitch = ok(d.cuMemAllocPitch(1000, 1000, 4))")
    assert worker.get("pitch") > 1024
    held = worker.charged()
    assert held == CONTEXT + -(-1000 * worker.get("pitch") // CHUNK) * CHUNK
    grant.set_limit(held + 1000 * 1024 + MIB)
    assert worker.error("d.cuMemAllocPitch(1000, 1000, 4)") == OUT
    assert worker.charged() == held
    worker.do("ok(d.cuMemFree(p))")
    assert worker.charged() == CONTEXT


ARRAYS = [("cuArray3DCreate({})", "cuArrayDestroy"), ("cuMipmappedArrayCreate({}, 1)", "cuMipmappedArrayDestroy")]


@pytest.mark.parametrize("channel", [0x01, 0x03, 0x08, 0x10, 0x20])
@pytest.mark.parametrize(("create", "destroy"), ARRAYS)
def test_a_driver_without_deferred_arrays(worker: Interposed, channel: int, create: str, destroy: str) -> None:
    """The size of an array is known only after its creation."""
    worker.do(f"a = ok(d.{create.format(ARRAY.format(channel))})")
    assert CONTEXT + 300_000 <= worker.charged() <= CONTEXT + 1_300_000
    worker.do(f"ok(d.{destroy}(a))")
    assert worker.charged() == CONTEXT


@pytest.mark.parametrize("failing", [{}, {"cuArrayGetMemoryRequirements": 999}])
@pytest.mark.parametrize(("create", "destroy"), ARRAYS)
def test_a_driver_with_deferred_arrays(
    worker: Interposed, faults: Faults, grant: Grant, sim: Simulator, create: str, destroy: str, failing: dict[str, int]
) -> None:
    """An array without memory reports the size of one with memory, so an array that does not fit is never created."""
    faults(deferred=1, **failing)
    call = f"d.{create.format(FLOATS)}"
    grant.set_limit(CONTEXT + 1_200_000)
    assert worker.error(call) == OUT
    assert sim.books()["devices"][0]["peak_bytes"] == CONTEXT
    grant.set_limit(CONTEXT + 1_300_000)
    worker.do(f"a = ok({call})")
    assert CONTEXT + 1_200_000 <= worker.charged() <= CONTEXT + 1_300_000
    worker.do(f"ok(d.{destroy}(a))")
    assert worker.charged() == CONTEXT


@pytest.mark.parametrize(("create", "destroy"), ARRAYS)
def test_an_array_that_turns_out_too_large(
    worker: Interposed, faults: Faults, grant: Grant, create: str, destroy: str
) -> None:
    call = f"d.{create.format(FLOATS)}"
    grant.set_limit(CONTEXT + 2_000_000)
    faults(needs=2)
    assert worker.error(call) == OUT
    assert worker.charged() == CONTEXT
    faults()
    worker.do(f"ok(d.{destroy}(ok({call})))")
    assert worker.charged() == CONTEXT


SPIN = """
    import ctypes
    text = b'.version 7.0\\n.target sm_50\\n.address_size 64\\n'
    text += b'.visible .entry spin_ns(.param .u64 n)\\n{\\n  ret;\\n}\\n' + bytes(1)
    function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b'spin_ns'))
    s = ok(d.cuStreamCreate(1))
    value = ctypes.c_uint64(1000000); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    def spin(count, stream):
        for _ in range(count):
            ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(arguments), 0))
        ok(d.cuStreamSynchronize(stream))
"""


@pytest.mark.parametrize(
    ("failing", "least_ns"),
    [
        ("cuEventCreate", 20 * MS),
        ("cuEventRecord", 20 * MS),
        ("cuEventElapsedTime", 20 * MS),
        ("cuEventQuery", 0),  # a driver that returns this for an event has lost the whole context
    ],
)
def test_work_goes_on_when_it_cannot_be_timed(
    worker: Interposed, faults: Faults, grant: Grant, sim: Simulator, failing: str, least_ns: int
) -> None:
    """It stays gated and counted, and is charged its known duration."""
    worker.do(SPIN)
    worker.do("spin(40, s)")
    faults(**{failing: 999})
    before, launches = grant.slot(0).busy_ns, grant.slot(0).launches
    truth = sim.busy_ns(worker.pid)
    worker.do("t = ok(d.cuStreamCreate(1)); spin(40, s); spin(40, t)")
    assert sim.busy_ns(worker.pid) - truth >= 80 * MS
    assert grant.slot(0).launches == launches + 80
    assert grant.slot(0).busy_ns - before >= least_ns
    faults()
    grant.revoke()
    worker.do("import threading; work = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(ctx)), spin(1, t)))")
    worker.do("work.start()")
    assert worker.get("work.join(0.1) or work.is_alive()"), "a launch without a lease"
    grant.lease()
    worker.do("work.join(10)")
    assert not worker.get("work.is_alive()")


def test_a_free_in_stream_order_that_nothing_shows(worker: Interposed, faults: Faults) -> None:
    worker.do(SPIN)
    worker.do("p, q = ok(d.cuMemAlloc(3000000)), ok(d.cuMemAlloc(3000000))")
    before = worker.charged()
    faults(cuEventCreate=999)
    worker.do("ok(d.cuMemFreeAsync(p, s))")
    faults(cuEventRecord=999)
    worker.do("ok(d.cuMemFreeAsync(q, s)); ok(d.cuStreamSynchronize(s))")
    assert worker.charged() <= before - 2 * 3000000


WAIT = """
    import ctypes
    flag = ctypes.c_uint32.from_address(int(ok(d.cuMemHostAlloc(4096, 2)))); flag.value = 0
    at = ctypes.addressof(flag)
    s = ok(d.cuStreamCreate(1)); p, q = ok(d.cuMemAlloc(4 << 20)), ok(d.cuMemAlloc(4 << 20))
    gone = ok(d.cuStreamCreate(1))
"""
NO_EVENTS = {"cuEventCreate": -1, "cuEventRecord": -1}  # a call ends the program


@pytest.mark.parametrize("stream", ["s", "0"])
@pytest.mark.parametrize("profiled", [True, False])
def test_a_free_in_stream_order_without_an_event(
    faults: Faults, grant: Grant, monkeypatch: pytest.MonkeyPatch, stream: str, profiled: bool, interpose: Interpose
) -> None:
    """Under a profiler, which would show the interposer's events, or if recording fails: the memory stays charged until
    the stream is empty."""
    if profiled:
        monkeypatch.setenv("CUDA_INJECTION64_PATH", "/nonexistent/libprofiler.so")
    worker = interpose(grant)
    worker.do(WAIT)
    faults(**NO_EVENTS if profiled else {"cuEventRecord": 999})
    before = worker.charged()
    worker.do(f"ok(d.cuStreamWaitValue32({stream}, at, 1, 0)); ok(d.cuMemFreeAsync(p, {stream}))")
    worker.do("ok(d.cuStreamSynchronize(gone)); ok(d.cuMemFreeAsync(q, gone)); ok(d.cuStreamSynchronize(gone))")
    assert worker.charged() == before - 4 * MIB
    worker.do(f"ok(d.cuStreamDestroy(gone)); flag.value = 1; ok(d.cuStreamSynchronize({stream}))")
    assert worker.charged() == before - 8 * MIB


def test_a_profiled_free_whose_stream_is_gone(
    faults: Faults, grant: Grant, monkeypatch: pytest.MonkeyPatch, interpose: Interpose
) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/nonexistent/libprofiler.so")
    worker = interpose(grant)
    worker.do(WAIT)
    faults(**NO_EVENTS)
    before = worker.charged()
    worker.do("ok(d.cuStreamWaitValue32(s, at, 1, 0)); ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamDestroy(s))")
    worker.do("flag.value = 1; ok(d.cuCtxSynchronize())")
    assert worker.charged() == before - 4 * MIB


def test_a_kernel_that_the_driver_refuses(worker: Interposed, faults: Faults, grant: Grant, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("two", 2048))
    worker.do(f"m = ok(d.cuModuleLoad({str(program).encode()!r})); f = ok(d.cuModuleGetFunction(m, b'two'))")
    call = "d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"
    faults(cuLaunchKernel=999)
    assert worker.error(call) == UNKNOWN
    assert worker.charged() == CONTEXT + CHUNK
    faults()
    assert worker.error(call) == "CUDA_SUCCESS"
    assert worker.charged() > CONTEXT + CHUNK
