"""Memory moves under a program that works all the time: what it reads is what it wrote, whatever it does meanwhile."""

import random

import pytest
from memory.moving import MIB, filled
from pages.lending import Lender
from run.interposed import Interpose

from gpushare import paths
from gpushare._native import lib

THREADS = 4

WORK = """
    import random, threading, time
    module = ok(d.cuModuleLoadData(open(spin_path, "rb").read()))
    spin = ok(d.cuModuleGetFunction(module, b"spin_ns"))
    stop, rounds, faults = threading.Event(), [0] * {threads}, []

    def launch(stream, ns):
        ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ((ns,), (ctypes.c_uint64,)), 0))

    def work(number):
        try:
            rng = random.Random(f"{seed} {{number}}")
            ok(d.cuCtxSetCurrent(ctx))
            stream = ok(d.cuStreamCreate(1))
            kept = []
            while not stop.is_set():
                rounds[number] += 1
                size = rng.choice([4096, (1 << 20) + 1, 2 << 20, (3 << 20) + 5])
                address, data = ok(d.cuMemAlloc(size)), rng.randbytes(4096)
                ok(d.cuMemcpyHtoD(int(address) + size - 4096, data, 4096))
                kept.append((address, size, data))
                for _ in range(rng.randrange(30)):
                    launch(stream, rng.choice([100, 5000, 50000]))
                ok(d.cuMemsetD8Async(address, 7, size - 4096, stream))
                other, other_size, other_data = rng.choice(kept)
                ok(d.cuMemcpyDtoDAsync(address, int(other) + other_size - 4096, min(4096, size - 4096), stream))
                ok(d.cuStreamSynchronize(stream))
                if size > 8192 and get(address, 4096) != other_data:
                    faults.append((number, rounds[number], "copy"))
                while len(kept) > 8:
                    address, size, data = kept.pop(rng.randrange(len(kept)))
                    if get(int(address) + size - 4096, 4096) != data:
                        faults.append((number, rounds[number], "kept"))
                    ok(d.cuMemFree(address))
            for address, size, data in kept:
                if get(int(address) + size - 4096, 4096) != data:
                    faults.append((number, rounds[number], "end"))
                ok(d.cuMemFree(address))
        except BaseException as failure:
            faults.append((number, rounds[number], repr(failure)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range({threads})]
    for thread in threads:
        thread.start()
"""


@pytest.mark.parametrize("cycles", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_busy_program_does_not_notice(lender: Lender, interpose: Interpose, cycles: int) -> None:
    seed = random.randrange(1 << 32)
    worker = interpose(lender)
    worker.do(f"spin_path = {str(paths.SPIN_PTX)!r}; seed = {seed}")
    worker.do(WORK.format(threads=THREADS, seed=seed))
    outcomes = [(lender.suspend(), lender.resume()) for _ in range(cycles)]
    worker.do("stop.set(); [thread.join() for thread in threads]")
    assert worker.get("faults") == [], f"seed {seed}"
    assert outcomes == [(lib.GS_MOVED, lib.GS_MOVED)] * cycles, f"seed {seed}"
    assert worker.get("min(rounds)") > 0
    assert worker.charged() > 0


@pytest.mark.parametrize("function", ["cuCtxSynchronize", "cuCtxRecordEvent"])
def test_a_capture_that_begins_during_a_free_goes_on(lender: Lender, interpose: Interpose, function: str) -> None:
    """The free waits for all work of the context, and to look at that would end the capture."""
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    worker.do("from memory import holds; s = ok(d.cuStreamCreate(1))")
    worker.do("thread_local = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
    worker.do(f"""
        import threading
        def capture():
            ok(d.cuCtxSetCurrent(ctx))
            ok(d.cuStreamBeginCapture(s, thread_local))
            begun.wait()
            return error(d.cuStreamEndCapture(s))
        def free():
            ok(d.cuCtxSetCurrent(ctx))
            try:
                ok(d.cuMemFree(a))
            finally:
                begun.set()
        begun = threading.Event()
        crossing = holds.cross(free, {function!r}, holds.BEFORE, capture)
    """)
    assert worker.get("crossing.second") == "CUDA_SUCCESS"
