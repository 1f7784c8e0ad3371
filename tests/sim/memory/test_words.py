"""Kernels that use memory see what is there when they run, and it is a fault if nothing is."""

import json
from typing import Any

import pytest
from run.simworker import Worker, start

from gpushare.paths import LIB_DIR, WORDS_PTX

GRAIN = 2 << 20
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS"
SPIN = (
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n  ret;\n}\n"
)
PREPARE = f"""
    import struct, threading
    words = ok(d.cuModuleLoadData({WORDS_PTX.read_bytes()!r} + bytes(1)))
    touching, summing = (ok(d.cuModuleGetFunction(words, name)) for name in (b'touch_words', b'sum_words'))
    spinning = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData({SPIN.encode()!r} + bytes(1))), b'spin_ns'))
    s, size = ok(d.cuStreamCreate(1)), 2 << 20
    numbers = lambda *values: (values, (ctypes.c_uint64,) * len(values))
    def launch(function, *values, stream=s):
        return d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, numbers(*values), 0)
    spin = lambda ms, stream=s: ok(launch(spinning, int(ms * 1e6), stream=stream))
    touch = lambda at, count, mask, stream=s: launch(touching, int(at), count, mask, stream=stream)
    add = lambda at, count, out, stream=s: launch(summing, int(at), count, int(out), stream=stream)
    wait = lambda stream=s: ok(d.cuStreamSynchronize(stream))
    number = lambda at: struct.unpack('<Q', get(at, 8))[0]
    at = lambda pointer, offset: d.CUdeviceptr(int(pointer) + offset)
    def mapping(pieces=1, device=0):
        a = ok(d.cuMemAddressReserve(pieces * size, 0, 0, 0))
        for i in range(pieces):
            fill(at(a, i * size), device)
        return a
    def no_access(device=0):
        description = access(device); description.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
        return description
    def fill(a, device=0):
        h = ok(d.cuMemCreate(size, on_device(device=device), 0)); ok(d.cuMemMap(a, size, 0, h, 0))
        ok(d.cuMemRelease(h)); ok(d.cuMemSetAccess(a, size, [access(device)], 1))
    # a gate: work behind it waits until it is opened
    def close(stream=s):
        g = ok(d.cuMemAlloc(4)); put(g, bytes(4)); ok(d.cuStreamWaitValue32(stream, g, 1, 0)); return g
    side = ok(d.cuStreamCreate(1))
    open_ = lambda g: ok(d.cuStreamWriteValue32(side, g, 1, 0))
"""


def prepared(sim: Any, device: int = 0) -> Worker:
    worker = start(sim, device)
    worker.do(PREPARE)
    return worker


@pytest.fixture
def worker(sim: Any) -> Worker:
    return prepared(sim)


def illegal(sim: Any, worker: Worker, device: int = 0) -> int:
    return int(sim.process(worker.pid, device)["illegal_accesses"])


def test_words_are_touched_and_summed(sim: Any, worker: Worker) -> None:
    worker.do("""
        p, out = ok(d.cuMemAlloc(64)), ok(d.cuMemAlloc(8)); put(p, struct.pack('<8Q', *range(8))); put(out, bytes(8))
        ok(touch(at(p, 8), 6 * 8 + 7, (1 << 63) | 3)); ok(add(p, 64, out)); wait()
    """)
    want = [0, *((number ^ (1 << 63 | 3)) for number in range(1, 7)), 7]
    assert worker.get("list(struct.unpack('<8Q', get(p, 64)))") == want
    assert worker.get("number(out)") == sum(want) % 2**64
    assert illegal(sim, worker) == 0


def test_it_is_the_memory_of_the_time_when_it_runs(worker: Worker) -> None:
    """Neither of the launch, nor of the beginning: the gate is open only after the memory has changed."""
    worker.do("""
        p, out = ok(d.cuMemAlloc(8)), ok(d.cuMemAlloc(8)); put(p, struct.pack('<Q', 1)); put(out, bytes(8))
        g = close(); ok(add(p, 8, out)); ok(touch(p, 8, 8)); put(p, struct.pack('<Q', 2))
        before = number(out), number(p)
        open_(g); wait()
    """)
    assert worker.get("before") == [0, 2]
    assert worker.get("(number(out), number(p))") == [2, 10]


def test_memory_of_any_kind(sim: Any, worker: Worker) -> None:
    worker.do("""
        pool_ = pool(); kinds = {
            'managed': ok(d.cuMemAllocManaged(64, 1)), 'pinned': ok(d.cuMemHostAlloc(64, 0)), 'mapped': mapping(),
            'two mappings': at(mapping(2), size - 32), 'pool': ok(d.cuMemAllocFromPoolAsync(64, pool_, s))}
        own = ctypes.create_string_buffer(64); ok(d.cuMemHostRegister(ctypes.addressof(own), 64, 0))
        kinds['registered'] = ctypes.addressof(own)
        for where in kinds.values():
            ok(touch(where, 64, 5))
        wait()
        found = {kind: ctypes.string_at(int(where), 64) == struct.pack('<8Q', *[5] * 8)
            for kind, where in kinds.items()}
    """)
    assert worker.get("[kind for kind, right in found.items() if not right]") == []
    assert illegal(sim, worker) == 0


