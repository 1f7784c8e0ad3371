"""Threads that make random driver calls on objects that they share. The reference is the simulator's accounting."""

import subprocess

import pytest
from pages.handmade import Grant, Simulator
from pages.lending import Lender
from run import built
from run.interposed import Spawner
from run.simulated import CONTEXT
from run.waiting import until

SHORT, LONG = 20_000, 150_000


def begun(sim: Simulator, grant: Grant, calls: int, kinds: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """The program once it has made its calls and destroyed all objects, and what it says of them."""
    process = Spawner(sim, grant).spawn(built.program("object_races"), 8, calls, 1, kinds)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait(10)}"
    return process, list(map(int, line.split()))


@pytest.mark.parametrize("calls", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_no_byte_over_the_limit_and_none_left(sim: Simulator, grant: Grant, calls: int) -> None:
    process, (made, succeeded, _) = begun(sim, grant, calls, "hmpbagx")
    assert made == calls
    assert succeeded > calls / 100  # a full grant refuses most
    device = sim.books()["devices"][0]
    mine = [row["bytes"] for row in device["processes"] if row["pid"] == process.pid]
    limit = grant.limits.device[0].memory_bytes
    print(f"{succeeded} of {calls} calls succeeded; peak: {device['peak_bytes'] - limit} bytes from the limit")
    assert 0.8 * limit <= device["peak_bytes"] <= limit
    assert (grant.charged(pid=process.pid), *mine) == (device["bytes"], device["bytes"])
    process.communicate("\n", timeout=10)
    assert process.returncode == 0


@pytest.mark.parametrize("calls", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_none_left_where_idle_memory_is_lent(sim: Simulator, lender: Lender, calls: int) -> None:
    """An address may be freed twice at once, and have been given to another allocation in between."""
    process, made = begun(sim, lender, calls, "p")
    [device] = sim.books()["devices"]
    print(f"{made}: {device['bytes']} bytes are left, {device['peak_bytes']} at most")
    assert device["bytes"] == CONTEXT
    # What is unmapped is not charged any more a moment later.
    until(lambda: lender.charged(pid=process.pid) == CONTEXT, "nothing is charged but the context")
    process.communicate("\n", timeout=10)
    assert process.returncode == 0
