"""Interprocess events: recorded by one process, waited for by another."""

import os
import signal
import time
from typing import Any

import pytest
from run.simworker import Worker, start
from run.waiting import until

FLAGS = 2 | 4  # no timing, interprocess


def give(one: Worker, two: Worker) -> None:
    """Makes `e` of `two` the same event as `e` of `one`."""
    one.do(f"e = ok(d.cuEventCreate({FLAGS})); h = ok(d.cuIpcGetEventHandle(e))")
    handle = one.get("list(ctypes.string_at(h.getPtr(), 64))")
    two.do(
        f"h = d.CUipcEventHandle(); ctypes.memmove(h.getPtr(), bytes({handle}), 64); e = ok(d.cuIpcOpenEventHandle(h))"
    )


@pytest.fixture
def pair(sim: Any) -> tuple[Worker, Worker]:
    one, two = start(sim), start(sim)
    for worker in (one, two):
        worker.do("s = ok(d.cuStreamCreate(1)); w = ok(d.cuMemAlloc(8)); put(w, bytes(8))")
    give(one, two)
    return one, two


def ready(worker: Worker, call: str = "d.cuEventQuery(e)") -> bool:
    return worker.error(call) == "CUDA_SUCCESS"


def test_a_wait_is_for_the_record_of_the_other_process(pair: tuple[Worker, Worker]) -> None:
    one, two = pair
    assert ready(one) and ready(two), "never recorded: nothing to wait for"
    one.do("ok(d.cuStreamWaitValue32(s, w, 1, 0)); ok(d.cuEventRecord(e, s))")
    two.do("ok(d.cuStreamWaitEvent(s, e, 0))")
    time.sleep(0.05)
    assert not ready(one)
    assert not ready(two)
    assert not ready(two, "d.cuStreamQuery(s)")
    one.do("put(w, bytes([1, 0, 0, 0]))")
    two.do("ok(d.cuEventSynchronize(e)); ok(d.cuStreamSynchronize(s))")
    assert ready(one)


def test_the_other_process_records_too(pair: tuple[Worker, Worker]) -> None:
    one, two = pair
    two.do("ok(d.cuStreamWaitValue32(s, w, 1, 0)); ok(d.cuEventRecord(e, s))")
    one.do("ok(d.cuStreamWaitEvent(s, e, 0))")
    assert not ready(one, "d.cuStreamQuery(s)")
    two.do("put(w, bytes([1, 0, 0, 0]))")
    one.do("ok(d.cuStreamSynchronize(s))")


def test_what_a_dead_process_recorded_never_happens(sim: Any, pair: tuple[Worker, Worker]) -> None:
    one, two = pair
    one.do("ok(d.cuStreamWaitValue32(s, w, 1, 0)); ok(d.cuEventRecord(e, s))")
    two.do("ok(d.cuStreamWaitEvent(s, e, 0))")
    os.kill(one.pid, signal.SIGKILL)
    one.process.wait(10)
    until(lambda: not sim.process(one.pid)["alive"], "the engine sees the end")
    time.sleep(0.05)
    assert not ready(two)
    assert not ready(two, "d.cuStreamQuery(s)")
    two.do("t = ok(d.cuStreamCreate(1)); ok(d.cuEventRecord(e, t)); ok(d.cuEventSynchronize(e))")
    two.do("ok(d.cuStreamSynchronize(s))")


def test_what_is_refused(sim: Any, pair: tuple[Worker, Worker]) -> None:
    one, two = pair
    assert one.error("d.cuEventCreate(4)") == "CUDA_ERROR_INVALID_VALUE", "timing must be off"
    assert one.error("d.cuIpcOpenEventHandle(h)") == "CUDA_ERROR_INVALID_CONTEXT"
    assert one.error("d.cuIpcGetEventHandle(ok(d.cuEventCreate(2)))") == "CUDA_ERROR_INVALID_VALUE"
    assert two.error("d.cuIpcOpenEventHandle(d.CUipcEventHandle())") == "CUDA_ERROR_INVALID_VALUE"
    assert two.error("d.cuEventElapsedTime(e, e)") == "CUDA_ERROR_INVALID_HANDLE"
    handle = one.get("list(ctypes.string_at(h.getPtr(), 64))")
    two.do(f"ctypes.memmove(h.getPtr(), bytes({handle[:8] + [1] * 16 + handle[24:]}), 64)")
    assert two.error("d.cuIpcOpenEventHandle(h)") == "CUDA_ERROR_INVALID_VALUE"
    two.do("ok(d.cuEventDestroy(e))")
    assert two.error("d.cuEventQuery(e)") == "CUDA_ERROR_INVALID_HANDLE"
    assert ready(one)
