"""Many processes at once, killed at any time: the accounting stays correct and no process hangs."""

import random

import pytest
from run.simulated import LOADED, kill, read_line, tell
from run.waiting import until


def test_short_kernels_of_many_processes_all_get_done(sim, compiled):
    """Lanes empty and refill all the time: a lost wake-up would hang a process, a lost nanosecond would show in the
    accounting."""
    count = 400
    children = [sim.spawn(compiled("chaos.c"), str(seed), str(count)) for seed in range(5)]
    for child in children:
        assert read_line(child) == "ready"
    for child in children:
        assert read_line(child) == "done"
        assert child.wait(10) == 0
    until(lambda: not any(row["alive"] for row in sim.device()["processes"]), "the ends")
    assert [sim.process(child.pid)["busy_ns"] for child in children] == [count * 20_000] * 5


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [(), ("--preempt", "0"), ("--slice-ns", "200000", "--switch-ns", "0")])
def test_sigkill_at_any_moment(simulator, compiled, options, kills):
    simulator.start(*options)
    chance = random.Random(str(options))
    survivor = simulator.spawn(compiled("worker.c"))
    assert read_line(survivor) == "ready"
    seeds = iter(range(1000))
    running = []
    for _ in range(kills):
        while len(running) < 3:
            running.append(simulator.spawn(compiled("chaos.c"), str(next(seeds))))
            assert read_line(running[-1]) == "ready"
        busy = simulator.device()["busy_ns"]
        target = busy + chance.randrange(15_000_000)
        until(lambda: simulator.device()["busy_ns"] >= target, "the device to work")  # noqa: B023 - used at once
        kill(running.pop(chance.randrange(len(running))))
        simulator.check(simulator.stats())
    for child in running:
        kill(child)
    until(lambda: sum(row["alive"] for row in simulator.device()["processes"]) == 1, "the deaths")
    assert simulator.device()["bytes"] == simulator.process(survivor.pid)["bytes"] == LOADED
    before = simulator.process(survivor.pid)["busy_ns"]
    tell(survivor, "spin 1000000 20")
    assert read_line(survivor) == "queued"
    tell(survivor, "sync")
    assert read_line(survivor) == "done"
    assert simulator.process(survivor.pid)["busy_ns"] - before == 20_000_000
