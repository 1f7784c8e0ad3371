"""Allocations from pools that race with other calls of the grant: never over the limit, and not refused because of
bytes that another call might have taken but did not."""

import threading
import time
from collections.abc import Callable

import pytest
from memory.memorybooks import agreed
from pages.handmade import Grant, Simulator
from run.interposed import TAKING_FROM_POOLS, Interpose, Interposed
from run.waiting import until

MIB = 1 << 20
STEP = 32 * MIB
OK, OUT_OF_MEMORY = 0, 2
PATIENCE_S = 0.2  # of native/page/page.c


@pytest.fixture
def start(grant: Grant, interpose: Interpose) -> Callable[[], Interposed]:
    def run() -> Interposed:
        made = interpose(grant)
        made.do(TAKING_FROM_POOLS)
        return made

    return run


@pytest.mark.parametrize("change", ["d.cuDeviceSetMemPool(0, other)", "d.cuMemPoolDestroy(own)"])
def test_another_pool_becomes_the_current_one(
    start: Callable[[], Interposed], grant: Grant, sim: Simulator, change: str
) -> None:
    """While an allocation from the pool that was current is on its way to the driver."""
    worker = start()
    worker.do("""
        from memory.poolscenes import properties
        own, other = ok(d.cuMemPoolCreate(properties())), ok(d.cuMemPoolCreate(properties()))
        ok(d.cuDeviceSetMemPool(0, own))
    """)
    worker.do(f"""
        crossing = holds.cross(
            current(lambda: ok(take({MIB}))), "cuMemAllocAsync", holds.BEFORE, current(lambda: {change})
        )
    """)
    assert worker.get("crossing.held")
    agreed(grant, sim)


def test_what_a_call_might_have_taken_is_waited_for(
    start: Callable[[], Interposed], grant: Grant, sim: Simulator
) -> None:
    """Two processes near the limit: the pool of one has room, which is known only when its call has returned."""
    one, other = start(), start()
    one.do(f"kept = ok(take({MIB}))")
    grant.set_limit(grant.charged() + STEP)
    one.do(f"taken = holds.Operation(current(lambda: ok(take({MIB}))))")
    one.do("hold = holds.Hold('cuMemAllocAsync', holds.BEFORE, taken.native_id); taken.go()")
    one.do("assert hold.stopped(holds.PATIENCE_S)")
    assert one.get("ok(d.cuMemGetInfo())[0]") == 0
    assert other.get("ok(d.cuMemGetInfo())[0]") == STEP, "nothing is taken yet"
    answers: list[tuple[int, float]] = []

    def ask() -> None:
        began = time.monotonic()
        result = other.get(f"int(d.cuMemAlloc({STEP})[0])")
        answers.append((result, time.monotonic() - began))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: grant.slot(1).memory_pending == STEP or bool(answers), "the other process waits", 60)
    one.do("hold.release(); taken.result('the allocation')")
    asking.join(60)
    [(result, waited)] = answers
    assert result == OK or (result == OUT_OF_MEMORY and waited > PATIENCE_S), "a machine that stood still"
    agreed(grant, sim)


def test_a_call_that_takes_all_it_might(start: Callable[[], Interposed], grant: Grant, sim: Simulator) -> None:
    """The other process is refused, during that call and after it."""
    one, other = start(), start()
    grant.set_limit(grant.charged() + STEP)
    one.do(f"taken = holds.Operation(current(lambda: ok(take({MIB}))))")
    one.do("hold = holds.Hold('cuMemAllocAsync', holds.AFTER, taken.native_id); taken.go()")
    one.do("assert hold.stopped(holds.PATIENCE_S)")
    assert other.get(f"int(d.cuMemAlloc({STEP})[0])") == OUT_OF_MEMORY
    one.do("hold.release(); taken.result('the allocation')")
    assert other.get(f"int(d.cuMemAlloc({MIB})[0])") == OUT_OF_MEMORY
    agreed(grant, sim)


def test_a_call_that_never_ends(start: Callable[[], Interposed], grant: Grant, sim: Simulator) -> None:
    """The call's process is dead: the others wait for a while and are refused; they get the bytes once its slot is
    cleared."""
    worker = start()
    charged = grant.charged()
    grant.set_limit(charged + STEP)
    grant.put_slot(5, 77)
    grant.usage.slot[5].device[0].memory_growing = STEP
    began = time.monotonic()
    assert worker.get(f"int(take({MIB})[0])") == OUT_OF_MEMORY
    assert time.monotonic() - began >= PATIENCE_S
    grant.give_back(5)
    worker.do(f"ok(take({MIB}))")
    assert agreed(grant, sim) == charged + STEP


def test_a_thread_waits_for_another_of_its_process(
    start: Callable[[], Interposed], grant: Grant, sim: Simulator
) -> None:
    worker = start()
    worker.do(f"kept = ok(take({MIB}))")
    grant.set_limit(grant.charged() + STEP)
    worker.do(f"""
        crossing = holds.cross(
            current(lambda: ok(take({MIB}))), "cuMemAllocAsync", holds.BEFORE,
            current(lambda: (int(d.cuMemAlloc({MIB})[0]), int(d.cuMemAlloc({2 * STEP})[0]))),
        )
    """)
    assert worker.get("crossing.held")
    assert worker.get("crossing.second[1]") == OUT_OF_MEMORY
    agreed(grant, sim)
