"""In what memory of cuMemMap differs from memory of cuMemAlloc, as a driver has it. A program that believes that it has
the latter must not see these."""

from typing import Any

import pytest
from memory.greedy import greedy
from run.simworker import Worker, held, start

INVALID, OK = "CUDA_ERROR_INVALID_VALUE", "CUDA_SUCCESS"
GRAIN = 2 << 20
PREPARE = """
    size = 2 << 20; at = lambda pointer, offset: d.CUdeviceptr(int(pointer) + offset)
    def fill(where):
        h = ok(d.cuMemCreate(size, on_device(), 0)); ok(d.cuMemMap(where, size, 0, h, 0)); ok(d.cuMemRelease(h))
        ok(d.cuMemSetAccess(where, size, [access()], 1))
    mapped, allocated = ok(d.cuMemAddressReserve(2 * size, 0, 0, 0)), ok(d.cuMemAlloc(2 * size))
    fill(mapped); fill(at(mapped, size))
    attribute = lambda name, pointer: ok(d.cuPointerGetAttribute(
        getattr(d.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}"), pointer))
"""


@pytest.fixture
def worker(sim: Any) -> Worker:
    made = start(sim)
    made.do(PREPARE)
    return made


@pytest.mark.parametrize(
    ("call", "mapped", "allocated"),
    [
        ("d.cuIpcGetMemHandle(p)", INVALID, OK),
        ("d.cuMemRetainAllocationHandle(int(p))", OK, INVALID),
        ("d.cuMemUnmap(p, 2 * size)", OK, INVALID),
        ("d.cuMemSetAccess(p, 2 * size, [access()], 1)", OK, INVALID),
        ("d.cuMemGetAccess(access().location, p)", OK, INVALID),
        ("d.cuMemFree(p)", INVALID, OK),
        ("d.cuMemFreeAsync(p, ok(d.cuStreamCreate(1)))", INVALID, OK),
        ("d.cuMemAddressFree(p, 2 * size)", INVALID, INVALID),
        ("d.cuMemMap(p, size, 0, ok(d.cuMemCreate(size, on_device(), 0)), 0)", INVALID, INVALID),
    ],
)
def test_calls(worker: Worker, call: str, mapped: str, allocated: str) -> None:
    for name, result in (("mapped", mapped), ("allocated", allocated)):
        worker.do(f"p = {name}")
        assert worker.error(call) == result, name


def test_attributes(worker: Worker) -> None:
    seen = """{name: [int(attribute(name, at(p, size + 5))) for p in (mapped, allocated)] for name in (
        'IS_LEGACY_CUDA_IPC_CAPABLE', 'CONTEXT', 'RANGE_SIZE', 'ACCESS_FLAGS', 'MEMORY_TYPE', 'IS_MANAGED')}"""
    context = worker.get("int(ctx)")
    assert worker.get(seen) == {
        "IS_LEGACY_CUDA_IPC_CAPABLE": [0, 1],
        "CONTEXT": [0, context],
        "RANGE_SIZE": [GRAIN, 2 * GRAIN],
        "ACCESS_FLAGS": [3, 3],
        "MEMORY_TYPE": [2, 2],
        "IS_MANAGED": [0, 0],
    }
    ranges = "[[int(one) - int(p) for one in ok(d.cuMemGetAddressRange(at(p, size + 5)))] for p in (mapped, allocated)]"
    starts = "[int(attribute('RANGE_START_ADDR', at(p, size + 5))) - int(p) for p in (mapped, allocated)]"
    assert [one[0] for one in worker.get(ranges)] == worker.get(starts) == [GRAIN, 0]
    sizes = "[int(ok(d.cuMemGetAddressRange(at(p, size + 5)))[1]) for p in (mapped, allocated)]"
    assert worker.get(sizes) == [GRAIN, 2 * GRAIN]


def test_memory_mapped_again_is_another_buffer(worker: Worker) -> None:
    worker.do("before = attribute('BUFFER_ID', mapped); ok(d.cuMemUnmap(mapped, size)); fill(mapped)")
    assert worker.get("attribute('BUFFER_ID', mapped) != before")


def test_access_is_that_of_each_device(worker: Worker) -> None:
    """And of the device of the current context. Peer access is for memory of cuMemAlloc alone."""
    worker.do("""
        there = ok(d.cuDevicePrimaryCtxRetain(1)); ok(d.cuCtxSetCurrent(there))
        flags = lambda: [int(attribute('ACCESS_FLAGS', p)) for p in (mapped, allocated)]
        given = lambda: [int(ok(d.cuMemGetAccess(access(device).location, mapped))) for device in (0, 1)]
        first = flags(), given()
        ok(d.cuCtxEnablePeerAccess(ctx, 0)); peer = flags(), given()
        ok(d.cuMemSetAccess(mapped, size, [access(1)], 1)); both = flags(), given()
        none = access(0); none.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
        ok(d.cuMemSetAccess(mapped, size, [none], 1)); last = flags(), given()
    """)
    assert worker.get("first") == [[0, 0], [3, 0]]
    assert worker.get("peer") == [[0, 3], [3, 0]]
    assert worker.get("both") == [[3, 3], [3, 3]]
    assert worker.get("last") == [[3, 3], [0, 3]]


def test_a_mapping_begins_where_its_memory_begins(worker: Worker) -> None:
    worker.do("h = ok(d.cuMemCreate(2 * size, on_device(), 0)); a = ok(d.cuMemAddressReserve(2 * size, 0, 0, 0))")
    assert worker.error("d.cuMemMap(a, size, size, h, 0)") == INVALID
    assert worker.error("d.cuMemMap(a, size, 0, h, 0)") == OK


@pytest.mark.parametrize("stream", ["None", "ok(d.cuStreamCreate(0))", "ok(d.cuStreamCreate(1))"])
def test_a_free_waits_for_all_work(simulator: Any, stream: str) -> None:
    """Of the context, on whatever stream; removing a mapping waits for none."""
    worker = start(simulator.start("--kernel-ns", str(10**8)))
    worker.do(PREPARE)
    worker.do(f"""
        stream = {stream}; done = ok(d.cuEventCreate(0)); text = b'''.version 7.0
        .target sm_50
        .address_size 64
        .visible .entry work() {{ ret; }}'''
        work = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text + bytes(1))), b'work'))
        def launch():
            ok(d.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)); ok(d.cuEventRecord(done, stream))
    """)
    worker.do("launch(); ok(d.cuMemUnmap(mapped, size)); after = error(d.cuEventQuery(done))")
    worker.do("launch(); ok(d.cuMemFree(allocated)); freed = error(d.cuEventQuery(done))")
    assert worker.get("[after, freed]") == ["CUDA_ERROR_NOT_READY", OK]


def test_room_that_another_process_took(sim: Any, worker: Worker) -> None:
    """Memory that was unmapped is free for everybody: it may not come back."""
    before = held(sim, worker)
    worker.do("ok(d.cuMemUnmap(mapped, 2 * size))")
    with greedy(sim.directory) as other:
        assert other.take() > 15 << 30
        device = sim.device()
        assert device["bytes"] == device["total_bytes"]
        assert worker.error("d.cuMemCreate(size, on_device(), 0)") == "CUDA_ERROR_OUT_OF_MEMORY"
        other.give_back()
        worker.do("fill(mapped); fill(at(mapped, size))")
    assert held(sim, worker) == before
