"""Processes that end, fork, stop, come late or lose their daemon while memory is away or moves."""

import os
import signal
from pathlib import Path

import pytest
from memory.moving import AWAY, MIB, filled, held, same
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose, Spawner
from run.simworker import Worker
from run.waiting import until

from gpushare._native import lib


def asleep(pid: int, state: str) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state


def test_two_processes_move_together(sim: Simulator, lender: Lender, interpose: Interpose) -> None:
    workers = [interpose(lender), interpose(lender)]
    for seed, worker in enumerate(workers):
        filled(worker, "a", (seed + 2) * MIB, seed)
    lender.revoke()
    word = lender.want(lib.GS_HOSTED)
    assert [lender.carried_out(word, index) for index in (0, 1)] == [lib.GS_MOVED] * 2
    assert [lender.slot(index).hosted_bytes for index in (0, 1)] == [2 * MIB, 4 * MIB]
    word = lender.want(lib.GS_RESIDENT)
    assert [lender.carried_out(word, index) for index in (0, 1)] == [lib.GS_MOVED] * 2
    lender.lease()
    assert all(same(worker, "a") for worker in workers)
    assert lender.charged(0) == sum(held(sim, worker) for worker in workers)


@pytest.mark.parametrize("end", ["exits", "is killed"])
def test_a_process_ends_while_its_memory_is_away(
    sim: Simulator, lender: Lender, interpose: Interpose, end: str
) -> None:
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    if end == "exits":
        worker.end()
    else:
        worker.kill()
    until(lambda: held(sim, worker) == 0)


def test_a_child_has_nothing_of_it(lender: Lender, interpose: Interpose) -> None:
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    worker.do("""
        import os, subprocess
        child = os.fork()
        if child == 0:
            os._exit(subprocess.call(["/bin/true"]))
        status = os.waitpid(child, 0)[1]
    """)
    assert worker.get("status") == 0
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")


@pytest.mark.parametrize("end", ["d.cuMemFree(a)", "d.cuCtxDestroy(other)"])
def test_what_ends_while_it_is_away_is_waited_for(
    sim: Simulator, lender: Lender, interpose: Interpose, end: str
) -> None:
    """Else the addresses are given back under the memory that is mapped there anew."""
    worker = interpose(lender)
    worker.do("from memory import holds; other = ok(d.cuCtxCreate(None, 0, 0)); ok(d.cuCtxPopCurrent())")
    worker.do("ok(d.cuCtxPushCurrent(other))")
    filled(worker, "a", 3 * MIB, 1)
    worker.do("ok(d.cuCtxPopCurrent())")
    filled(worker, "b", 3 * MIB, 2)
    before = worker.charged()
    assert lender.suspend() == lib.GS_MOVED
    driver = "cuMemFree" if "Free" in end else "cuCtxDestroy"
    worker.do(f"""
        ends = holds.Operation(lambda: ok({end}))
        hold = holds.Hold({driver!r}, holds.AFTER, ends.native_id)
        ends.go()
    """)
    assert worker.get("hold.stopped(20)")
    worker.do("maps = holds.Hold('cuMemMap', holds.BEFORE)")
    word = lender.want(lib.GS_RESIDENT)
    assert not worker.get("maps.stopped(0.3)")
    worker.do("maps.release(); hold.release(); ends.result('it')")
    assert lender.carried_out(word) == lib.GS_MOVED
    lender.lease()
    assert same(worker, "b")
    assert worker.charged() < before
    assert worker.charged() == held(sim, worker)


@pytest.mark.parametrize("first", [lib.GS_HOSTED, lib.GS_RESIDENT])
def test_a_word_that_changes_before_the_driver_is_initialised(sim: Simulator, lender: Lender, first: int) -> None:
    """The process has joined, and nothing in it moves memory yet."""
    then = lib.GS_RESIDENT if first == lib.GS_HOSTED else lib.GS_HOSTED
    if first == lib.GS_HOSTED:
        lender.want(first)
    worker = Worker(Spawner(sim, lender))
    worker.do("""
        d.cuDriverGetVersion()
        from memory import holds
        begins = holds.Operation(lambda: ok(d.cuInit(0)))
        hold = holds.Hold("cuInit", holds.BEFORE, begins.native_id)
        begins.go()
    """)
    assert worker.get("hold.stopped(20)")
    word = lender.want(then)
    worker.do("hold.release(); begins.result('cuInit')")
    assert lender.carried_out(word) == lib.GS_MOVED
    worker.do("""
        needs = holds.Operation(lambda: (context(0), ok(d.cuMemAlloc(4 << 20))))
        needs.go()
    """)
    if then == lib.GS_HOSTED:
        until(lambda: lender.wants, "it waits for room")
        assert lender.resume() == lib.GS_MOVED
    worker.do("needs.result('an allocation')")
    worker.end()
    worker.process.stdout.close()


