"""While the memory of a grant is away, none of its processes takes any of the device: not one with nothing that can be
moved, nor one that joins meanwhile. What it took would be others'."""

import random
from pathlib import Path

import pytest
from memory import growing
from memory.growing import LAUNCHES, MIB, TAKES
from memory.moving import AWAY, filled, held, same
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose
from run.waiting import until

from gpushare._native import lib

CONTEXTS = {
    "the primary context": "d.cuDevicePrimaryCtxRetain(0)",
    "a context": "d.cuCtxCreate(None, 0, 0)",
    "a green context": "d.cuGreenCtxCreate(part, 0, d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)",
}


def wants(lender: Lender, index: int = 0) -> bool:
    return bool(lender.slot(index).flags & lib.GS_SLOT_WANTS)


@pytest.mark.promise("away-takes-no-more")
@pytest.mark.parametrize("movable", [True, False], ids=["with memory that moves", "with nothing that moves"])
@pytest.mark.parametrize("what", [*TAKES, *LAUNCHES])
def test_what_takes_memory_waits(
    sim: Simulator, lender: Lender, interpose: Interpose, tmp_path: Path, what: str, movable: bool
) -> None:
    worker = interpose(lender)
    growing.ready(worker, tmp_path)
    if movable:
        filled(worker, "a", 3 * MIB, 1)
    worker.do(AWAY)
    assert lender.suspend() == lib.GS_MOVED
    before, charged = held(sim, worker), lender.charged(0)
    worker.do(f"thread = start(lambda: {(TAKES | LAUNCHES)[what]})")
    until(lambda: wants(lender), "it waits, and says so")
    assert (held(sim, worker), lender.charged(0)) == (before, charged)
    assert worker.get("results") == []
    assert lender.resume() == lib.GS_MOVED
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"
    assert lender.charged(0) > charged
    assert what == "node of a graph" or worker.charged()  # the driver takes what that needs at the launch
    assert not movable or same(worker, "a")


@pytest.mark.parametrize("what", ["small", "pool", "handle", "context", "module", "launch", "graph launch"])
def test_nobody_waits_for_a_process_with_nothing_to_move(
    sim: Simulator, lender: Lender, interpose: Interpose, tmp_path: Path, what: str
) -> None:
    """It is told by the word alone: here its mover never gets to see it."""
    worker = interpose(lender)
    growing.ready(worker, tmp_path)
    worker.do(AWAY)
    worker.do("""
        from memory import holds
        from pathlib import Path
        tasks = [t for t in Path("/proc/self/task").iterdir() if (t / "comm").read_text() == "gpushare-mover\\n"]
    """)
    worker.do("hold = holds.Hold('cuCtxRecordEvent', holds.BEFORE, int(tasks[0].name))")
    lender.want(lib.GS_HOSTED)
    charged = lender.charged(0)
    assert worker.get("hold.stopped(20)")
    worker.do(f"thread = start(lambda: {(TAKES | LAUNCHES)[what]})")
    worker.do("thread.join(0.3)")
    assert worker.get("results") == []
    assert held(sim, worker) == lender.charged(0) == charged
    word = lender.want(lib.GS_RESIDENT)
    worker.do("hold.release(); thread.join()")
    assert lender.carried_out(word) == lib.GS_MOVED
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"


