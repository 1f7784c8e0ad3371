"""Device memory lives as long as anything keeps it: a handle, a mapping, an import or an open descriptor, in this
process or another. The engine's books agree at any instant."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from run.simulated import CONTEXT
from run.simworker import Worker, WorkerError, held, start
from run.waiting import until

GRAIN = 2 << 20
STEP = 32 << 20  # by which a pool grows
INVALID = "CUDA_ERROR_INVALID_VALUE"
PREPARE = """
    import os
    FILE = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    GRAIN = 2 << 20
    def create(pieces=1):
        return ok(d.cuMemCreate(pieces * GRAIN, on_device(FILE), 0))
    def export(handle):
        return int(ok(d.cuMemExportToShareableHandle(handle, FILE, 0)))
    def take(fd):
        return ok(d.cuMemImportFromShareableHandle(fd, FILE))
    def opened(pid, fd):
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    def mapped(handle, pieces=1):
        at = ok(d.cuMemAddressReserve(pieces * GRAIN, 0, 0, 0)); ok(d.cuMemMap(at, pieces * GRAIN, 0, handle, 0))
        ok(d.cuMemSetAccess(at, pieces * GRAIN, [access()], 1))
        return at
    def external(fd, pieces=1):
        description = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
        description.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
        description.handle.fd, description.size = fd, pieces * GRAIN
        return ok(d.cuImportExternalMemory(description))
    def buffer(of):
        description = d.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
        description.size = GRAIN
        return ok(d.cuExternalMemoryGetMappedBuffer(of, description))
    def block_id(at):
        return int(ok(d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at)))
    def ipc(name):
        handle = d.CUipcMemHandle(); ctypes.memmove(handle.getPtr(), bytes(name), 64)
        return handle
    def shared_pool():
        properties = d.CUmemPoolProps()
        properties.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.handleTypes = FILE
        return ok(d.cuMemPoolCreate(properties))
    def pointer(name):
        data = d.CUmemPoolPtrExportData(); ctypes.memmove(data.getPtr(), bytes(name), 64)
        return data
