"""The accounting of context switches of the device."""

import time

import pytest
from run.simulated import VIEWER, Wire, read_line, tell
from run.waiting import until

MS = 1_000_000
TIMES = 15
SWITCH_NS, SLICE_NS = 20_000, 2 * MS  # the simulator's defaults


def spin(sim, compiled, text):
    child = sim.spawn(compiled("worker.c"))
    assert read_line(child) == "ready"
    tell(child, text)
    return child


def test_one_process_alone_switches_nothing(sim, compiled):
    child = spin(sim, compiled, "spin 1000000 50")
    assert read_line(child) == "queued"
    tell(child, "sync")
    assert read_line(child) == "done"
    assert (sim.device()["switches"], sim.device()["switch_ns"]) == (0, 0)


@pytest.mark.xdist_group("timing")
def test_switches_are_counted_and_their_time_is_neither_work_nor_idle(sim, compiled):
    end = time.monotonic_ns() + 1000 * MS
    children = [spin(sim, compiled, f"busy 300000 {end}") for _ in range(2)]
    until(lambda: sim.device()["switches"] > 10, "turns")
    before = sim.device()
    until(lambda: sim.device()["wall_ns"] > before["wall_ns"] + 500 * MS, "half a second")
    after = sim.device()
    for child in children:
        read_line(child)
    grown = {word: after[word] - before[word] for word in ("wall_ns", "busy_ns", "switches", "switch_ns")}
    # One per slice; fewer when this machine is late.
    assert 0.5 * grown["wall_ns"] < grown["switches"] * (SLICE_NS + SWITCH_NS) < 1.2 * grown["wall_ns"]
    assert 0.5 * SWITCH_NS * grown["switches"] < grown["switch_ns"] <= SWITCH_NS * (grown["switches"] + 1)
    assert grown["busy_ns"] + grown["switch_ns"] <= grown["wall_ns"] + SWITCH_NS
    with Wire(sim.socket, VIEWER) as wire:
        error, (busy, switch, wall), _ = wire.call(TIMES)
    assert error == 0
    assert busy >= after["busy_ns"]
    assert switch >= after["switch_ns"]
    assert wall >= after["wall_ns"]