NOWHERE = {
    "no memory at all": "touch(0x1000, 8, 1)",
    "freed": "p = ok(d.cuMemAlloc(64)); ok(d.cuMemFree(p)); touch(p, 8, 1)",
    "past the end": "touch(ok(d.cuMemAlloc(64)), 72, 1)",
    "reserved only": "touch(ok(d.cuMemAddressReserve(size, 0, 0, 0)), 8, 1)",
    "past the mapping": "touch(at(mapping(), size - 8), 16, 1)",
    "no access": "a = mapping(); ok(d.cuMemSetAccess(a, size, [no_access()], 1)); touch(a, 8, 1)",
    "the sum goes nowhere": "add(ok(d.cuMemAlloc(64)), 64, 0x1000)",
}


@pytest.mark.parametrize("what", NOWHERE.values(), ids=NOWHERE)
def test_a_fault_is_for_ever(sim: Any, worker: Worker, what: str) -> None:
    worker.do("kept = ok(d.cuMemAlloc(8)); put(kept, bytes(8)); event = ok(d.cuEventCreate(0))")
    worker.do(what)
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL
    assert illegal(sim, worker) == 1
    calls = ["CtxSynchronize()", "StreamQuery(s)", "MemAlloc(8)", "MemFree(kept)", "EventRecord(event, s)"]
    calls += ["EventQuery(event)", "MemsetD8(kept, 1, 1)", "StreamCreate(0)", "ModuleUnload(words)"]
    assert {worker.error(f"d.cu{call}") for call in calls} == {ILLEGAL}
    assert worker.error("touch(kept, 8, 1)") == ILLEGAL
    assert (
        worker.get("[error(d.cuCtxGetCurrent()), error(d.cuCtxGetDevice()), error(d.cuDeviceGetCount())]")
        == ["CUDA_SUCCESS"] * 3
    )
    assert illegal(sim, worker) == 1, "a context has one fault, and then no more work"


def test_other_contexts_and_later_ones_are_sound(sim: Any, worker: Worker) -> None:
    worker.do("""
        ok(touch(0x1000, 8, 1)); other = ok(d.cuDevicePrimaryCtxRetain(1)); ok(d.cuCtxSetCurrent(other))
        ok(d.cuMemFree(ok(d.cuMemAlloc(8)))); ok(d.cuCtxSynchronize())
    """)
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL, "a stream of the other context"
    worker.do("ok(d.cuDevicePrimaryCtxReset(0)); context(0); ok(d.cuMemFree(ok(d.cuMemAlloc(8))))")
    assert worker.error("d.cuCtxSynchronize()") == "CUDA_SUCCESS"
    assert (illegal(sim, worker), illegal(sim, worker, 1)) == (1, 0)


UNMAP = "ok(d.cuMemUnmap(a, size))"


@pytest.mark.parametrize("change", [UNMAP, f"{UNMAP}; fill(a)"], ids=["unmapped", "replaced"])
def test_memory_that_leaves_under_a_kernel(simulator: Any, change: str) -> None:
    """The kernel takes 100 ms. Its memory is unmapped, or replaced by other memory at the same addresses."""
    sim = simulator.start("--kernel-ns", str(10**8))
    worker = prepared(sim)
    worker.do(f"a = mapping(); ok(touch(a, 8, 1)); {change}")
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL
    assert illegal(sim, worker) == 1
    assert worker.get("ctypes.string_at(int(a), 8) == bytes(8)"), "it has written nothing"


def test_memory_that_comes_after_a_kernel_has_begun(simulator: Any) -> None:
    """The second of two kernels of 100 ms, after 150 ms in which the program calls nothing. (On a busy machine it may
    have ended by then, with the same fault.)"""
    worker = prepared(simulator.start("--kernel-ns", str(10**8)))
    worker.do(f"""
        import time
        a, kept = mapping(), ok(d.cuMemAlloc(8)); {UNMAP}; ok(touch(kept, 8, 1)); ok(touch(a, 8, 1))
        end = time.monotonic() + 0.15
        while time.monotonic() < end: pass
        fill(a)
    """)
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL


def test_memory_that_returns_before_the_kernel_begins(sim: Any, worker: Worker) -> None:
    """The addresses are empty while the launch waits. That is what moved memory does, and no fault."""
    worker.do(f"a = mapping(); g = close(); ok(touch(a, 8, 6)); {UNMAP}; fill(a); open_(g); wait()")
    assert worker.get("number(a)") == 6
    worker.do(f"g = close(); ok(touch(a, 8, 6)); {UNMAP}; open_(g)")
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL


