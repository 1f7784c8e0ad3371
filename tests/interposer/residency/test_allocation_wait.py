"""An allocation that the grant may make waits for room on the device for a time, and is then refused as out of memory.
Launches and copies wait for as long as it takes."""

import os
from pathlib import Path

import pytest
from memory import growing
from memory.growing import LAUNCHES, MIB, OUT, TAKES
from memory.moving import AWAY, filled, held, same
from pages.handmade import Grant, Simulator
from pages.lending import Lender
from run.interposed import Interpose, Interposed
from run.waiting import until

from gpushare._native import ffi, lib

FREE = {
    "small": "d.cuMemFree(made)",
    "movable": "d.cuMemFree(made)",
    "rows": "d.cuMemFree(made[0])",
    "managed": "d.cuMemFree(made)",
    "pool": "d.cuMemFreeAsync(made, s)",
    "handle": "d.cuMemRelease(made)",
    "array": "d.cuArrayDestroy(made)",
    "context": "d.cuCtxDestroy(made)",
    "module": "d.cuModuleUnload(made)",
}
"""Of those that the device refuses when it is full, whoever has its memory."""

COPIES = {"graph of kernels", "graph's memory"}
"""For these the driver may look at memory that is hosted: they wait as a copy does."""


@pytest.fixture
def worker(lender: Lender, interpose: Interpose, tmp_path: Path) -> Interposed:
    made = interpose(lender)
    growing.ready(made, tmp_path)
    made.do(AWAY)
    return made


def events(lender: Lender) -> list[str]:
    """The texts of what the first process recorded."""
    ring = lender.usage.trace[0]
    kinds = [ring.event[number % lib.GS_TRACE_EVENTS].kind for number in range(ring.count)]
    return [ffi.string(lib.gs_trace_text(kind)).decode() for kind in kinds]


@pytest.mark.parametrize("what", [each for each in TAKES if each not in COPIES])
def test_it_is_refused_after_a_time(sim: Simulator, lender: Lender, worker: Interposed, what: str) -> None:
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    lender.limits.allocation_wait_ms = 300
    before, charged = held(sim, worker), lender.charged(0)
    worker.do(f"""
        import time
        began = time.monotonic()
        refused = error({TAKES[what]})
        waited = time.monotonic() - began
    """)
    assert worker.get("refused") == OUT
    assert worker.get("waited") >= 0.3
    assert (held(sim, worker), lender.charged(0)) == (before, charged)
    assert lender.wants, "it has been said all the same"
    assert sum("waited for the grant's memory" in text for text in events(lender)) == 1
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")
    worker.do(f"ok({TAKES[what]})")


@pytest.mark.parametrize("what", ["small", "movable", "pool", "context", "module"])
def test_without_any_patience_it_is_refused_at_once(lender: Lender, worker: Interposed, what: str) -> None:
    filled(worker, "a", 3 * MIB, 1)
    lender.limits.allocation_wait_ms = 0
    assert lender.suspend() == lib.GS_MOVED
    assert worker.error(TAKES[what]) == OUT
    assert lender.resume() == lib.GS_MOVED
    worker.do(f"ok({TAKES[what]})")


@pytest.mark.parametrize("what", LAUNCHES)
@pytest.mark.parametrize("movable", [True, False], ids=["with memory that moves", "with nothing that moves"])
def test_a_launch_is_not_refused(lender: Lender, worker: Interposed, what: str, movable: bool) -> None:
    """Not even a first one, which takes memory."""
    if movable:
        filled(worker, "a", 3 * MIB, 1)
    lender.limits.allocation_wait_ms = 1
    assert lender.suspend() == lib.GS_MOVED
    worker.do(f"thread = start(lambda: {LAUNCHES[what]})")
    until(lambda: lender.wants, "it waits")
    for _ in range(3):
        assert worker.error(TAKES["small"]) == OUT
    assert worker.get("results") == []
    assert lender.resume() == lib.GS_MOVED
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"


