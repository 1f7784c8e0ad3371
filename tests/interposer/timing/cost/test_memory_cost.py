"""Waits, allocations and frees cost the same however many objects the program has, in instructions, which a busy
machine does not change."""

import os
import platform

import pytest
from pages.handmade import Grant, Simulator
from timing.memorycost import Held, added

MUCH = Held(allocations=800, blocks=400, pools=4, streams=20)
NOISE = 1200
"""Instructions allowed: a query of the driver takes some tens more per pool, and a hash table needs some more probes
where addresses happen to lie badly (512 instructions were seen once). A walk over the program's objects would take
more: a few for each of several hundred."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="single-steps the processor")
@pytest.mark.parametrize(
    ("little", "much"),
    [
        pytest.param(Held(), MUCH, id="memory"),
        pytest.param(Held(pending=1), Held(pending=300), id="pending frees", marks=pytest.mark.slow),
    ],
)
def test_costs_do_not_grow(sim: Simulator, grant: Grant, little: Held, much: Held) -> None:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    few, many = added(grant, "steps", little), added(grant, "steps", much)
    assert all(bare > 0 for _, bare in few.values())
    grown = {call: (few[call][0], many[call][0]) for call in many if many[call][0] > few[call][0] + NOISE}
    assert not grown, f"instructions that the interposer adds: {grown}"
