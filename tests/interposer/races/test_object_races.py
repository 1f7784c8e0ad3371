"""Threads that make random driver calls on objects that they share. The reference is the simulator's accounting."""

import pytest
from pages.handmade import Grant, Simulator
from pages.lending import Lender
from run import built
from run.interposed import Spawner
from run.simulated import CONTEXT

SHORT, LONG = 20_000, 150_000


@pytest.mark.parametrize("calls", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_no_byte_over_the_limit_and_none_left(sim: Simulator, grant: Grant, calls: int) -> None:
    process = Spawner(sim, grant).spawn(built.program("object_races"), 8, calls, 1, "hmpbagx")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait(10)}"
    made, succeeded, _ = map(int, line.split())
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
    process = Spawner(sim, lender).spawn(built.program("object_races"), 8, calls, 1, "p")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended with {process.wait(10)}"
    [device] = sim.books()["devices"]
    print(f"{line.strip()}: {device['bytes']} bytes are left, {device['peak_bytes']} at most")
    assert device["bytes"] == lender.charged(pid=process.pid) == CONTEXT
    process.communicate("\n", timeout=10)
    assert process.returncode == 0
