"""A process that cannot allocate host memory: a call that needs a record in the accounting is refused before the driver
is called, and everything works again as soon as there is memory."""

from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT
from run.interposed import Interpose, Interposed, Spawner, ptx
from run.simworker import Worker
from run.waiting import until

OUT, NOT_READY = "CUDA_ERROR_OUT_OF_MEMORY", 802
PLACES = 31  # records before a table first grows

# Between setting and resetting the limit there is only the call, because the interpreter needs memory too.
STARVE = """
    import ctypes, resource
    def starved(call):
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (0, hard))
        try:
            return call()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
"""

CALLS = {
    "cuMemAlloc": "d.cuMemAlloc(512)",
    "cuMemAllocManaged": "d.cuMemAllocManaged(512, 1)",
    "cuMemAllocPitch": "d.cuMemAllocPitch(512, 2, 4)",
    "cuMemAllocAsync": "d.cuMemAllocAsync(512, s)",
    "cuMemPoolCreate": "d.cuMemPoolCreate(properties)",
    "cuMemCreate": "d.cuMemCreate(2 << 20, physical, 0)",
    "cuMemMap": "d.cuMemMap(space, 2 << 20, 0, piece, 0)",
    "cuMemRetainAllocationHandle": "d.cuMemRetainAllocationHandle(mapped)",
    "cuMemImportFromShareableHandle": "d.cuMemImportFromShareableHandle(shared, kind)",
    "cuMemPoolImportFromShareableHandle": "d.cuMemPoolImportFromShareableHandle(shared, kind, 0)",
    "cuArray3DCreate": "d.cuArray3DCreate(array)",
    "cuMipmappedArrayCreate": "d.cuMipmappedArrayCreate(array, 2)",
    "cuCtxCreate": "d.cuCtxCreate(None, 0, 0)",
    "cuModuleLoad": "d.cuModuleLoad(path)",
    "cuModuleLoadData": "d.cuModuleLoadData(text)",
    "cuLibraryLoadData": "d.cuLibraryLoadData(text, None, None, 0, None, None, 0)",
    "cuLibraryLoadFromFile": "d.cuLibraryLoadFromFile(path, None, None, 0, None, None, 0)",
    "cuLibraryGetModule": "d.cuLibraryGetModule(library)",
    "cuMulticastCreate": "d.cuMulticastCreate(object)",
    "cuMulticastBindMem": "d.cuMulticastBindMem(multicast, 0, piece, 0, 2 << 20, 0)",
    "cuMulticastBindAddr": "d.cuMulticastBindAddr(multicast, 0, mapped, 2 << 20, 0)",
    "cuGraphInstantiate": "d.cuGraphInstantiate(graph, 0)",
}


@pytest.fixture
def worker(grant: Grant, tmp_path: Path, interpose: Interpose) -> Interposed:
    made = interpose(grant)
    program = ptx(tmp_path / "p.ptx", ("k", 0))
    made.do(STARVE)
    made.do(f"""
        path = {str(program).encode()!r}
        text = open(path, 'rb').read() + bytes(1)
        s = ok(d.cuStreamCreate(1))
        kind = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        physical = on_device(kind)
        piece = ok(d.cuMemCreate(2 << 20, physical, 0))
        shared = ok(d.cuMemExportToShareableHandle(piece, kind, 0))
        space = ok(d.cuMemAddressReserve(4 << 20, 0, 0, 0))
        mapped = d.CUdeviceptr(int(space) + (2 << 20))
        ok(d.cuMemMap(mapped, 2 << 20, 0, piece, 0)); ok(d.cuMemSetAccess(mapped, 2 << 20, [access()], 1))
        properties = d.CUmemPoolProps()
        properties.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = physical.location
        array = d.CUDA_ARRAY3D_DESCRIPTOR()
        array.Width, array.Height, array.Format, array.NumChannels = 64, 64, d.CUarray_format(0x20), 1
        library = ok(d.cuLibraryLoadData(text, None, None, 0, None, None, 0))
        object = made(d.CUmulticastObjectProp, numDevices=1, size=2 << 20)
        multicast = ok(d.cuMulticastCreate(object)); ok(d.cuMulticastAddDevice(multicast, 0))
        function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b'k'))
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))
        graph = ok(d.cuStreamEndCapture(s))
        many = [ok(d.cuMemAlloc(512)) for _ in range({PLACES})]
        pieces = [ok(d.cuMemCreate(2 << 20, physical, 0)) for _ in range({PLACES - 2})]
        wide = ok(d.cuMemAddressReserve({PLACES} * (2 << 20), 0, 0, 0))
        for i in range({PLACES - 1}):
            ok(d.cuMemMap(d.CUdeviceptr(int(wide) + i * (2 << 20)), 2 << 20, 0, piece, 0))
        libraries = [ok(d.cuLibraryLoadData(text, None, None, 0, None, None, 0)) for _ in range({PLACES - 1})]
        ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(libraries[0], b'k'))))
        for one in libraries[:{PLACES // 2}]:  # code and variables: two records each, but three of the first
            ok(d.cuLibraryGetModule(one))
    """)
    return made