@pytest.mark.parametrize(
    "work",
    ["d.cuMemcpyHtoDAsync(a, h, 8, s)", "d.cuMemcpyDtoHAsync(h, a, 8, s)", "d.cuMemsetD8Async(a, 1, 8, s)"],
)
def test_copies_and_fills_of_memory_that_left(sim: Any, worker: Worker, work: str) -> None:
    worker.do(f"a = mapping(); h = ok(d.cuMemHostAlloc(8, 0)); g = close(); ok({work}); {UNMAP}; open_(g)")
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL
    assert illegal(sim, worker) == 1


def test_what_is_freed_in_order_is_there_until_then(sim: Any, worker: Worker) -> None:
    """Memory of cuMemFreeAsync and of cuMemFree, which waits."""
    worker.do("""
        p = ok(d.cuMemAllocAsync(64, s)); q, out = ok(d.cuMemAlloc(64)), ok(d.cuMemAlloc(8)); put(q, bytes(64))
        g = close(); ok(touch(p, 64, 1)); ok(d.cuMemFreeAsync(p, s)); ok(touch(q, 64, 1)); ok(add(q, 64, out)); open_(g)
        spin(5); ok(touch(q, 64, 2)); ok(d.cuMemFree(q)); wait()
    """)
    assert worker.get("number(out)") == 8
    assert illegal(sim, worker) == 0


def test_in_graphs(sim: Any, worker: Worker) -> None:
    """Captured and added as a node: at every launch, with the parameters of that time, and a fault as elsewhere."""
    worker.do("""
        a, out = mapping(), ok(d.cuMemAlloc(8)); put(out, bytes(8))
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        ok(touch(a, 8, 4)); ok(add(a, 8, out)); graph = ok(d.cuStreamEndCapture(s))
        run = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(run, s)); wait(); first = number(out)
        put(a, struct.pack('<Q', 1)); ok(d.cuGraphLaunch(run, s)); wait()
    """)
    assert worker.get("(first, number(out))") == [4, 5]
    worker.do("""
        node = made(d.CUDA_KERNEL_NODE_PARAMS, func=touching, gridDimX=1, gridDimY=1, gridDimZ=1, blockDimX=1,
            blockDimY=1, blockDimZ=1, kernelParams=numbers(int(a), 8, 16))
        graph = ok(d.cuGraphCreate(0)); ok(d.cuGraphAddKernelNode(graph, None, 0, node))
        again = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(again, s)); wait()
    """)
    assert worker.get("number(a)") == 5 + 16
    worker.do(f"{UNMAP}; ok(d.cuGraphLaunch(again, s))")
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL


def test_other_devices_need_access(sim: Any, worker: Worker) -> None:
    """Peer access opens memory of cuMemAlloc, and cuMemSetAccess that of cuMemMap: neither does what the other does."""
    worker.do("""
        there = ok(d.cuDevicePrimaryCtxRetain(1)); ok(d.cuCtxSetCurrent(there)); p = ok(d.cuMemAlloc(64))
        a = mapping(device=1); ok(d.cuCtxSetCurrent(ctx)); ok(d.cuCtxEnablePeerAccess(there, 0))
        ok(touch(p, 64, 1)); wait()
        ok(d.cuMemSetAccess(a, size, [access(0)], 1)); ok(touch(a, 64, 1)); wait()
        ok(d.cuMemSetAccess(a, size, [no_access(0)], 1)); ok(touch(a, 64, 1))
    """)
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL
    assert (illegal(sim, worker), illegal(sim, worker, 1)) == (1, 0)
    other = prepared(sim)
    other.do("""
        there = ok(d.cuDevicePrimaryCtxRetain(1)); ok(d.cuCtxSetCurrent(there)); p = ok(d.cuMemAlloc(64))
        ok(d.cuCtxSetCurrent(ctx)); ok(touch(p, 64, 1))
    """)
    assert other.error("d.cuStreamSynchronize(s)") == ILLEGAL


def test_the_books_of_an_ended_process_keep_the_count(sim: Any) -> None:
    worker = prepared(sim)
    worker.do("ok(touch(0x1000, 8, 1))")
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL
    worker.do("ok(d.cuDevicePrimaryCtxReset(0)); context(0)")
    worker.do(PREPARE + "    ok(touch(0x1000, 8, 1))")
    assert worker.error("d.cuStreamSynchronize(s)") == ILLEGAL
    worker.end()
    assert illegal(sim, worker) == 2


def test_the_tenant_of_tests_touches_and_sums_what_it_holds(sim: Any) -> None:
    process = sim.spawn(LIB_DIR / "gpushare-spin")

    def answer(line: str) -> dict[str, Any]:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    assert json.loads(process.stdout.readline())["event"] == "ready"
    answer("fill 24M 10M")
    assert answer("sum")["sum"] == 0
    assert answer("touch 5")["held_bytes"] == 24 << 20
    assert answer("sum")["sum"] == 5 * (24 << 20) // 8
    answer("touch 4")
    assert answer("sum")["sum"] == (24 << 20) // 8