def test_a_stopped_process_sees_what_is_wanted_when_it_goes_on(
    sim: Simulator, lender: Lender, interpose: Interpose
) -> None:
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    os.kill(worker.pid, signal.SIGSTOP)
    until(lambda: asleep(worker.pid, "T"))
    lender.want(lib.GS_HOSTED)
    word = lender.want(lib.GS_RESIDENT)
    assert lender.slot().residency != word
    os.kill(worker.pid, signal.SIGCONT)
    assert lender.carried_out(word) == lib.GS_MOVED
    assert lender.slot().copied_bytes == 0
    assert same(worker, "a")


def test_a_late_process_waits_for_room(sim: Simulator, lender: Lender, interpose: Interpose) -> None:
    """It joins a grant whose memory is away: its own would take room that is not the grant's now."""
    first = interpose(lender)
    filled(first, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    late = interpose(lender, None)
    until(lambda: lender.slot(1).residency == lender.limits.device[0].residency)
    late.do("import threading; thread = threading.Thread(target=lambda: context(0)); thread.start()")
    until(lambda: lender.slot(1).flags & lib.GS_SLOT_WANTS)
    assert held(sim, late) == 0
    assert lender.resume() == lib.GS_MOVED
    late.do("thread.join(); ctx = context(0)")
    filled(late, "b", 3 * MIB, 2)
    assert same(late, "b")
    assert same(first, "a")


@pytest.mark.slow
@pytest.mark.parametrize("room", [True, False], ids=["that is still free", "that was given away"])
def test_without_a_daemon_it_comes_back_to_room(
    sim: Simulator, lender: Lender, interpose: Interpose, room: bool
) -> None:
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    lender.limits.device[0].room = int(room)
    lender.daemon_dies()
    worker.do(AWAY)
    worker.do("thread = start(lambda: d.cuMemcpyDtoH(bytearray(9), a, 9))")
    if room:
        worker.do("thread.join()")
        assert lender.slot().hosted_bytes == 0
    else:
        worker.do("thread.join(13)")
        assert worker.get("thread.is_alive()")
        assert lender.slot().hosted_bytes == 4 * MIB
        lender.daemon_returns()
        lender.resume()
        worker.do("thread.join()")
    assert same(worker, "a")


def test_contexts_come_and_go_while_memory_is_away(sim: Simulator, lender: Lender, interpose: Interpose) -> None:
    worker = interpose(lender)
    before = worker.charged()
    filled(worker, "a", 3 * MIB, 1)
    worker.do("other = ok(d.cuCtxCreate(None, 0, 0))")
    filled(worker, "b", 5 * MIB, 2)
    worker.do("third = ok(d.cuCtxCreate(None, 0, 0))")
    filled(worker, "c", 3 * MIB, 3)
    assert lender.suspend() == lib.GS_MOVED
    worker.do("ok(d.cuCtxDestroy(other))")
    assert lender.slot().hosted_bytes == 2 * 4 * MIB
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "c")
    worker.do("ok(d.cuCtxDestroy(third)); ok(d.cuCtxSetCurrent(ctx))")
    assert same(worker, "a")
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")
    worker.do("ok(d.cuMemFree(a))")
    assert worker.charged() == before


def test_a_program_that_closes_every_descriptor_has_its_memory_back(lender: Lender, interpose: Interpose) -> None:
    worker = interpose(lender)
    filled(worker, "a", 3 * MIB, 1)
    worker.do("import os; kept = {int(n) for n in os.listdir('/proc/self/fd')}")
    assert lender.suspend() == lib.GS_MOVED
    worker.do("""
        for number in {int(n) for n in os.listdir('/proc/self/fd')} - kept:
            try:
                os.close(number)
            except OSError:
                pass
    """)
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")


def test_an_exit_handler_has_its_memory_back(lender: Lender, interpose: Interpose) -> None:
    """It was registered before the driver was there, and so runs after those of the interposer."""
    before = """
        import ctypes, threading
        libc = ctypes.CDLL(None)
        @ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
        def last(status, unused):
            ok(d.cuCtxSetCurrent(ctx))
            print("whole" if get(a, len(a_bytes)) == a_bytes else "lost", flush=True)
        libc.on_exit(last, None)
    """
    worker = interpose(lender, before=before)
    filled(worker, "a", 3 * MIB, 1)
    assert lender.suspend() == lib.GS_MOVED
    worker.do("threading.Thread(target=libc.exit, args=(0,)).start()")
    until(lambda: lender.wants, "the handler waits for it")
    lender.want(lib.GS_RESIDENT)  # the process may have ended before it says that it was carried out
    lender.lease()
    assert worker.process.stdout is not None
    assert worker.process.stdout.readline() == "whole\n"
    assert worker.process.wait(20) == 0