"""
NAME = "list(ctypes.string_at({}.getPtr(), 64))"


def prepared(sim: Any) -> Worker:
    worker = start(sim)
    worker.do(PREPARE)
    return worker


def checked(worker: Worker) -> Iterator[Worker]:
    """At the end, if the worker still lives, its own objects add up to what the books say."""
    yield worker
    if worker.process.poll() is None:
        worker.do("from memory import holds; holds.check_books()")


@pytest.fixture
def one(sim: Any) -> Iterator[Worker]:
    yield from checked(prepared(sim))


@pytest.fixture
def two(sim: Any) -> Iterator[Worker]:
    yield from checked(prepared(sim))


def end(sim: Any, worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait(10)
    until(lambda: not sim.process(worker.pid)["alive"], "the engine sees the end")


def extra(sim: Any, contexts: int) -> int:
    """Bytes in use on the device beyond the contexts."""
    return int(sim.device()["bytes"]) - contexts * CONTEXT


# ---- physical memory


def test_imported_in_the_same_process_and_the_original_released(sim: Any, one: Worker) -> None:
    one.do("h = create(4); fd = export(h); k = take(fd); put(mapped(h, 4), b'kept')")
    assert one.get("int(h) != int(k)")
    one.do("ok(d.cuMemRelease(h)); os.close(fd)")
    assert held(sim, one) == 4 * GRAIN
    one.do("ok(d.cuMemUnmap(mapped(k, 4), 4 * GRAIN))")
    one.do("at = mapped(k, 4); ok(d.cuMemRelease(k))")
    assert one.get("get(at, 4) == b'kept'")
    assert held(sim, one) == 4 * GRAIN


@pytest.mark.parametrize(
    "order",
    ["h k fd at", "fd at k h", "at h fd k", "k at h fd", "h at fd k"],
)
def test_the_last_of_all_frees(sim: Any, one: Worker, order: str) -> None:
    one.do("h = create(); fd = export(h); k = take(fd); at = mapped(k)")
    steps = {"h": "ok(d.cuMemRelease(h))", "k": "ok(d.cuMemRelease(k))", "fd": "os.close(fd)"}
    steps["at"] = "ok(d.cuMemUnmap(at, GRAIN))"
    for name in order.split():
        assert held(sim, one) == GRAIN
        one.do(steps[name])
    assert held(sim, one) == 0
    assert one.error("d.cuMemRelease(h)") == INVALID
    assert sim.device()["peak_bytes"] == CONTEXT + GRAIN


def test_a_descriptor_alone_keeps_memory(sim: Any, one: Worker) -> None:
    """Copies of the descriptor count, as do those of other processes and those exported later; nothing else does."""
    one.do("h = create(); fd = export(h); fd2 = export(h); fd3 = os.dup(fd); ok(d.cuMemRelease(h))")
    one.do("os.close(fd); os.close(fd2)")
    assert held(sim, one) == GRAIN
    elsewhere = os.open(f"/proc/{one.pid}/fd/{one.get('fd3')}", os.O_RDWR)  # not a client of the device
    one.do("os.close(fd3)")
    assert held(sim, one) == GRAIN
    one.do(f"fd = opened({os.getpid()}, {elsewhere}); h = take(fd); os.close(fd); fd = export(h)")
    os.close(elsewhere)
    one.do("ok(d.cuMemRelease(h)); k = take(fd); os.close(fd); at = mapped(k); ok(d.cuMemRelease(k))")
    assert held(sim, one) == GRAIN
    one.do("ok(d.cuMemUnmap(at, GRAIN))")
    assert held(sim, one) == 0


def test_memory_is_not_seen_freed_later_than_its_last_descriptor_is_closed(sim: Any, one: Worker) -> None:
    one.do("""
        def free():
            return int(ok(d.cuMemGetInfo())[0])
        before, wrong = free(), 0
        for _ in range(200):
            h = create(); fd = export(h); ok(d.cuMemRelease(h))
            wrong += free() != before - GRAIN
            os.close(fd)
            wrong += free() != before
    """)
    assert one.get("wrong") == 0


def test_the_charge_follows_the_memory_when_its_creator_dies(sim: Any, one: Worker, two: Worker) -> None:
    one.do("h = create(3); fd = export(h)")
    three = prepared(sim)
    for worker in (two, three):
        worker.do(f"fd = opened({one.pid}, {one.get('fd')}); h = take(fd); at = mapped(h, 3)")
    two.do("put(at, b'survives')")
    assert (held(sim, one), held(sim, two), held(sim, three)) == (3 * GRAIN, 0, 0)
    end(sim, one)
    assert (held(sim, two), held(sim, three)) == (3 * GRAIN, 0)
    two.do("ok(d.cuMemUnmap(at, 3 * GRAIN)); ok(d.cuMemRelease(h)); os.close(fd)")
    assert (held(sim, two), held(sim, three)) == (3 * GRAIN, 0), "it stays where it is charged"
    end(sim, two)
    assert held(sim, three) == 3 * GRAIN
    assert three.get("get(at, 8) == b'survives'")
    three.do("ok(d.cuMemUnmap(at, 3 * GRAIN)); ok(d.cuMemRelease(h)); os.close(fd)")
    assert extra(sim, 1) == 0


def test_memory_that_no_process_of_the_device_has(sim: Any, one: Worker, two: Worker) -> None:
    one.do("h = create(); fd = export(h)")
    fd = os.open(f"/proc/{one.pid}/fd/{one.get('fd')}", os.O_RDWR)
    end(sim, one)
    assert sim.device()["unowned_bytes"] == extra(sim, 1) == GRAIN
    two.do(f"fd = opened({os.getpid()}, {fd}); h = take(fd); os.close(fd)")
    assert (sim.device()["unowned_bytes"], held(sim, two)) == (0, GRAIN)
    os.close(fd)
    two.do("ok(d.cuMemRelease(h))")
    assert extra(sim, 1) == 0


def test_external_memory_and_its_buffers(sim: Any, one: Worker, two: Worker) -> None:
    one.do("h = create(2); fd = export(h)")
    two.do(f"x = external(opened({one.pid}, {one.get('fd')}), 2); p = buffer(x); q = buffer(x)")
    one.do("os.close(fd); ok(d.cuMemRelease(h))")
    for line in ("d.cuDestroyExternalMemory(x)", "d.cuMemFree(p)", "d.cuMemFree(q)"):
        assert (held(sim, one), held(sim, two)) == (2 * GRAIN, 0), line
        two.do(f"ok({line})")
    assert extra(sim, 2) == 0


def test_a_binding_keeps_an_import(sim: Any, one: Worker) -> None:
    one.do("""
        h = create(); fd = export(h); k = take(fd); os.close(fd)
        m = ok(d.cuMulticastCreate(made(d.CUmulticastObjectProp, numDevices=1, size=4 * GRAIN)))
        ok(d.cuMulticastAddDevice(m, 0)); ok(d.cuMulticastBindMem(m, 0, k, 0, GRAIN, 0))
        ok(d.cuMemRelease(h)); ok(d.cuMemRelease(k))
    """)
    assert held(sim, one) == GRAIN
    one.do("ok(d.cuMemRelease(m))")
    assert held(sim, one) == 0


def test_imports_are_known_to_be_one_memory(one: Worker) -> None:
    one.do("h, g = create(), create(); a, b = mapped(h), mapped(g); before = block_id(a); k = take(export(h))")
    assert one.get("before == block_id(a) == block_id(mapped(k)) != block_id(b)")


def test_physical_memory_is_of_no_context(sim: Any, one: Worker) -> None:
    one.do("""
        ok(d.cuDevicePrimaryCtxRelease(0)); own = ok(d.cuCtxCreate(None, 0, 0))
        h, k = create(), create(); at = mapped(h); ok(d.cuMemRelease(h)); ok(d.cuCtxDestroy(own)); ctx = context()
    """)
    assert held(sim, one) == 2 * GRAIN
    one.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert held(sim, one) + CONTEXT == 2 * GRAIN
    one.do("ok(d.cuMemRelease(k)); ok(d.cuMemUnmap(at, GRAIN))")
    assert held(sim, one) + CONTEXT == 0


def test_every_kind_of_memory_is_in_the_sum(sim: Any, one: Worker) -> None:
    """The check itself: it leaves nothing out, and notices memory charged without an object."""
    kinds = """
        p = ok(d.cuMemAlloc(1000)); m = ok(d.cuMemAllocManaged(1000, 1)); h = create(3); at = mapped(h, 3)
        q = ok(d.cuMemAllocAsync(1000, 0)); own = pool(); r = ok(d.cuMemAllocFromPoolAsync(1000, own, 0))
        a = ok(d.cuArrayCreate(made(d.CUDA_ARRAY_DESCRIPTOR, Width=64, Height=64, NumChannels=1,
                                    Format=d.CUarray_format.CU_AD_FORMAT_FLOAT)))
        ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20)); c = ok(d.cuCtxCreate(None, 0, 0))
        s = ok(d.cuStreamCreate(1))
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        g = ok(d.cuMemAllocAsync(1000, s)); graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0))
        ok(d.cuGraphLaunch(graph, s)); ok(d.cuStreamSynchronize(s))
        fd = export(h); k = take(fd); x = external(os.dup(fd), 3); b = buffer(x); i = ok(d.cuIpcGetMemHandle(p))
        ok(d.cuDevicePrimaryCtxRetain(1))
        from memory import holds
    """
    one.do(kinds)
    assert held(sim, one) > 100 << 20
    one.do("holds.check_books(0); holds.check_books(1)")
    one.do(f"""
        import pathlib
        from run import simulated
        wire = simulated.Wire(pathlib.Path({str(sim.socket)!r}), simulated.CLIENT)
        wire.call(simulated.MEM_ALLOC, 0, 512)
    """)
    with pytest.raises(WorkerError, match=r"AssertionError: .* bytes are alive"):
        one.do("holds.check_books(0)")
    one.do("wire.call(simulated.MEM_FREE, 0, 512); wire.close()")


# ---- cuIpc


def test_what_an_importer_has_opened_is_not_freed_by_its_owner(sim: Any, one: Worker, two: Worker) -> None:
    one.do("p = ok(d.cuMemAlloc(6 << 20)); put(p, b'shared'); h = ok(d.cuIpcGetMemHandle(p))")
    name = one.get(NAME.format("h"))
    two.do(f"h = ipc({name}); q = ok(d.cuIpcOpenMemHandle(h, 1)); r = ok(d.cuIpcOpenMemHandle(h, 1))")
    one.do("ok(d.cuMemFree(p))")
    assert two.get("get(q, 6) == b'shared'")
    assert (held(sim, one), held(sim, two)) == (6 << 20, 0)
    three = prepared(sim)
    assert three.error(f"d.cuIpcOpenMemHandle(ipc({name}), 1)") == INVALID, "the owner has freed it"
    two.do("ok(d.cuIpcCloseMemHandle(q))")
    assert held(sim, one) == 6 << 20
    two.do("ok(d.cuIpcCloseMemHandle(q))")
    assert held(sim, one) == 0


@pytest.mark.parametrize("first", ["owner", "importer"])
def test_ipc_memory_and_deaths(sim: Any, one: Worker, two: Worker, first: str) -> None:
    one.do("p = ok(d.cuMemAlloc(6 << 20)); h = ok(d.cuIpcGetMemHandle(p))")
    two.do(f"q = ok(d.cuIpcOpenMemHandle(ipc({one.get(NAME.format('h'))}), 1))")
    dies, lives = (one, two) if first == "owner" else (two, one)
    end(sim, dies)
    assert held(sim, lives) == 6 << 20
    lives.do("ok(d.cuIpcCloseMemHandle(q))" if lives is two else "ok(d.cuMemFree(p))")
    assert extra(sim, 1) == 0


def test_an_importers_context_ends(sim: Any, one: Worker, two: Worker) -> None:
    one.do("p = ok(d.cuMemAlloc(6 << 20)); h = ok(d.cuIpcGetMemHandle(p))")
    two.do(f"""
        own = ok(d.cuCtxCreate(None, 0, 0)); q = ok(d.cuIpcOpenMemHandle(ipc({one.get(NAME.format("h"))}), 1))
    """)
    one.do("ok(d.cuMemFree(p))")
    assert held(sim, one) == 6 << 20
    two.do("ok(d.cuCtxDestroy(own))")
    assert held(sim, one) == 0


# ---- pools


SHARE = """
    s = ok(d.cuStreamCreate(1)); m = shared_pool(); fd = int(ok(d.cuMemPoolExportToShareableHandle(m, FILE, 0)))
    p = ok(d.cuMemAllocFromPoolAsync(1 << 20, m, s)); put(p, b"pooled"); e = ok(d.cuMemPoolExportPointer(p))
