"""A pool releases a piece, or grows a smaller one at the same address, while another call is between the driver and the
accounting: in a full grant nothing is then allocated as if the piece were still there."""

import pytest
from memory.memorybooks import agreed
from pages.handmade import Grant, Simulator
from run.interposed import TAKING_FROM_POOLS, Interpose, Interposed

MIB = 1 << 20
STEP = 32 * MIB
OUT_OF_MEMORY = 2


@pytest.fixture
def worker(grant: Grant, interpose: Interpose) -> Interposed:
    made = interpose(grant)
    made.do(TAKING_FROM_POOLS)
    grant.set_limit(grant.charged(0) + 3 * STEP)
    return made


def test_a_piece_is_given_back_before_the_free_has_returned(worker: Interposed, grant: Grant, sim: Simulator) -> None:
    worker.do(f"""
        kept = ok(take({STEP}))
        freed = ok(take(40 * {MIB}))  # its piece has 24 MiB more
        def others():
            ok(d.cuStreamSynchronize(s[0]))
            taken.append(ok(d.cuMemAlloc({2 * STEP})))
            return take(20 * {MIB}, 1)[0]
        taken = []
        crossing = holds.cross(
            current(lambda: ok(d.cuMemFreeAsync(freed, s[0]))), "cuMemFreeAsync", holds.AFTER, current(others)
        )
    """)
    assert worker.get("crossing.held and not crossing.blocked")
    assert worker.get("int(crossing.second)") == OUT_OF_MEMORY
    agreed(grant, sim)


def test_a_smaller_piece_lies_where_another_one_was(worker: Interposed, grant: Grant, sim: Simulator) -> None:
    """A wait that has not yet returned releases a piece after the allocation was found to need no growth."""
    worker.do(f"""
        kept = ok(take({STEP}))
        freed = ok(take(40 * {MIB}))
        full = take({STEP})[0]  # after that, all pieces are known to be there
        ok(d.cuMemFreeAsync(freed, s[0]))
        waiter = holds.Operation(current(lambda: ok(d.cuStreamSynchronize(s[0]))))
        with holds.Hold("cuStreamSynchronize", holds.AFTER, waiter.native_id) as wait:
            crossing = holds.cross(
                current(lambda: ok(take(10 * {MIB}))), "cuMemAllocAsync", holds.BEFORE,
                lambda: (waiter.go(), wait.stopped(holds.PATIENCE_S))
            )
        waiter.result("the wait")
        again = int(crossing.first) - int(freed)
        taken = ok(d.cuMemAlloc({STEP}))
        refused = take(30 * {MIB})[0]
    """)
    assert worker.get("crossing.held and crossing.second[1] == waiter.native_id")
    assert 0 <= worker.get("again") < 2 * STEP
    assert worker.get("int(full)") == worker.get("int(refused)") == OUT_OF_MEMORY
    agreed(grant, sim)


def test_a_growth_that_another_thread_notices_first(worker: Interposed, grant: Grant, sim: Simulator) -> None:
    """The piece that a call adds lies in the middle of one that was released before, if the kernel picks that
    address."""
    worker.do(f"""
        pool = ok(d.cuDeviceGetDefaultMemPool(0))
        for attempt in range(10):
            before = ok(take(40 * {MIB}))
            ok(d.cuMemFreeAsync(before, s[0])); ok(d.cuStreamSynchronize(s[0]))
            crossing = holds.cross(
                current(lambda: ok(take(10 * {MIB}))), "cuMemAllocAsync", holds.AFTER,
                current(lambda: ok(d.cuMemPoolTrimTo(pool, 1 << 40))),
            )
            assert crossing.held
            if 0 < int(crossing.first) - int(before) < {2 * STEP}:
                break
            ok(d.cuMemFreeAsync(crossing.first, s[0])); ok(d.cuStreamSynchronize(s[0]))
        else:
            ok(take(10 * {MIB}))
        taken = ok(d.cuMemAlloc({2 * STEP}))
        refused = take(30 * {MIB})[0]
    """)
    assert worker.get("int(refused)") == OUT_OF_MEMORY
    worker.do(f"ok(take(20 * {MIB}))")
    agreed(grant, sim)


def test_a_capture_that_begins_while_an_allocation_waits_for_its_stream_goes_on(
    worker: Interposed, grant: Grant, sim: Simulator
) -> None:
    """The allocation asks for its stream no more, and is refused."""
    worker.do(f"""
        gate = ok(d.cuMemAlloc(4))
        put(gate, bytes(4))
        kept = ok(take({2 * STEP}))
        ok(d.cuStreamWaitValue32(s[0], gate, 1, 0))
        allocation = holds.Operation(current(lambda: take(30 * {MIB})))
        with holds.Hold("cuStreamQuery", holds.AFTER, allocation.native_id) as query:
            allocation.go()
            held = query.stopped(holds.PATIENCE_S)
            ok(d.cuStreamBeginCapture(s[1], d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
            with holds.Hold("cuStreamQuery", holds.BEFORE, allocation.native_id):  # it would be held if it asked again
                query.release()
                refused = allocation.result("the allocation")[0]
        captured = d.cuStreamEndCapture(s[1])[0]
        put(gate, bytes([1, 0, 0, 0]))
        ok(d.cuStreamSynchronize(s[0]))
    """)
    assert worker.get("held")
    assert worker.get("int(refused)") == OUT_OF_MEMORY
    assert worker.get("int(captured)") == 0
    agreed(grant, sim)
