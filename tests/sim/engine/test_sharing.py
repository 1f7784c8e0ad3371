"""Several processes on one device: time, memory, death."""

import os
import signal
import time

import pytest
from run.simulated import LOADED, kill, read_line, tell
from run.waiting import until

MS = 1_000_000
GIB = 1 << 30


@pytest.fixture
def worker(sim, compiled):
    def start():
        child = sim.spawn(compiled("worker.c"))
        assert read_line(child) == "ready"
        return child

    return start


def ask(child, text):
    tell(child, text)
    return read_line(child)


def test_one_process_gets_all_of_its_time_in_the_books(sim, worker):
    child = worker()
    assert ask(child, "spin 500000 400") == "queued"
    assert ask(child, "sync") == "done"
    assert sim.process(child.pid)["busy_ns"] == 200 * MS


def test_books_follow_while_a_kernel_runs(sim, worker):
    """No process calls the driver, so only the engine knows the progress of the kernel."""
    child = worker()
    assert ask(child, "spin 400000000 1") == "queued"
    first = until(lambda: sim.process(child.pid)["busy_ns"], "the kernel to start")
    second = until(lambda: (now := sim.process(child.pid)["busy_ns"]) > first and now, "progress")
    assert 0 < first < second < 400 * MS
    assert ask(child, "sync") == "done"
    assert sim.process(child.pid)["busy_ns"] == 400 * MS


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_two_processes_share_equally(sim, worker):
    """They share device time equally, however long their kernels: slices alternate, not kernels."""
    long, short = worker(), worker()
    end = time.monotonic_ns() + 1500 * MS
    tell(long, f"busy 5000000 {end}")
    tell(short, f"busy 300000 {end}")
    until(lambda: all(sim.process(p.pid)["busy_ns"] > 100 * MS for p in (long, short)), "both to run")
    before = sim.device()
    until(lambda: sim.device()["wall_ns"] > before["wall_ns"] + 800 * MS, "0.8 s")
    after = sim.device()
    got = []
    for child in (long, short):
        rows = [row for books in (before, after) for row in books["processes"] if row["pid"] == child.pid]
        got.append(rows[1]["busy_ns"] - rows[0]["busy_ns"])
    wall = after["wall_ns"] - before["wall_ns"]
    assert abs(got[0] - got[1]) < 0.05 * sum(got), got
    # 1 % is switching (20 us per 2 ms slice); the rest is scheduling latency of this machine
    assert 0.85 * wall < sum(got) < wall
    for child in (long, short):
        assert int(read_line(child)) > 0


def test_slices_end_in_mid_kernel(sim, worker):
    """The short kernel of a new process does not wait for the end of a long one."""
    long, short = worker(), worker()
    assert ask(long, "spin 3000000000 1") == "queued"
    until(lambda: sim.process(long.pid)["busy_ns"] > 0, "the long kernel")
    start = time.monotonic()
    assert ask(short, "spin 1000000 1") == "queued"
    assert ask(short, "sync") == "done"
    assert time.monotonic() - start < 2.5
    assert sim.process(short.pid)["busy_ns"] == 1 * MS


@pytest.mark.xdist_group("timing")
def test_without_preemption_a_kernel_ends_first(simulator, compiled):
    simulator.start("--preempt", "0")
    long, short = (simulator.spawn(compiled("worker.c")) for _ in range(2))
    assert read_line(long) == read_line(short) == "ready"
    assert ask(long, "spin 300000000 3") == "queued"
    until(lambda: simulator.process(long.pid)["busy_ns"] > 0, "the long kernel")
    assert ask(short, "spin 1000000 1") == "queued"
    assert ask(short, "sync") == "done"
    assert simulator.process(short.pid)["busy_ns"] == 1 * MS
    # one complete kernel of the other process, and at most a part of its second one
    assert 300 * MS <= simulator.process(long.pid)["busy_ns"] < 600 * MS
    assert ask(long, "sync") == "done"
    assert simulator.process(long.pid)["busy_ns"] == 900 * MS


@pytest.mark.xdist_group("timing")
def test_an_idle_context_costs_nothing(sim, worker):
    busy, *idle = worker(), worker(), worker(), worker()
    assert int(ask(busy, "time 1000000 300")) == pytest.approx(300 * MS, rel=1e-6)
    for child in idle:
        assert ask(child, "spin 10000 1") == "queued"
        assert ask(child, "sync") == "done"
    # they have completed
    assert int(ask(busy, "time 1000000 300")) == pytest.approx(300 * MS, rel=1e-6)
    assert sim.device()["bytes"] == 4 * LOADED


def test_a_stopped_process_goes_on_on_the_device(sim, worker):
    """Its queued work is executed, as by hardware, though the process gets no CPU time; the neighbour gets its
    slices."""
    frozen, other = worker(), worker()
    assert ask(frozen, "spin 5000000 40") == "queued"
    frozen.send_signal(signal.SIGSTOP)
    try:
        assert ask(other, "spin 1000000 50") == "queued"
        assert ask(other, "sync") == "done"
        until(lambda: sim.process(frozen.pid)["busy_ns"] == 200 * MS, "the stopped process's work")
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert ask(frozen, "sync") == "done"
    assert sim.process(frozen.pid)["busy_ns"] == 200 * MS
    assert int(ask(frozen, "time 1000000 10")) == pytest.approx(10 * MS, rel=1e-6)


