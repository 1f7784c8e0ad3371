"""The kill matrix: real programs whose memory leaves the device and comes back, and at each step of that somebody is
killed or stopped. Judged by the simulator's books, the pool's, and every byte. docs/concepts/inside/memory-moves.md has
the outcomes."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from machine import freezer
from run.movedprogram import AWAY, IN, OUT, MovedProgram, helpers, pool_is_empty
from run.running import alive
from run.waiting import until

from gpushare.enforce import cgroup

pytestmark = pytest.mark.drawn(6)

ASKING, WAITING, COPIED, UNMAPPED = OUT[0], OUT[2], OUT[4], OUT[6]
MAPPED, FILLED = IN[2], IN[4]


def steps(*few):
    """These, and all others in the slow tests."""
    made = [pytest.param(step, id=str(step)) for step in few]
    rest = [step for step in (*OUT, AWAY, *IN) if step not in few]
    return [*made, *(pytest.param(step, id=str(step), marks=pytest.mark.slow) for step in rest)]


def ready(program, step):
    """Before a step of the way back it is away; helpers of the pool run already where they are to be stopped."""
    if not step.hosted or not step.function:
        program.suspended()
    if step.hosted and not step.function:
        program.daemon.client.resume(program.id)
        program.comes_to("resident")
        pool_is_empty(program.daemon)
    return program


@pytest.fixture
def program(daemon):
    return MovedProgram(daemon)


def nothing_left(daemon, program):
    until(lambda: program.shown["phase"] == "released", "the grant ends")
    until(lambda: not alive(program.pid), "its process is killed")
    until(lambda: daemon.books()["bytes"] == 0, "the device has its memory back")
    assert daemon.client.devices()[0]["guaranteed"]["memory"] == 0
    pool_is_empty(daemon)


@pytest.mark.parametrize("step", steps(UNMAPPED, MAPPED))
def test_the_program_is_killed(daemon, program, step):
    with ready(program, step).at(step):
        os.kill(program.pid, signal.SIGKILL)
    nothing_left(daemon, program)


@pytest.mark.parametrize("step", steps())
def test_the_program_exits(daemon, program, step):
    """In the middle of a driver call of the mover, which may never return."""
    with ready(program, step).at(step):
        program.process.stdin.close()
        assert program.process.wait(20) == 0
    nothing_left(daemon, program)


@pytest.mark.parametrize("step", steps(UNMAPPED))
def test_the_grant_is_released(daemon, program, step):
    with ready(program, step).at(step):
        daemon.client.release(program.id)
    nothing_left(daemon, program)


@pytest.mark.parametrize("step", steps(COPIED))
def test_one_of_two_processes_is_killed(daemon, client, step):
    kept = client.create(memory=4 << 30, time=50, device=0, idle_memory="lend", keep=True)["id"]
    first, second = MovedProgram(daemon, kept), MovedProgram(daemon, kept)
    with ready(first, step).at(step):
        os.kill(first.pid, signal.SIGKILL)
    second.comes_to("suspended" if step.hosted else "resident")
    until(lambda: first.held == 0, "the device has its memory back")
    client.resume(kept)
    second.is_whole()


@pytest.mark.parametrize("step", steps(COPIED))
def test_the_daemon_is_killed_and_back_before_the_move_is_over(daemon, client, program, step):
    with ready(program, step).at(step):
        daemon.kill()
        daemon.start()
        program.goes_on(step)
    ends_well(client, program)


@pytest.mark.parametrize("step", steps(MAPPED))
def test_the_daemon_is_killed_and_the_move_over_before_it_is_back(daemon, client, program, step):
    with ready(program, step).at(step):
        daemon.kill()
        program.goes_on(step)
        daemon.start()
    ends_well(client, program)


def ends_well(client, program):
    program.comes_to("suspended", "resident")
    client.resume(program.id)
    program.is_whole()


@pytest.mark.parametrize("step", steps(ASKING))
def test_the_helpers_of_the_pool_are_killed(daemon, client, program, step):
    with ready(program, step).at(step):
        for helper in helpers(daemon):
            os.kill(helper, signal.SIGKILL)
        program.goes_on(step)
    program.comes_to("suspended" if step.hosted else "resident")
    client.resume(program.id)
    program.is_whole()


def all_stopped(pid):
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


@contextlib.contextmanager
def stopped(program):
    os.kill(program.pid, signal.SIGSTOP)
    until(lambda: all_stopped(program.pid), "none of its threads runs")
    yield
    os.kill(program.pid, signal.SIGCONT)


@contextlib.contextmanager
def frozen(program):
    """Its cgroup is, as a container engine does it."""
    group = cgroup.of_process(program.pid)
    assert group is not None
    freezer.freeze(group)
    until(lambda: freezer.frozen(group), "all of it has stopped")
    yield
    freezer.thaw(group)


STOPS = [pytest.param(*one.values, stopped, id=one.id, marks=one.marks) for one in steps(WAITING)]
FREEZES = [pytest.param(one, frozen, id=f"{one}-frozen", marks=pytest.mark.slow) for one in (COPIED, AWAY, FILLED)]


@pytest.mark.parametrize(("step", "way"), [*STOPS, *FREEZES])
def test_the_program_is_stopped(daemon, client, program, step, way):
    """It is called back, whatever of it had left; once it goes on it has everything. The daemon gets its short patience
    only when the program is stopped, so that nobody who is merely slow is called back."""
    with ready(program, step).at(step), contextlib.ExitStack() as goes_on:
        goes_on.enter_context(way(program))
        with daemon.configured("move_seconds = 60", "move_seconds = 0.3"):
            if step is AWAY:
                client.resume(program.id)
                program.comes_to("resuming")
            elif step.hosted:
                program.comes_to("resuming", "resident")
                assert "not all of its processes answered in time" in program.shown["residency"]["why"]
            goes_on.close()
            program.goes_on(step)
            program.is_whole()
            daemon.end_children()