@pytest.mark.parametrize(
    "call", ["d.cuMemAlloc(3 << 30)", "d.cuMemAlloc(1970 << 20)", "d.cuMemCreate(1970 << 20, on_device(), 0)"]
)
def test_what_the_grant_may_not_have_waits_for_nothing(lender: Lender, worker: Interposed, call: str) -> None:
    filled(worker, "a", 64 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    assert worker.error(call) == OUT
    assert not lender.wants, "nobody is to bring memory back for that"
    assert lender.slot().hosted_bytes == 64 * MIB


def test_it_is_refused_while_memory_is_on_its_way_without_end(
    lender: Lender, worker: Interposed, interpose: Interpose
) -> None:
    """The room is the grant's again, but somebody without a grant uses it."""
    filled(worker, "a", 64 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    stranger = full(interpose)
    assert lender.carried_out(lender.want(lib.GS_RESIDENT)) == lib.GS_MOVE_NO_DEVICE
    lender.limits.allocation_wait_ms = 200
    assert worker.error(TAKES["movable"]) == OUT
    stranger.do("[ok(d.cuMemFree(each)) for each in rest]")
    until(lambda: lender.slot().move == lib.GS_MOVED, "it is back")
    lender.lease()
    assert same(worker, "a")
    worker.do(f"ok({TAKES['movable']})")


def full(interpose: Interpose) -> Interposed:
    """Somebody without a grant has all that is left of the device."""
    stranger = interpose(None)
    stranger.do("""
        rest = []
        for size in (256 << 20, 16 << 20, 2 << 20, 4096, 512):
            while (answer := d.cuMemAlloc(size))[0] == 0:
                rest.append(answer[1])
    """)
    return stranger


@pytest.mark.parametrize("what", FREE)
def test_a_full_device_is_waited_for(lender: Lender, worker: Interposed, interpose: Interpose, what: str) -> None:
    stranger = full(interpose)
    charged = lender.charged(0)
    worker.do(f"thread = start(lambda: {TAKES[what]})")
    worker.do("thread.join(0.2)")
    assert worker.get("results") == []
    stranger.do("[ok(d.cuMemFree(each)) for each in rest]")
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"
    assert worker.charged() > charged
    worker.do(f"made = results[0][1] if len(results[0]) == 2 else results[0][1:]; ok({FREE[what]})")


def test_room_that_comes_and_goes_is_waited_for(lender: Lender, worker: Interposed, interpose: Interpose) -> None:
    """As where others' memory leaves and comes: the device has refused, and has room again when it is looked at."""
    stranger = full(interpose)
    stranger.do("""
        import threading, time
        over = threading.Event()
        block = next(each for each in rest if ok(d.cuMemGetAddressRange(each))[1] == 2 << 20)
        rest.remove(block)
        ok(d.cuMemFree(rest.pop()))  # what goes with the memory, whose room does not come and go
        def come_and_go():
            ok(d.cuCtxSetCurrent(ctx))
            block = globals()["block"]
            while not over.is_set():
                ok(d.cuMemFree(block))
                time.sleep(0.0003)
                while (answer := d.cuMemAlloc(2 << 20))[0]:
                    pass
                block = answer[1]
                time.sleep(0.0003)
        goes = threading.Thread(target=come_and_go); goes.start()
    """)
    worker.do("""
        for _ in range(200):
            ok(d.cuMemFree(ok(d.cuMemAlloc(2 << 20))))
    """)
    stranger.do("over.set(); goes.join()")


@pytest.mark.parametrize("what", FREE)
def test_a_full_device_is_waited_for_only_for_a_time(
    lender: Lender, worker: Interposed, interpose: Interpose, what: str
) -> None:
    stranger = full(interpose)
    charged = worker.charged()
    lender.limits.allocation_wait_ms = 100
    assert worker.error(TAKES[what]) == OUT
    assert worker.charged() == charged
    stranger.do("[ok(d.cuMemFree(each)) for each in rest]")
    worker.do(f"made = ok({TAKES[what]}); ok({FREE[what]})")


@pytest.mark.parametrize("what", FREE)
def test_a_grant_that_keeps_its_memory_is_refused_at_once(
    grant: Grant, interpose: Interpose, tmp_path: Path, what: str
) -> None:
    """As by the driver alone, whatever its page says."""
    grant.limits.allocation_wait_ms = 3_600_000
    worker = interpose(grant)
    growing.ready(worker, tmp_path)
    full(interpose)
    assert worker.error(TAKES[what]) == OUT


def test_a_pool_that_is_full_is_not_a_full_device(lender: Lender, worker: Interposed) -> None:
    worker.do("small_pool = pool(maximum=32 << 20)")
    worker.do("kept = ok(d.cuMemAllocFromPoolAsync(32 << 20, small_pool, s))")
    lender.limits.allocation_wait_ms = 3_600_000
    assert worker.error("d.cuMemAllocFromPoolAsync(32 << 20, small_pool, s)") == OUT


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
@pytest.mark.parametrize("what", ["small", "movable"])
def test_an_open_capture_of_another_thread(
    lender: Lender, interpose: Interpose, worker: Interposed, mode: str, what: str
) -> None:
    """The answer, and what becomes of the capture, are the driver's, when there is room and when there is none."""
    filled(worker, "a", 3 * MIB, 1)
    bare = interpose(None)
    bare.do(AWAY)
    bare.do("s = ok(d.cuStreamCreate(1))")
    for one in (worker, bare):
        one.do(f"""
            def capture_and(call):
                results.clear()
                ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_{mode}))
                thread = start(call)
                thread.join()
                return error(results[0]), error(d.cuStreamEndCapture(s))
        """)
    expected = bare.get(f"capture_and(lambda: {TAKES[what]})")
    full = bare.get("capture_and(lambda: d.cuMemAlloc(1 << 40))")
    assert lender.suspend() == lib.GS_MOVED
    lender.limits.allocation_wait_ms = 100
    assert worker.get(f"capture_and(lambda: {TAKES[what]})") == full
    lender.limits.allocation_wait_ms = 60_000
    worker.do(f"crossing = start(lambda: (results.clear(), capture_and(lambda: {TAKES[what]}))[1])")
    until(lambda: lender.wants, "it waits")
    assert lender.resume() == lib.GS_MOVED
    worker.do("crossing.join()")
    assert worker.get("results[-1]") == expected
    assert same(worker, "a")


def test_a_signal_does_not_end_the_wait(lender: Lender, worker: Interposed) -> None:
    filled(worker, "a", 3 * MIB, 1)
    worker.do("import os, signal; heard = []; signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))")
    assert lender.suspend() == lib.GS_MOVED
    worker.do(f"thread = start(lambda: {TAKES['small']})")
    until(lambda: lender.wants, "it waits")
    worker.do("[signal.pthread_kill(thread.ident, signal.SIGUSR1) for _ in range(100)]")
    until(lambda: worker.get("len(heard)"), "they are heard")
    assert worker.get("results") == []
    assert lender.resume() == lib.GS_MOVED
    worker.do("thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"


@pytest.mark.parametrize("thread", ["another", "the handlers'"])
def test_a_program_that_exits_while_a_call_waits(
    lender: Lender, interpose: Interpose, tmp_path: Path, thread: str
) -> None:
    """A handler is refused after the time, and the program ends: nobody calls the driver then, which tears itself
    down."""
    before = f"""
        import ctypes, threading
        libc = ctypes.CDLL(None)
        @ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
        def last(status, unused):
            ok(d.cuCtxSetCurrent(ctx))
            print(error({TAKES["small"]}), flush=True)
        {"libc.on_exit(last, None)" if thread == "the handlers'" else ""}
    """
    worker = interpose(lender, before=before)
    filled(worker, "a", 3 * MIB, 1)
    worker.do(AWAY)
    assert lender.suspend() == lib.GS_MOVED
    lender.limits.allocation_wait_ms = 60_000 if thread == "another" else 300
    if thread == "another":
        worker.do(f"waits = start(lambda: {TAKES['small']})")
        until(lambda: lender.wants, "it waits")
    os.mkfifo(tmp_path / "exits")
    worker.do(f"threading.Thread(target=lambda: (open({str(tmp_path / 'exits')!r}).read(), libc.exit(0))).start()")
    (tmp_path / "exits").write_text("now")
    if thread != "another":
        assert worker.process.stdout is not None
        assert worker.process.stdout.readline() == f"{OUT}\n"
        lender.want(lib.GS_RESIDENT)
    assert worker.process.wait(20) == 0


@pytest.mark.slow
def test_without_a_daemon_it_takes_room_that_is_still_free(lender: Lender, worker: Interposed) -> None:
    """Also a process with nothing to bring back; what it then has is said until a daemon has the grant again."""
    assert lender.suspend() == lib.GS_MOVED
    lender.limits.device[0].room = 1
    lender.daemon_dies()
    worker.do(f"thread = start(lambda: {TAKES['small']}); thread.join()")
    assert worker.get("error(results[0])") == "CUDA_SUCCESS"
    assert lender.slot().flags & lib.GS_SLOT_RETURNS
    lender.daemon_returns()
    assert lender.resume() == lib.GS_MOVED
    assert not lender.slot().flags & lib.GS_SLOT_RETURNS
    assert lender.suspend() == lib.GS_MOVED
    lender.limits.allocation_wait_ms = 100
    assert worker.error(TAKES["small"]) == OUT, "a word of a daemon counts again"


@pytest.mark.slow
def test_without_a_daemon_it_is_refused_where_the_room_was_given_away(lender: Lender, worker: Interposed) -> None:
    assert lender.suspend() == lib.GS_MOVED
    lender.daemon_dies()
    lender.limits.allocation_wait_ms = 13_000
    assert worker.error(TAKES["small"]) == OUT
