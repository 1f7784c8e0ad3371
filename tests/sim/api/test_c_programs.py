"""C programs against the driver: each runs its own checks and prints which one failed."""

import pytest
from run.simulated import read_line, tell


@pytest.mark.parametrize("program", ["errors.c", "streams.c", "graphs.c", "programs.c", "sparse.c"])
def test_program(sim, compiled, program):
    sim.run(compiled(program))
    assert sim.device()["bytes"] == 0, "a program that ended left bytes behind"


def test_bodies_of_conditional_nodes(simulator, compiled):
    simulator.start("--kernel-ns", "10000")
    simulator.run(compiled("bodies.c"))
    assert simulator.device()["bytes"] == 0


@pytest.mark.parametrize("program", ["errors.c", "streams.c", "graphs.c"])
def test_program_without_preemption(simulator, compiled, program):
    simulator.start("--preempt", "0")
    simulator.run(compiled(program))


@pytest.mark.parametrize("program", ["streams.c", "graphs.c"])
def test_program_beside_a_busy_neighbour(sim, compiled, program):
    """The device is time-sliced all the time; order, results and errors are the same."""
    neighbour = sim.spawn(compiled("worker.c"))
    assert read_line(neighbour) == "ready"
    tell(neighbour, "spin 100000000 1000")
    assert read_line(neighbour) == "queued"
    sim.run(compiled(program), env={"BESIDE": "1"})
    assert sim.process(neighbour.pid)["busy_ns"] > 0
