"""Kernels that wait for each other across devices, like a collective's, as accounted by the engine."""

import time
from collections.abc import Callable

import pytest
from run.simulated import Sim
from run.simworker import Worker, start
from run.waiting import until

MS = 1_000_000
PTX = (
    ".version 7.0\\n.target sm_52\\n.address_size 64\\n"
    ".visible .entry ncclDevKernel_AllReduce(.param .u64 ns, .param .u64 key, .param .u64 ranks)\\n{\\n\\tret;\\n}\\n"
    ".visible .entry spin_ns(.param .u64 ns)\\n{\\n\\tret;\\n}\\n"
)

Rank = Callable[..., Worker]


@pytest.fixture
def rank(sim: Sim) -> Rank:
    def make(device: int) -> Worker:
        worker = start(sim, device)
        worker.do(
            f"""
            module = ok(d.cuModuleLoadData(b"{PTX}"))
            reduce = ok(d.cuModuleGetFunction(module, b"ncclDevKernel_AllReduce"))
            spin = ok(d.cuModuleGetFunction(module, b"spin_ns"))
            stream = ok(d.cuStreamCreate(1))
            def launch(function, *words, on=None):
                arguments = (words, (ctypes.c_uint64,) * len(words))
                ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream if on is None else on, arguments, 0))
            """
        )
        return worker

    return make


def busy(sim: Sim, worker: Worker, device: int) -> int:
    return int((sim.process(worker.pid, device) or {"busy_ns": 0})["busy_ns"])


@pytest.mark.xdist_group("timing")
def test_the_first_spins_until_the_last_is_there(sim: Sim, rank: Rank) -> None:
    first, second = rank(0), rank(1)
    first.do(f"launch(reduce, {5 * MS}, 7, 2)")
    began = time.monotonic_ns()
    until(lambda: busy(sim, first, 0) > 50 * MS, "the first one has its device all the time")
    assert first.error("d.cuStreamQuery(stream)") == "CUDA_ERROR_NOT_READY"
    assert busy(sim, second, 1) == 0
    waited = time.monotonic_ns() - began
    second.do(f"launch(reduce, {5 * MS}, 7, 2)")
    for worker in (first, second):
        worker.do("ok(d.cuStreamSynchronize(stream))")
    assert busy(sim, second, 1) == 5 * MS
    assert busy(sim, first, 0) > waited + 4 * MS
    after = busy(sim, first, 0)
    time.sleep(0.02)  # long enough to detect a spin that does not end
    assert busy(sim, first, 0) == after


def test_one_after_the_other_with_one_key(sim: Sim, rank: Rank, exact: bool) -> None:
    """Work before and after it keeps its order, and a faster rank waits at each collective."""
    workers = [rank(0), rank(1)]
    for worker, ns in zip(workers, (100_000, 900_000), strict=True):
        worker.do(f"[(launch(spin, {ns}), launch(reduce, 50_000, 9, 2)) for _ in range(40)]; launch(spin, {ns})")
    for worker in workers:
        worker.do("ok(d.cuStreamSynchronize(stream))")
    fast, slow = busy(sim, workers[0], 0), busy(sim, workers[1], 1)
    assert slow >= 41 * 900_000 + 40 * 50_000
    assert fast >= 40 * (900_000 + 50_000) + 100_000
    if exact:  # a rank delayed by a busy machine makes the other one spin longer
        assert slow == pytest.approx(41 * 900_000 + 40 * 50_000, rel=0.2)
        assert fast == pytest.approx(slow - 800_000, rel=0.2)


def test_one_process_on_both_devices_and_a_graph(sim: Sim, rank: Rank, exact: bool) -> None:
    worker = rank(0)
    worker.do(f'near, nearby, far = reduce, stream, context(1); module = ok(d.cuModuleLoadData(b"{PTX}"))')
    worker.do(
        """
        reduce = ok(d.cuModuleGetFunction(module, b"ncclDevKernel_AllReduce"))
        stream = ok(d.cuStreamCreate(1))
        ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        [launch(reduce, 200_000, 3, 2) for _ in range(3)]
        graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))
        ok(d.cuCtxSetCurrent(ctx))
        [launch(near, 200_000, 3, 2, on=nearby) for _ in range(6)]
        ok(d.cuCtxSetCurrent(far))
        [ok(d.cuGraphLaunch(graph, stream)) for _ in range(2)]
        ok(d.cuStreamSynchronize(stream))
        ok(d.cuCtxSetCurrent(ctx))
        ok(d.cuStreamSynchronize(nearby))
        """
    )
    for device in (0, 1):
        assert busy(sim, worker, device) >= 6 * 200_000
        assert not exact or busy(sim, worker, device) < 12 * 200_000


@pytest.mark.xdist_group("timing")
def test_a_spinning_kernel_is_sliced(sim: Sim, rank: Rank) -> None:
    """Another process gets its half of the device, and the spinning kernel ends when its peer starts."""
    spinning, other = rank(0), rank(0)
    spinning.do("launch(reduce, 1000, 11, 2)")
    other.do(f"launch(spin, {40 * MS})")
    until(lambda: busy(sim, other, 0) == 40 * MS, "the other one is done")
    assert busy(sim, spinning, 0) > 30 * MS
    peer = rank(1)
    peer.do("launch(reduce, 1000, 11, 2); ok(d.cuStreamSynchronize(stream))")
    spinning.do("ok(d.cuStreamSynchronize(stream))")


@pytest.mark.parametrize("words", ["1000, 5, 0", "1000, 5, 256", "1000, 1 << 56, 2"])
def test_what_no_meeting_can_be(rank: Rank, words: str) -> None:
    worker = rank(0)
    call = f"d.cuLaunchKernel(reduce, 1, 1, 1, 1, 1, 1, 0, stream, (({words}), (ctypes.c_uint64,) * 3), 0)"
    assert worker.error(call) == "CUDA_ERROR_INVALID_VALUE"


def test_a_killed_rank_frees_its_device(sim: Sim, rank: Rank) -> None:
    spinning = rank(0)
    spinning.do("launch(reduce, 1000, 13, 2)")
    until(lambda: busy(sim, spinning, 0) > MS, "it spins")
    spinning.process.kill()
    spinning.process.wait(10)
    other = rank(0)
    other.do(f"launch(spin, {MS}); ok(d.cuStreamSynchronize(stream))")
    assert busy(sim, other, 0) == MS
