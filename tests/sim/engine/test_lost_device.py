"""A device that fails and recovers: meanwhile its work does not progress, and calls fail."""

import errno

import pytest
from run.simulated import (
    DEVICE,
    LANE_OPEN,
    MEM_ALLOC,
    MEM_INFO,
    PROCESSES,
    SETTING,
    SETTING_LOST,
    Wire,
    read_line,
    tell,
)
from run.waiting import until

MS = 1_000_000


@pytest.fixture
def control(sim):
    with Wire(sim.socket) as wire:
        yield wire


def set_lost(control, device, lost):
    assert control.call(SETTING, device, SETTING_LOST, int(lost))[0] == 0


def ask(child, text):
    tell(child, text)
    return read_line(child)


def test_it_answers_nobody_and_the_others_do(control):
    set_lost(control, 1, True)
    for op in (DEVICE, MEM_INFO, MEM_ALLOC, LANE_OPEN, PROCESSES):
        error, _, descriptors = control.call(op, 1)
        assert (error, descriptors) == (-errno.EIO, []), op
    for op in (DEVICE, MEM_INFO):
        assert control.call(op, 0)[0] == 0
    set_lost(control, 1, False)
    for op in (DEVICE, MEM_INFO):
        assert control.call(op, 1)[0] == 0


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.xdist_group("timing")
def test_work_pauses_and_ends_with_all_of_its_time(sim, control, compiled, others):
    children = [sim.spawn(compiled("worker.c")) for _ in range(1 + others)]
    for child in children:
        assert read_line(child) == "ready"
        assert ask(child, "spin 400000000 1") == "queued"
    until(lambda: sim.device()["busy_ns"] > 50 * MS, "work")
    set_lost(control, 0, True)
    stood = sim.device()["busy_ns"]
    wall = sim.device()["wall_ns"]
    until(lambda: sim.device()["wall_ns"] > wall + 300 * MS, "time")
    assert sim.device()["busy_ns"] - stood < MS  # an interval ends shortly after it was preempted
    set_lost(control, 0, False)
    for child in children:
        assert ask(child, "sync") == "done"
        assert sim.process(child.pid)["busy_ns"] == 400 * MS


def test_work_that_comes_meanwhile_is_done_when_it_is_back(sim, control, compiled):
    child = sim.spawn(compiled("worker.c"))
    assert read_line(child) == "ready"
    set_lost(control, 0, True)
    assert ask(child, "spin 1000000 20") == "queued"
    assert sim.process(child.pid)["busy_ns"] == 0
    set_lost(control, 0, False)
    assert ask(child, "sync") == "done"
    assert sim.process(child.pid)["busy_ns"] == 20 * MS