"""


@pytest.mark.parametrize("last", ["ok(d.cuMemFree(q))", "ok(d.cuMemFreeAsync(q, 0)); ok(d.cuStreamSynchronize(0))"])
def test_a_pool_ends_before_its_importers(sim: Any, one: Worker, two: Worker, last: str) -> None:
    one.do(SHARE)
    two.do(f"""
        m = ok(d.cuMemPoolImportFromShareableHandle(opened({one.pid}, {one.get("fd")}), FILE, 0))
        q = ok(d.cuMemPoolImportPointer(m, pointer({one.get(NAME.format("e"))})))
    """)
    one.do("ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamSynchronize(s)); ok(d.cuMemPoolDestroy(m)); os.close(fd)")
    assert (held(sim, one), held(sim, two)) == (STEP, 0)
    assert two.get("get(q, 6) == b'pooled'")
    two.do("ok(d.cuMemPoolDestroy(m))")
    assert held(sim, one) == STEP
    two.do(last)
    assert extra(sim, 2) == 0


def test_a_pointer_imported_where_it_was_exported(sim: Any, one: Worker) -> None:
    one.do(SHARE)
    one.do("k = ok(d.cuMemPoolImportFromShareableHandle(fd, FILE, 0)); q = ok(d.cuMemPoolImportPointer(k, e))")
    one.do("ok(d.cuMemFree(p)); ok(d.cuMemPoolTrimTo(m, 0)); ok(d.cuMemPoolDestroy(m)); ok(d.cuMemPoolDestroy(k))")
    assert held(sim, one) == STEP
    one.do("ok(d.cuMemFree(q))")
    assert held(sim, one) == 0


def test_an_exporting_pools_process_dies(sim: Any, one: Worker, two: Worker) -> None:
    one.do(SHARE)
    two.do(f"""
        m = ok(d.cuMemPoolImportFromShareableHandle(opened({one.pid}, {one.get("fd")}), FILE, 0))
        q = ok(d.cuMemPoolImportPointer(m, pointer({one.get(NAME.format("e"))})))
    """)
    end(sim, one)
    assert held(sim, two) == STEP
    two.do("ok(d.cuMemFree(q)); ok(d.cuMemPoolDestroy(m))")
    assert extra(sim, 1) == 0


def test_a_pointer_is_imported_from_its_own_pool_only(one: Worker, two: Worker) -> None:
    one.do(SHARE)
    one.do("other = shared_pool(); fd2 = int(ok(d.cuMemPoolExportToShareableHandle(other, FILE, 0)))")
    two.do(f"m = ok(d.cuMemPoolImportFromShareableHandle(opened({one.pid}, {one.get('fd2')}), FILE, 0))")
    assert two.error(f"d.cuMemPoolImportPointer(m, pointer({one.get(NAME.format('e'))}))") == INVALID


# ---- work that is queued when its memory goes


IMPORT = "q = ok(d.cuMemPoolImportPointer(ok(d.cuMemPoolImportFromShareableHandle(fd, FILE, 0)), e))"


@pytest.mark.parametrize(
    ("make", "free"),
    [
        (SHARE + "    " + IMPORT, "d.cuMemFreeAsync(q, t)"),
        ("q = ok(d.cuMemAlloc(64))", "d.cuMemFreeAsync(q, t)"),
        ("q = ok(d.cuMemAllocAsync(64, t)); ok(d.cuStreamSynchronize(t))", "d.cuMemFreeAsync(q, t)"),
    ],
    ids=["imported", "own", "pool"],
)
def test_work_that_comes_to_freed_memory_does_not_end_the_process(one: Worker, make: str, free: str) -> None:
    """A program that uses memory after freeing it in another stream is wrong, but a real device does not end it."""
    one.do("t = ok(d.cuStreamCreate(1))")
    one.do(make)
    one.do(f"""
        gate = ok(d.cuMemAlloc(4)); put(gate, bytes(4)); u = ok(d.cuStreamCreate(1))
        ok(d.cuStreamWaitValue32(u, gate, 1, 0))
        ok(d.cuMemsetD8Async(q, 1, 64, u)); ok(d.cuMemcpyDtoDAsync(q, q, 64, u))
        ok(d.cuStreamWriteValue32(u, q, 5, 0))
        ok({free}); ok(d.cuStreamSynchronize(t)); ok(d.cuMemPoolTrimTo(ok(d.cuDeviceGetDefaultMemPool(0)), 0))
        put(gate, bytes([1, 0, 0, 0])); ok(d.cuStreamSynchronize(u))
    """)
    one.end()


def test_a_graph_outlives_its_memory(one: Worker) -> None:
    """The process goes on; only of mapped memory does the device notice that it has left."""
    one.do("""
        q = ok(d.cuMemAlloc(64)); s = ok(d.cuStreamCreate(1)); at = mapped(create())
        def filled(memory):
            ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
            ok(d.cuMemsetD8Async(memory, 1, 64, s))
            return ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0))
        graphs = filled(q), filled(at)
        ok(d.cuMemFree(q)); ok(d.cuMemUnmap(at, GRAIN))
        ok(d.cuGraphLaunch(graphs[0], s)); ok(d.cuStreamSynchronize(s))
        ok(d.cuGraphLaunch(graphs[1], s))
    """)
    assert one.error("d.cuStreamSynchronize(s)") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    one.end()


GRAPH = """
    s = ok(d.cuStreamCreate(1)); trim = lambda: ok(d.cuDeviceGraphMemTrim(0))
    def launched(count=1):
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        p = ok(d.cuMemAllocAsync(3 * GRAIN, s)); graph = ok(d.cuStreamEndCapture(s))
        made = ok(d.cuGraphInstantiate(graph, 0))
        for _ in range(count):
            ok(d.cuGraphLaunch(made, s)); ok(d.cuStreamSynchronize(s))
        ok(d.cuGraphExecDestroy(made)); ok(d.cuGraphDestroy(graph)); trim()
        return p