def test_full_books_refuse_and_lose_nothing(worker: Interposed) -> None:
    # Programs: the simulated driver needs no additional system memory for them at this point.
    worker.do("""
        def more(most):
            found = []
            while len(found) < most:
                result, module = d.cuModuleLoadData(text)
                if result != d.CUresult.CUDA_SUCCESS:
                    break
                found.append(module)
            return found
        warm = more(45); [ok(d.cuModuleUnload(module)) for module in warm]
        programs = starved(lambda: more(80))
    """)
    assert worker.get("len(programs)") < 80, "the books did grow"
    held = worker.charged()
    answers = {name: worker.error(f"starved(lambda: {call})") for name, call in CALLS.items()}
    assert answers == dict.fromkeys(CALLS, OUT)
    assert worker.charged() == held
    for name, call in CALLS.items():
        if "Import" not in name:
            assert worker.error(call) in ("CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"), name
        worker.charged()


def test_a_limit_is_refused_without_a_place_for_it(grant: Grant, interpose: Interpose) -> None:
    made = interpose(grant)
    made.do(STARVE)
    call = "d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20)"
    held = made.charged()
    assert made.error(f"starved(lambda: {call})") == OUT
    assert made.charged() == held
    assert made.error(call) == "CUDA_SUCCESS"


def test_work_goes_on_without_places_for_streams(worker: Interposed, grant: Grant) -> None:
    """A stream without a record is gated, and charged by residency."""
    worker.do("t = ok(d.cuStreamCreate(1)); launch = lambda: d.cuLaunchKernel(function, 1,1,1, 1,1,1, 0, t, 0, 0)")
    worker.do("ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))")
    launches = grant.slot(0).launches
    assert worker.error("starved(launch)") == "CUDA_SUCCESS"
    assert grant.slot(0).launches > launches
    assert grant.slot(0).inflight > 0
    grant.revoke()
    worker.do(
        "import threading; thread = threading.Thread(target=lambda: ok(d.cuCtxSetCurrent(ctx)) or starved(launch))"
    )
    worker.do("thread.start()")
    assert worker.get("thread.join(0.1) or thread.is_alive()")
    grant.lease()
    worker.do("thread.join(10)")
    assert not worker.get("thread.is_alive()")
    assert worker.error("launch()") == "CUDA_SUCCESS"
    assert grant.slot(0).launches > launches


def test_the_first_call_can_be_made_again(grant: Grant, sim: Simulator) -> None:
    worker = Worker(Spawner(sim, grant))
    try:
        worker.do(STARVE)
        assert worker.get("starved(lambda: lib.cuInit(0))") == NOT_READY
        assert grant.connections == 0
        worker.do("ok(d.cuInit(0)); ctx = context()")
        until(lambda: grant.connections == 1, "it has joined")  # it is answered before it is counted
    finally:
        worker.process.kill()
        worker.process.communicate()


def test_nothing_is_left_charged_by_a_context_that_starved(worker: Interposed) -> None:
    before = worker.charged()
    worker.do("starved(lambda: d.cuCtxCreate(None, 0, 0))")
    assert worker.charged() in (before, before + CONTEXT)