@pytest.mark.parametrize("what", CONTEXTS)
def test_a_process_that_joins_meanwhile_makes_no_context(
    sim: Simulator, lender: Lender, interpose: Interpose, what: str
) -> None:
    first = interpose(lender)
    filled(first, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    late = interpose(lender, None)
    late.do("""
        import threading
        whole = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        part = ok(d.cuDevResourceGenerateDesc([whole], 1))
        results = []
    """)
    late.do(f"thread = threading.Thread(target=lambda: results.append({CONTEXTS[what]})); thread.start()")
    until(lambda: wants(lender, 1), "it waits, and says so")
    assert held(sim, late) == lender.slot(1).memory_bytes == 0
    assert late.get("results") == []
    assert lender.resume() == lib.GS_MOVED
    late.do("thread.join()")
    assert late.get("error(results[0])") == "CUDA_SUCCESS"
    assert late.charged() > 0
    assert same(first, "a")


def test_what_a_call_has_reserved_is_counted_before_it_is_taken(
    sim: Simulator, lender: Lender, interpose: Interpose
) -> None:
    """It is on its way to the driver when the memory leaves."""
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    worker.do(AWAY)
    worker.do("from memory import holds; hold = holds.Hold('cuMemCreate', holds.BEFORE)")
    worker.do("thread = start(lambda: d.cuMemCreate(4 << 20, on_device(), 0))")
    assert worker.get("hold.stopped(20)")
    assert lender.suspend() == lib.GS_MOVED
    counted = lender.charged(0) - lender.slot().hosted_bytes
    worker.do("hold.release(); thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"
    assert held(sim, worker) == counted
    assert lender.resume() == lib.GS_MOVED
    assert worker.charged() > 0


def test_others_go_on_while_a_call_waits_for_room(lender: Lender, interpose: Interpose, tmp_path: Path) -> None:
    """It keeps no lock that a call needs which takes nothing."""
    worker = interpose(lender)
    growing.ready(worker, tmp_path)
    filled(worker, "a", 3 * MIB, 1)
    worker.do(AWAY)
    worker.do(
        "other = ok(d.cuCtxCreate(None, 0, 0)); ok(d.cuCtxSetCurrent(ctx)); block = ok(d.cuMemAllocAsync(4096, s))"
    )
    assert lender.suspend() == lib.GS_MOVED
    worker.do(f"waiting = [start(each) for each in ({', '.join(f'lambda: {call}' for call in TAKES.values())})]")
    until(lambda: wants(lender), "they wait")
    worker.do("""
        ends = start(lambda: [d.cuModuleUnload(deep_module), d.cuMemFreeAsync(block, s), d.cuStreamSynchronize(s),
                              d.cuDeviceSetMemPool(0, own_pool), d.cuLibraryUnload(library), d.cuCtxDestroy(other),
                              d.cuMemFree(a), d.cuDevicePrimaryCtxRetain(0)])
        ends.join(20)
    """)
    assert worker.get("len(results)") == 1, "nothing of that waits"
    assert lender.resume() == lib.GS_MOVED
    worker.do("[thread.join() for thread in waiting]")
    assert worker.get("len(results)") == 1 + len(TAKES)


@pytest.mark.parametrize("rounds", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_what_was_counted_once_it_was_told_is_all_it_has(
    sim: Simulator, lender: Lender, interpose: Interpose, rounds: int
) -> None:
    """As the daemon counts: it writes the word, and then reads what is charged. Whatever the process is in the middle
    of, the device's own books never show more. It has nothing to move, so it is not waited for."""
    seed = random.randrange(1 << 32)
    worker = interpose(lender)
    worker.do(f"""
        import random, threading
        stop, failures, rounds = threading.Event(), [], [0] * 3
        def take(number):
            rng, kept = random.Random({seed} + number), []
            ok(d.cuCtxSetCurrent(ctx))
            s = ok(d.cuStreamCreate(1))
            ways = [(lambda: ok(d.cuMemAlloc(1 << 20)), lambda at: ok(d.cuMemFree(at))),
                    (lambda: ok(d.cuMemCreate(2 << 20, on_device(), 0)), lambda handle: ok(d.cuMemRelease(handle))),
                    (lambda: ok(d.cuMemAllocAsync(3 << 20, s)), lambda at: ok(d.cuMemFreeAsync(at, s)))]
            try:
                while not stop.is_set():
                    rounds[number] += 1
                    make, end = rng.choice(ways)
                    kept.append((make(), end))
                    if len(kept) > 6:
                        made, end = kept.pop(rng.randrange(len(kept)))
                        end(made)
            except BaseException as failure:
                failures.append(repr(failure))
        threads = [threading.Thread(target=take, args=(n,)) for n in range(3)]
        [thread.start() for thread in threads]
    """)
    for _ in range(rounds):
        word = lender.want(lib.GS_HOSTED)
        counted = _charged(lender)
        samples = [held(sim, worker) for _ in range(5)]
        until(lambda word=word: wants(lender) or lender.slot().residency == word, "it has heard of it", 20)
        samples += [held(sim, worker) for _ in range(3)]
        assert max(samples) <= counted, f"seed {seed}"
        before = worker.get("sum(rounds)")
        assert lender.carried_out(lender.want(lib.GS_RESIDENT)) == lib.GS_MOVED
        until(lambda before=before: worker.get("sum(rounds)") > before, "it goes on")
    worker.do("stop.set(); [thread.join() for thread in threads]")
    assert worker.get("failures") == [], f"seed {seed}"


def _charged(lender: Lender) -> int:
    """With what calls in progress may take."""
    slot = lender.slot()
    return slot.memory_growing + slot.memory_bytes


@pytest.mark.promise("away-takes-no-more")
def test_a_claim_that_is_decided_after_the_word_is_undone(sim: Simulator, lender: Lender, interpose: Interpose) -> None:
    """It waits for the announcement of another process, which takes it back once the memory is to leave."""
    worker, other = interpose(lender), interpose(lender)
    words = lender.usage.slot[1].device[0]
    charged = lender.charged(0)
    worker.do(AWAY)

    def decided_late() -> bool:
        """False: it has not waited for long enough."""
        words.memory_pending = lender.limits.device[0].memory_bytes
        worker.do("results.clear(); thread = start(lambda: d.cuMemAlloc(1 << 20))")
        until(lambda: lender.slot().memory_pending or worker.get("len(results)"), "it announces its claim")
        lender.want(lib.GS_HOSTED)
        words.memory_pending = 0
        until(lambda: wants(lender) or worker.get("len(results)"), "it waits for room, or was refused before")
        return wants(lender)

    while not decided_late():
        assert worker.get("error(results[0])") == growing.OUT
        lender.want(lib.GS_RESIDENT)
    assert lender.charged(0) == charged
    assert held(sim, worker) + held(sim, other) == charged
    lender.want(lib.GS_RESIDENT)
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"
