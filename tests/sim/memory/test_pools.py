"""Memory pools: growth, reuse in stream order, release."""

from typing import Any

import pytest
from run.simworker import Worker, start
from run.simworker import held as held_in_all

STEP = 32 << 20
MIB = 1 << 20
INVALID = "CUDA_ERROR_INVALID_VALUE"
OOM = "CUDA_ERROR_OUT_OF_MEMORY"
SPIN = (
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n  ret;\n}\n"
)


@pytest.fixture
def worker(sim: Any) -> Worker:
    made = start(sim)
    made.do("s = ok(d.cuStreamCreate(1)); t = ok(d.cuStreamCreate(1)); default = ok(d.cuDeviceGetDefaultMemPool(0))")
    made.do(f"spin_module = ok(d.cuModuleLoadData({SPIN.encode()!r} + bytes(1)))")
    made.do("""
        spin_function = ok(d.cuModuleGetFunction(spin_module, b'spin_ns'))
        def spin(ms, stream):
            value = ctypes.c_uint64(int(ms * 1e6)); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
            ok(d.cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(arguments), 0))
    """)
    return made


def held(sim: Any, worker: Worker) -> int:
    """Bytes in addition to the context and its program."""
    return held_in_all(sim, worker) - (2 << 20)


def attribute(worker: Worker, name: str, pool: str = "default") -> int:
    return int(worker.get(f"pool_attribute({pool}, '{name}')"))


def test_a_pool_grows_in_steps_and_is_charged_when_it_grows(sim: Any, worker: Worker) -> None:
    assert held(sim, worker) == 0
    worker.do("p = ok(d.cuMemAllocAsync(1000, s))")
    assert held(sim, worker) == STEP == attribute(worker, "RESERVED_MEM_CURRENT")
    assert attribute(worker, "USED_MEM_CURRENT") == 1024
    worker.do("q = ok(d.cuMemAllocAsync(16 << 20, s))")
    assert held(sim, worker) == STEP
    worker.do("r = ok(d.cuMemAllocAsync(100 << 20, s))")
    assert held(sim, worker) == STEP + 4 * STEP
    worker.do("put(p, b'a' * 1000); put(q, b'b' * 1000)")
    assert worker.get("get(p, 1000) == b'a' * 1000 and get(q, 1000) == b'b' * 1000")
    for pointer in "pqr":
        worker.do(f"ok(d.cuMemFreeAsync({pointer}, s))")
    assert held(sim, worker) == 5 * STEP
    worker.do("ok(d.cuStreamSynchronize(s))")
    assert held(sim, worker) == 0 == attribute(worker, "USED_MEM_CURRENT")
    assert attribute(worker, "RESERVED_MEM_HIGH") == 5 * STEP
    assert attribute(worker, "USED_MEM_HIGH") == 1024 + (116 << 20)


@pytest.mark.parametrize("wait", ["cuStreamSynchronize(s)", "cuCtxSynchronize()", "cuEventSynchronize(e)"])
def test_what_exceeds_the_release_threshold_goes_back_when_somebody_waits(sim: Any, worker: Worker, wait: str) -> None:
    worker.do("T = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")
    worker.do(f"ok(d.cuMemPoolSetAttribute(default, T, d.cuuint64_t({STEP}))); e = ok(d.cuEventCreate(0))")
    worker.do("""
        p = [ok(d.cuMemAllocAsync(32 << 20, s)) for _ in range(3)]; [ok(d.cuMemFreeAsync(each, s)) for each in p]
    """)
    worker.do(f"ok(d.cuEventRecord(e, s)); ok(d.{wait})")
    assert held(sim, worker) == STEP
    worker.do("ok(d.cuMemPoolTrimTo(default, 0))")
    assert held(sim, worker) == 0


def test_a_freed_block_is_had_again_by_its_own_stream_at_once_and_by_others_in_time(worker: Worker) -> None:
    worker.do("""
        p = ok(d.cuMemAllocAsync(1000, s)); spin(300, s); ok(d.cuMemFreeAsync(p, s))
        q = ok(d.cuMemAllocAsync(1000, t))
    """)
    assert worker.get("int(q) != int(p)")
    assert worker.get("int(ok(d.cuMemAllocAsync(1000, s))) == int(p)")
    worker.do("ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamSynchronize(s))")
    assert worker.get("int(ok(d.cuMemAllocAsync(1000, t))) == int(p)")


def test_a_freed_pointer_is_unknown_at_once_and_its_data_still_copied(worker: Worker) -> None:
    worker.do("p = ok(d.cuMemAllocAsync(1000, s)); put(p, b'z' * 1000); h = ok(d.cuMemHostAlloc(1000, 0)); spin(20, s)")
    worker.do("ok(d.cuMemcpyDtoHAsync(h, p, 1000, s)); ok(d.cuMemFreeAsync(p, s))")
    assert worker.error("d.cuMemFreeAsync(p, s)") == INVALID
    assert worker.error("d.cuMemcpyDtoH(bytearray(10), p, 10)") == INVALID
    worker.do("ok(d.cuStreamSynchronize(s))")
    assert worker.get("ctypes.string_at(int(h), 1000) == b'z' * 1000")