"""


@pytest.mark.parametrize("free", ["d.cuMemFree(p)", "d.cuMemFreeAsync(p, s)"])
def test_memory_of_a_graph_outlives_the_graph(sim: Any, one: Worker, free: str) -> None:
    """The program must free what a launch has left allocated, whatever becomes of the graph."""
    one.do(GRAPH)
    one.do("p = launched(); put(p, b'kept')")
    assert held(sim, one) == 3 * GRAIN
    assert one.get("get(p, 4) == b'kept'")
    one.do(f"ok({free}); ok(d.cuStreamSynchronize(s)); trim()")
    assert held(sim, one) == 0
    assert one.error(free) == INVALID
    one.do("launched(0)")
    assert held(sim, one) == 0, "a graph that was never launched has no memory"


def test_memory_made_in_a_green_context_is_its_devices(sim: Any, one: Worker) -> None:
    """As its programs and limits do, it lives as long as the primary context."""
    one.do("""
        sms = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        green = ok(d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc([sms], 1)), 0, 1))
        ok(d.cuCtxSetCurrent(ok(d.cuCtxFromGreenCtx(green))))
        p = ok(d.cuMemAlloc(512)); q = ok(d.cuMemAllocAsync(512, 0)); h = ok(d.cuMemHostAlloc(512, 0))
        ok(d.cuStreamSynchronize(0)); ok(d.cuCtxSetCurrent(ctx)); ok(d.cuGreenCtxDestroy(green))
    """)
    assert held(sim, one) == STEP + 512
    one.do("ok(d.cuMemFree(p)); ok(d.cuMemFree(q)); ok(d.cuMemFreeHost(h))")
    one.do("ok(d.cuMemPoolTrimTo(ok(d.cuDeviceGetDefaultMemPool(0)), 0))")
    assert held(sim, one) == 0


RACE = """
    import random, threading
    from memory import holds
    SHARED = {name: [] for name in ("alloc", "async", "handle", "array", "context", "pool", "fd", "stream")}
    KEEP = 6
    def put_in(kind, value):
        SHARED[kind].append(value)
    def took(kind, r):
        try:
            return SHARED[kind].pop(r.randrange(len(SHARED[kind])))
        except (IndexError, ValueError):
            return None
    def any_of(kind, r):
        try:
            return r.choice(SHARED[kind])
        except IndexError:
            return None
    MAKE = {
        "alloc": lambda r: d.cuMemAlloc(r.choice((100, 5000, 3 << 20))),
        "async": lambda r: d.cuMemAllocFromPoolAsync(1000, any_of("pool", r) or base, any_of("stream", r) or 0),
        "handle": lambda r: d.cuMemCreate(GRAIN, on_device(FILE), 0),
        "array": lambda r: d.cuArrayCreate(plain),
        "context": lambda r: d.cuCtxCreate(None, 0, 0),
        "pool": lambda r: (0, pool()),
        "fd": lambda r: d.cuMemExportToShareableHandle(any_of("handle", r) or 0, FILE, 0),
        "stream": lambda r: d.cuStreamCreate(1),
    }
    def free(address, r):
        stream = any_of("stream", r)
        if stream is None or int(d.cuMemFreeAsync(address, stream)[0]):
            d.cuMemFree(address)
    END = {
        "alloc": free, "async": free,
        "handle": lambda v, r: d.cuMemRelease(v), "array": lambda v, r: d.cuArrayDestroy(v),
        "context": lambda v, r: d.cuCtxDestroy(v), "pool": lambda v, r: d.cuMemPoolDestroy(v),
        "fd": lambda v, r: os.close(int(v)), "stream": lambda v, r: d.cuStreamDestroy(v),
    }
    plain = made(d.CUDA_ARRAY_DESCRIPTOR, Width=64, Height=64, NumChannels=1,
                 Format=d.CUarray_format.CU_AD_FORMAT_FLOAT)
    base = ok(d.cuDeviceGetDefaultMemPool(0))
    def race(seed):
        r = random.Random(seed)
        for _ in range(STEPS):
            ok(d.cuCtxSetCurrent(ctx)); other = any_of("context", r)
            if other is not None and r.random() < 0.3:
                d.cuCtxSetCurrent(other)
            kind = r.choice(list(SHARED))
            if len(SHARED[kind]) < KEEP:
                error, *value = MAKE[kind](r)
                if int(error) == 0:
                    put_in(kind, value[0])
            else:
                value = took(kind, r)
                if value is not None:
                    END[kind](value, r)
            if r.random() < 0.2 and (fd := took("fd", r)) is not None:
                error, handle = d.cuMemImportFromShareableHandle(int(fd), FILE)
                if int(error) == 0:
                    put_in("handle", handle)
                os.close(int(fd))
            if r.random() < 0.3 and (handle := any_of("handle", r)) is not None:
                at = ok(d.cuMemAddressReserve(GRAIN, 0, 0, 0))
                if int(d.cuMemMap(at, GRAIN, 0, handle, 0)[0]) == 0:
                    error, kept = d.cuMemRetainAllocationHandle(int(at))
                    if int(error) == 0:
                        put_in("handle", kept)
                    ok(d.cuMemUnmap(at, GRAIN))
                ok(d.cuMemAddressFree(at, GRAIN))
    def end_all():
        ok(d.cuCtxSetCurrent(ctx)); r = random.Random(0)
        for kind in ("alloc", "async", "fd", "handle", "array", "pool", "context", "stream"):
            while (value := took(kind, r)) is not None:
                END[kind](value, r)
        ok(d.cuCtxSynchronize()); ok(d.cuMemPoolTrimTo(base, 0))
"""


def test_books_after_races_of_threads(sim: Any, one: Worker) -> None:
    """Each thread destroys what others made and may still be using."""
    one.do(RACE)
    one.do("""
        STEPS = 250
        for round in range(3):
            threads = [threading.Thread(target=race, args=(10 * round + i,)) for i in range(4)]
            [thread.start() for thread in threads]; [thread.join() for thread in threads]
            holds.check_books()
        end_all()
    """)
    assert held(sim, one) == 0
