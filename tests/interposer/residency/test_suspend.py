"""Memory of a grant leaves the device and comes back, by hand: the program keeps its addresses and its bytes."""

import os
from pathlib import Path

import pytest
from memory.moving import AWAY, MIB, filled, held, same
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose, Interposed
from run.waiting import until

from gpushare import paths
from gpushare._native import lib


@pytest.fixture
def worker(lender: Lender, interpose: Interpose) -> Interposed:
    return interpose(lender)


def test_memory_leaves_the_device_and_comes_back(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    before = held(sim, worker)
    sizes = {"a": 3 * MIB + 7, "b": 64 * MIB, "c": 2 * MIB}
    for seed, (name, size) in enumerate(sizes.items()):
        filled(worker, name, size, seed)
    movable = sum(-(-size // (2 * MIB)) * 2 * MIB for size in sizes.values())
    assert held(sim, worker) == lender.charged(0) >= before + movable
    assert lender.slot().movable_bytes == movable
    assert lender.suspend() == lib.GS_MOVED
    assert lender.slot().hosted_bytes == movable
    assert held(sim, worker) == lender.charged(0) - movable  # the proxies stay
    assert sum(lender.segments) == movable
    assert lender.resume() == lib.GS_MOVED
    assert lender.slot().hosted_bytes == 0
    assert held(sim, worker) == lender.charged(0)
    until(lambda: lender.segments == [], "the host memory comes back")
    assert all(same(worker, name) for name in sizes)
    for name in sizes:
        worker.do(f"ok(d.cuMemFree({name}))")
    assert lender.slot().movable_bytes == 0
    assert lender.charged(0) == held(sim, worker)


def test_addresses_for_host_memory_are_given_back(lender: Lender, worker: Interposed) -> None:
    """A program may have a limit of them."""

    def addresses() -> int:
        return int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    filled(worker, "a", 3 * MIB, 1)
    limit, before = int(lender.limits.device[0].memory_bytes), addresses()
    assert lender.suspend() == lib.GS_MOVED
    assert addresses() - before >= limit
    assert lender.resume() == lib.GS_MOVED
    until(lambda: addresses() - before < limit, "it has them back")
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")


NEEDS = {
    "a copy to the device": "d.cuMemcpyHtoD(a, b'x' * 9, 9)",
    "a copy from the device": "d.cuMemcpyDtoH(bytearray(9), a, 9)",
    "a copy within the device": "d.cuMemcpyDtoD(int(a) + 4096, a, 4096)",
    "an asynchronous copy": "d.cuMemcpyHtoDAsync(a, b'x' * 9, 9, stream)",
    "a fill": "d.cuMemsetD8(a, 3, 4096)",
    "an allocation": "d.cuMemAlloc(4 << 20)",
    "a small allocation": "d.cuMemAlloc(4096)",
    "an allocation from a pool": "d.cuMemAllocAsync(4 << 20, stream)",
    "a value written by a stream": "d.cuStreamWaitValue32(stream, a, 0, 0)",
}


@pytest.mark.parametrize("what", NEEDS)
def test_a_call_that_needs_memory_waits_and_asks_for_it(lender: Lender, worker: Interposed, what: str) -> None:
    worker.do("stream = ok(d.cuStreamCreate(1))")
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    assert not lender.wants
    until(lambda: lender.looks == 2, "the daemon hears that it leaves, and that it has left")
    worker.do(AWAY)
    worker.do(f"thread = start(lambda: {NEEDS[what]})")
    until(lambda: lender.looks == 3, "the daemon hears that it is wanted")
    assert lender.wants
    assert worker.get("results") == []
    assert lender.resume() == lib.GS_MOVED
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"
    assert not lender.wants


def test_a_launch_waits_and_asks_for_memory(lender: Lender, worker: Interposed) -> None:
    worker.do(f"""
        module = ok(d.cuModuleLoadData(open({str(paths.SPIN_PTX)!r}, "rb").read()))
        spin = ok(d.cuModuleGetFunction(module, b"spin_ns"))
        launch = lambda: d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ((1000,), (ctypes.c_uint64,)), 0)
    """)
    filled(worker, "a", 3 * MIB, 1)
    worker.do("[ok(launch()) for _ in range(100)]")
    assert lender.suspend() == lib.GS_MOVED
    lender.lease()  # whatever the lease says
    worker.do(AWAY)
    worker.do("thread = start(launch)")
    until(lambda: lender.wants)
    assert worker.get("results") == []
    assert lender.resume() == lib.GS_MOVED
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"


def test_what_needs_no_memory_goes_on_while_it_is_away(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    for seed, name in enumerate("abc"):
        filled(worker, name, 3 * MIB, seed)
    worker.do("free = ok(d.cuMemGetInfo()); stream = ok(d.cuStreamCreate(1))")
    assert lender.suspend() == lib.GS_MOVED
    worker.do("""
        same_free = ok(d.cuMemGetInfo()) == free
        ok(d.cuStreamSynchronize(stream))
        ok(d.cuCtxSynchronize())
        event = ok(d.cuEventCreate(0))
        ok(d.cuEventQuery(event))
        ok(d.cuStreamDestroy(stream))
        ok(d.cuMemFree(b))
    """)
    assert worker.get("same_free")
    assert not lender.wants
    assert lender.slot().hosted_bytes == lender.slot().movable_bytes == 2 * 4 * MIB
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")
    assert same(worker, "c")
    assert worker.charged() == held(sim, worker)
    assert worker.error("d.cuMemFree(b)") == "CUDA_ERROR_INVALID_VALUE"


def test_work_that_does_not_end_costs_nothing(lender: Lender, worker: Interposed) -> None:
    filled(worker, "a", 3 * MIB, 1)
    worker.do("""
        stream = ok(d.cuStreamCreate(1))
        flag = ok(d.cuMemHostAlloc(64, 2))
        word = ctypes.c_uint32.from_address(flag)
        word.value = 0
        ok(d.cuStreamWaitValue32(stream, flag, 1, 0))
        ok(d.cuMemcpyDtoDAsync(int(a) + 4096, a, 4096, stream))
    """)
    lender.revoke()
    lender.want(lib.GS_HOSTED)
    worker.do(AWAY)
    until(lambda: mover_waits(worker))
    worker.do("thread = start(lambda: d.cuMemcpyHtoD(a, a_bytes, 4096))")
    assert lender.carried_out(lender.want(lib.GS_RESIDENT)) == lib.GS_MOVED or lender.slot().move == lib.GS_MOVED
    lender.lease()
    worker.do("thread.join(); word.value = 1; ok(d.cuStreamSynchronize(stream))")
    assert lender.slot().hosted_bytes == 0
    assert worker.get("get(int(a) + 4096, 4096) == a_bytes[:4096]")
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED


def mover_waits(worker: Interposed) -> bool:
    """Whether the mover is past the point where it has stopped the program."""
    tasks = Path(f"/proc/{worker.pid}/task").iterdir()
    return any((task / "comm").read_text() == "gpushare-mover\n" for task in tasks)


def test_an_open_capture_is_waited_for(lender: Lender, worker: Interposed) -> None:
    filled(worker, "a", 3 * MIB, 1)
    worker.do("""
        stream = ok(d.cuStreamCreate(1))
        ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        ok(d.cuMemcpyDtoDAsync(int(a) + 4096, a, 4096, stream))
    """)
    lender.revoke()
    word = lender.want(lib.GS_HOSTED)
    until(lambda: lender.segments)  # it has begun
    worker.do("graph = ok(d.cuStreamEndCapture(stream))")
    assert lender.carried_out(word) == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    worker.do("made = ok(d.cuGraphInstantiate(graph, 0))")
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    worker.do("ok(d.cuGraphLaunch(made, stream)); ok(d.cuStreamSynchronize(stream))")
    assert worker.get("get(int(a) + 4096, 4096) == a_bytes[:4096]")


@pytest.mark.parametrize("away", [True, False], ids=["while it is away", "after it is back"])
def test_memory_ends_with_its_context(sim: Simulator, lender: Lender, worker: Interposed, away: bool) -> None:
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    if not away:
        assert lender.resume() == lib.GS_MOVED
    worker.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert held(sim, worker) == lender.charged(0) == 0
    assert lender.slot().movable_bytes == lender.slot().hosted_bytes == 0
    if away:
        assert lender.resume() == lib.GS_MOVED
    worker.do("ctx = context(0)")
    filled(worker, "b", 5 * MIB, 2)
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "b")


def test_without_host_memory_nothing_moves(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    filled(worker, "a", 3 * MIB, 1)
    lender.pool = 2 * MIB
    assert lender.suspend() == lib.GS_MOVE_NO_HOST
    assert lender.slot().hosted_bytes == 0
    assert worker.charged() == held(sim, worker)
    lender.lease()
    assert same(worker, "a")
    lender.resume()
    assert sum(lender.segments) == 0
    lender.pool = 64 * MIB
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")


def test_a_full_device_makes_it_wait(sim: Simulator, lender: Lender, worker: Interposed, interpose: Interpose) -> None:
    filled(worker, "a", 64 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    stranger = interpose(None)
    stranger.do(f"taken = ok(d.cuMemAlloc({4020 * MIB}))")
    assert lender.carried_out(lender.want(lib.GS_RESIDENT)) == lib.GS_MOVE_NO_DEVICE
    lender.lease()
    worker.do(AWAY)
    worker.do("thread = start(lambda: d.cuMemcpyDtoH(bytearray(9), a, 9))")
    stranger.do("ok(d.cuMemFree(taken))")
    until(lambda: lender.slot().move == lib.GS_MOVED)
    worker.do("thread.join()")
    assert same(worker, "a")
    assert worker.charged() == held(sim, worker)


def test_idle_memory_is_copied_ahead(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    filled(worker, "a", 64 * MIB, 1)
    filled(worker, "b", 3 * MIB, 2)
    assert lender.carried_out(lender.want(lib.GS_PREPARED)) == lib.GS_MOVED
    until(lambda: lender.slot().clean_bytes == 68 * MIB)
    assert held(sim, worker) == lender.charged(0)
    copied = lender.slot().copied_bytes
    assert lender.suspend() == lib.GS_MOVED
    assert lender.slot().copied_bytes == copied
    assert lender.resume(lib.GS_PREPARED) == lib.GS_MOVED
    assert same(worker, "a")
    until(lambda: lender.slot().clean_bytes == 68 * MIB)
    worker.do("a_bytes = b'y' * 4096 + a_bytes[4096:]; ok(d.cuMemcpyHtoD(a, a_bytes, 4096))")
    assert lender.slot().clean_bytes == 0
    assert lender.suspend() == lib.GS_MOVED
    assert lender.slot().copied_bytes > copied
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")
    assert same(worker, "b")


def test_frees_in_the_order_of_a_stream(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    before = worker.charged()
    filled(worker, "a", 3 * MIB, 1)
    worker.do("""
        stream = ok(d.cuStreamCreate(1))
        flag = ok(d.cuMemHostAlloc(64, 2))
        word = ctypes.c_uint32.from_address(flag)
        word.value = 0
        ok(d.cuStreamWaitValue32(stream, flag, 1, 0))
        ok(d.cuMemFreeAsync(a, stream))
    """)
    assert worker.error("d.cuMemFree(a)") == "CUDA_ERROR_INVALID_VALUE"
    assert lender.charged(0) > before
    worker.do("word.value = 1; ok(d.cuStreamSynchronize(stream))")
    until(lambda: lender.charged(0) == before)
    assert worker.charged() == held(sim, worker)


def test_a_grant_at_its_limit_moves(sim: Simulator, lender: Lender, interpose: Interpose) -> None:
    lender.set_limit(160 * MIB)
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    worker.do("""
        rest = []
        for size in (32 << 20, 2 << 20, 4096):
            while (answer := d.cuMemAlloc(size))[0] == 0:
                rest.append(answer[1])
    """)
    full = lender.charged(0)
    assert full > 160 * MIB - 8192
    for _ in range(2):
        assert lender.suspend() == lib.GS_MOVED
        assert worker.get("[int(x) for x in ok(d.cuMemGetInfo())][0]") < 8192
        assert lender.resume() == lib.GS_MOVED
    assert lender.charged(0) == full == held(sim, worker)
    assert worker.error("d.cuMemAlloc(2 << 20)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert same(worker, "a")
