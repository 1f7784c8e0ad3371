"""C programs against the driver: each is a list of checks of its own and says which one failed."""

import pytest


@pytest.mark.parametrize("program", ["errors.c", "streams.c", "graphs.c"])
def test_program(sim, compiled, program):
    sim.run(compiled(program))
    assert sim.device()["bytes"] == 0, "a program that ended left bytes behind"


@pytest.mark.parametrize("program", ["errors.c", "streams.c", "graphs.c"])
def test_program_without_preemption(simulator, compiled, program):
    simulator.start("--preempt", "0")
    simulator.run(compiled(program))


def test_program_beside_a_busy_neighbour(sim, compiled):
    """The device is taken away in slices all the time; order, results and errors are the same."""
    neighbour = sim.spawn(compiled("worker.c"))
    assert neighbour.stdout.readline() == "ready\n"
    neighbour.stdin.write("spin 100000000 100\n")
    neighbour.stdin.flush()
    assert neighbour.stdout.readline() == "queued\n"
    sim.run(compiled("graphs.c"), env={"BESIDE": "1"})
    sim.check(sim.stats())
