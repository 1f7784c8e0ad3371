"""Calls of the simulated driver that a test pauses before or after their effect."""

from typing import Any

import pytest
from run.simworker import Worker, held, start

GRAIN = 2 << 20
SETUP = """
import threading
from memory import holds
def current():
    ok(d.cuCtxSetCurrent(ctx))
def alloc():
    current()
    return int(ok(d.cuMemAlloc(2 << 20)))
"""


@pytest.fixture
def worker(sim: Any) -> Worker:
    made = start(sim)
    made.do(SETUP)
    return made


@pytest.mark.parametrize(("when", "bytes_held"), [("BEFORE", 0), ("AFTER", GRAIN)])
def test_a_call_is_held_before_or_after_its_effect(sim: Any, worker: Worker, when: str, bytes_held: int) -> None:
    worker.do(f"""
        one = holds.Operation(alloc)
        hold = holds.Hold("cuMemAlloc_v2", holds.{when})
        one.go()
        thread = hold.stopped(20)
    """)
    assert worker.get("thread == one.native_id")
    assert held(sim, worker) == bytes_held
    assert worker.get("(hold.stopped(), hold.release(), hold.release(), one.result('it') > 0)")[1:] == [
        True,
        False,
        True,
    ]
    assert held(sim, worker) == GRAIN
    worker.do("alloc()")  # only one call
    assert held(sim, worker) == 2 * GRAIN


def test_other_calls_go_on_while_one_is_held(worker: Worker) -> None:
    """Calls of every family, and of the held function too."""
    worker.do("""
        stream = ok(d.cuStreamCreate(1))
        def others():
            current()
            kept = ok(d.cuMemAlloc(4096))
            put(kept, b"x" * 4096)
            ok(d.cuMemAllocAsync(4096, stream)); ok(d.cuStreamSynchronize(stream)); ok(d.cuCtxSynchronize())
            h = ok(d.cuMemCreate(2 << 20, on_device(), 0)); ok(d.cuMemRelease(h)); ok(d.cuMemPoolDestroy(pool()))
            ok(d.cuMemFree(kept))
            return "done"
    """)
    for function, when in [("cuMemAlloc", "BEFORE"), ("cuMemAlloc", "AFTER")]:
        worker.do(f"done = holds.cross(alloc, '{function}', holds.{when}, others)")
        assert worker.get("(done.held, done.blocked, done.second)") == [True, False, "done"]


def test_names_stand_for_themselves_or_for_all_versions(worker: Worker) -> None:
    worker.do("""
        stream = ok(d.cuStreamCreate(1))
        def held_in(call, name):
            return holds.cross(call, name, holds.BEFORE, lambda: None).held
        def wait():
            current(); lib.cuStreamSynchronize_ptsz(ctypes.c_void_p(int(stream)))
    """)
    assert worker.get("held_in(alloc, 'cuMemAlloc_v2')") is True
    assert worker.get("held_in(alloc, 'cuMemAlloc')") is True
    assert worker.get("held_in(alloc, 'cuMemAllocPitch')") is False
    assert worker.get("[held_in(wait, 'cuStreamSynchronize' + end) for end in ('', '_ptsz')]") == [True, True]
    for name in (b"cuMemAllok", b"", b"gs_sim_hold", b"x" * 200):
        assert worker.get(f"holds.library().gs_sim_hold({name!r}, 0, 0, 0)") == -1
    assert worker.get("holds.library().gs_sim_hold(b'cuInit', 2, 0, 0)") == -1


def test_by_thread_and_by_count(worker: Worker) -> None:
    worker.do("""
        other = holds.Hold("cuMemAlloc", holds.BEFORE, thread=1)
        alloc()  # not that thread
        third = holds.Hold("cuMemAlloc", holds.AFTER, skip=2)
        one = holds.Operation(lambda: [alloc() for _ in range(4)])
        alloc()
        one.go()
    """)
    assert worker.get("(third.stopped(20) == one.native_id, other.stopped())") == [True, 0]
    assert worker.get("(third.release(), other.release(), len(one.result('it')))") == [True, False, 4]


def test_a_second_call_that_waits_is_seen_to_wait(worker: Worker) -> None:
    worker.do("""
        free = threading.Event()
        def first():
            try:
                return alloc()
            finally:
                free.set()
        done = holds.cross(first, "cuMemAlloc", holds.AFTER, lambda: free.wait(60))
        never = holds.cross(lambda: 7, "cuMemAlloc", holds.AFTER, lambda: 8)
    """)
    assert worker.get("(done.held, done.blocked, done.second)") == [True, True, True]
    assert worker.get("(never.held, never.blocked, never.first, never.second)") == [False, False, 7, 8]


def test_a_child_has_no_holds(worker: Worker) -> None:
    worker.do("""
        import os
        hold = holds.Hold("cuMemGetInfo", holds.BEFORE)
        child = os.fork()
        if child == 0:
            os._exit(0 if d.cuMemGetInfo()[0].name == "CUDA_ERROR_NOT_INITIALIZED" else 1)
        status = os.waitpid(child, 0)[1]
    """)
    assert worker.get("(status, hold.stopped(), hold.release())") == [0, 0, False]


def test_the_end_of_too_many_holds(worker: Worker) -> None:
    worker.do("numbers = [holds.library().gs_sim_hold(b'cuInit', 0, 1, 0) for _ in range(33)]")
    assert worker.get("(numbers.count(0), numbers[-1], len(set(numbers)))") == [1, 0, 33]
    assert worker.get("[holds.library().gs_sim_release(n) for n in numbers[:3]]") == [0, 0, 0]
    assert worker.get("holds.library().gs_sim_held(numbers[0], 0)") == -1
    assert worker.get("holds.library().gs_sim_hold(b'cuInit', 0, 1, 0) > 33 - 1")