def test_a_process_stopped_for_long_finds_its_way_back(simulator, compiled):
    """More slices pass while it is stopped than its lane stores (512)."""
    simulator.start("--slice-ns", "100000", "--switch-ns", "0")
    frozen, other = (simulator.spawn(compiled("worker.c")) for _ in range(2))
    assert read_line(frozen) == read_line(other) == "ready"
    assert ask(frozen, "spin 100000000 5") == "queued"
    frozen.send_signal(signal.SIGSTOP)
    try:
        assert ask(other, "spin 100000000 3") == "queued"
        assert ask(other, "sync") == "done"
        until(lambda: simulator.process(frozen.pid)["busy_ns"] == 500 * MS, "the stopped process's work")
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert ask(frozen, "sync") == "done"
    assert ask(frozen, "spin 1000000 10") == "queued"
    assert ask(frozen, "sync") == "done"
    assert simulator.process(frozen.pid)["busy_ns"] == 510 * MS


def test_killed_in_mid_kernel(sim, worker):
    """Queued time and memory are released at once."""
    victim, other = worker(), worker()
    assert ask(victim, f"alloc {4 * GIB}") == "0"
    assert ask(victim, "spin 10000000000 500") == "queued"
    until(lambda: sim.process(victim.pid)["busy_ns"] > 0, "the kernel")
    kill(victim)
    row = until(lambda: (now := sim.process(victim.pid)) and not now["alive"] and now, "the death to be noticed")
    assert row["bytes"] == 0
    assert row["peak_bytes"] == LOADED + 4 * GIB
    assert row["busy_ns"] < 10_000 * MS
    assert int(ask(other, "time 1000000 100")) == pytest.approx(100 * MS, rel=1e-6)
    assert sim.process(victim.pid)["busy_ns"] == row["busy_ns"], "the dead do not go on working"
    assert sim.device()["bytes"] == LOADED


def test_killed_while_waiting_for_its_turn(sim, worker):
    victims, other = [worker() for _ in range(3)], worker()
    for victim in victims:
        assert ask(victim, "spin 5000000 1000") == "queued"
    until(lambda: all(sim.process(v.pid)["busy_ns"] > 0 for v in victims), "all to run")
    for victim in victims:
        kill(victim)
    until(lambda: not any(sim.process(v.pid)["alive"] for v in victims), "the deaths")
    assert int(ask(other, "time 1000000 100")) == pytest.approx(100 * MS, rel=1e-6)
    assert sum(sim.process(v.pid)["busy_ns"] for v in victims) < 3 * 5000 * MS


def test_memory_is_shared_exactly(sim, worker):
    first, second = worker(), worker()
    rest = 16 * GIB - 2 * LOADED
    assert ask(first, f"alloc {1 << 20}") == ask(first, f"alloc {(1 << 20) - 1024}") == "0"
    assert ask(first, f"alloc {rest - (2 << 20)}") == "0"
    assert ask(second, "alloc 2048") == "2"  # CUDA_ERROR_OUT_OF_MEMORY
    assert ask(second, "alloc 1024") == "0"
    assert ask(second, "alloc 1") == "2"
    assert sim.device()["bytes"] == 16 * GIB
    assert [ask(first, "free") for _ in range(3)] == ["0", "0", "0"]
    assert ask(second, f"alloc {GIB}") == "0"
    books = sim.device()
    assert books["bytes"] == 2 * LOADED + 1024 + GIB
    assert books["peak_bytes"] == 16 * GIB
    assert ask(second, "close") == "closed"
    assert sim.process(second.pid)["bytes"] == 0
    assert sim.process(second.pid)["peak_bytes"] == LOADED + 1024 + GIB
    kill(first)
    until(lambda: sim.device()["bytes"] == 0, "the killed process's memory")


def test_ended_processes_stay_in_the_books(sim, compiled):
    pids = []
    for _ in range(5):
        child = sim.spawn(compiled("worker.c"))
        assert read_line(child) == "ready"
        assert ask(child, "spin 1000000 3") == "queued"
        assert ask(child, "sync") == "done"
        child.stdin.close()
        assert child.wait(10) == 0
        pids.append(child.pid)
    until(lambda: not any(row["alive"] for row in sim.device()["processes"]), "their ends")
    assert {row["pid"]: row["busy_ns"] for row in sim.device()["processes"]} == dict.fromkeys(pids, 3 * MS)


def test_a_child_that_outlives_its_parent_holds_nothing(sim, compiled):
    """fork without exec keeps descriptors open: the end of the process counts, not the end of its socket."""
    child = sim.spawn(compiled("orphan.c"))
    orphan = int(read_line(child))
    try:
        assert sim.device()["bytes"] == LOADED + GIB
        tell(child, "end")
        assert child.wait(10) == 0
        until(lambda: sim.device()["bytes"] == 0, "the parent's memory")
        os.kill(orphan, 0)
    finally:
        os.kill(orphan, signal.SIGKILL)