def test_cumemfree_takes_pool_memory_and_cumemfreeasync_takes_any(sim: Any, worker: Worker) -> None:
    worker.do("p = ok(d.cuMemAllocAsync(1000, s)); ok(d.cuMemFree(p)); ok(d.cuStreamSynchronize(s))")
    assert held(sim, worker) == 0
    worker.do("p = ok(d.cuMemAlloc(1000)); ok(d.cuMemFreeAsync(p, s))")
    assert held(sim, worker) == 0


def test_a_pool_has_its_own_limit(sim: Any, worker: Worker) -> None:
    worker.do("own = pool(maximum=40 << 20)")
    worker.do("p = ok(d.cuMemAllocFromPoolAsync(20 << 20, own, s))")
    assert held(sim, worker) == STEP
    worker.do("q = ok(d.cuMemAllocFromPoolAsync(12 << 20, own, s)); r = ok(d.cuMemAllocFromPoolAsync(7 << 20, own, s))")
    assert held(sim, worker) == 40 << 20
    assert worker.error("d.cuMemAllocFromPoolAsync(2 << 20, own, s)") == OOM


def test_a_destroyed_pool_lives_until_its_last_block_is_free(sim: Any, worker: Worker) -> None:
    worker.do("own = pool(); p = ok(d.cuMemAllocFromPoolAsync(1000, own, s)); ok(d.cuMemPoolDestroy(own))")
    assert worker.error("d.cuMemAllocFromPoolAsync(1000, own, s)") == INVALID
    assert worker.error("d.cuMemPoolDestroy(own)") == INVALID
    assert held(sim, worker) == STEP
    worker.do("ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamSynchronize(s))")
    assert held(sim, worker) == 0
    assert worker.error("d.cuMemPoolDestroy(default)") == INVALID


def test_which_pool_a_device_allocates_from(worker: Worker) -> None:
    worker.do("own = pool(); ok(d.cuDeviceSetMemPool(0, own)); p = ok(d.cuMemAllocAsync(1000, s))")
    assert attribute(worker, "USED_MEM_CURRENT", "own") == 1024
    assert worker.get("int(ok(d.cuDeviceGetMemPool(0))) == int(own)")
    assert worker.get("int(ok(d.cuMemGetMemPool(access().location, 1))) == int(own)")
    assert worker.get("int(ok(d.cuMemGetDefaultMemPool(access().location, 1))) == int(default)")
    assert worker.error("d.cuDeviceSetMemPool(1, own)") == INVALID
    worker.do("ok(d.cuMemSetMemPool(access().location, 1, default))")
    assert worker.get("int(ok(d.cuDeviceGetMemPool(0))) == int(default)")


def test_access_of_other_devices(worker: Worker) -> None:
    assert worker.get("int(ok(d.cuMemPoolGetAccess(default, access(1).location)))") == 0
    worker.do("ok(d.cuMemPoolSetAccess(default, [access(1)], 1))")
    assert worker.get("int(ok(d.cuMemPoolGetAccess(default, access(1).location)))") == 3


def test_unused_pool_memory_makes_room_for_others_when_the_device_is_full(sim: Any, worker: Worker) -> None:
    worker.do("T = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")
    worker.do("ok(d.cuMemPoolSetAttribute(default, T, d.cuuint64_t(1 << 40)))")
    worker.do("p = ok(d.cuMemAllocAsync(10 << 30, s)); ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamSynchronize(s))")
    assert held(sim, worker) == 10 << 30
    worker.do("own = pool(); q = ok(d.cuMemAllocFromPoolAsync(12 << 30, own, s))")
    assert held(sim, worker) == 12 << 30
    assert worker.error("d.cuMemAllocAsync(8 << 30, s)") == OOM


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("d.cuMemAllocAsync(0, s)", INVALID),
        ("d.cuMemAllocAsync(1 << 63, s)", OOM),
        ("d.cuMemAllocAsync(17 << 30, s)", OOM),
        ("d.cuMemFreeAsync(d.CUdeviceptr(4096), s)", INVALID),
        ("d.cuDeviceGetDefaultMemPool(9)", "CUDA_ERROR_INVALID_DEVICE"),
    ],
)
def test_refusals(sim: Any, worker: Worker, call: str, result: str) -> None:
    assert worker.error(call) == result
    assert held(sim, worker) == 0


def test_memory_allocated_in_a_capture_belongs_to_the_graph(sim: Any, worker: Worker) -> None:
    worker.do("""
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        p = ok(d.cuMemAllocAsync(1 << 20, s)); ok(d.cuMemsetD8Async(p, 5, 1 << 20, s)); ok(d.cuMemFreeAsync(p, s))
        graph = ok(d.cuStreamEndCapture(s)); run = ok(d.cuGraphInstantiate(graph, 0))
    """)
    assert held(sim, worker) == 0
    worker.do("for _ in range(3): ok(d.cuGraphLaunch(run, s))")
    worker.do("""
        ok(d.cuStreamSynchronize(s)); ok(d.cuGraphExecDestroy(run)); ok(d.cuGraphDestroy(graph))
        ok(d.cuDeviceGraphMemTrim(0))
    """)
    assert held(sim, worker) == 0
    assert sim.process(worker.pid)["peak_bytes"] >= (16 << 20) + MIB
