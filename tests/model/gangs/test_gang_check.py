"""Runs the model checker of gangs (gang_check.c): two gangs on two devices, all interleavings, with the arbiter's own
code."""

import itertools
import json
import subprocess

import pytest
from run import built

CORNERS = [(1, 6, 0), (1, 20, 1), (2, 20, 0)]
"""(depth, lease in ms, late) of the cases that are not marked slow."""


def check(states, *, depth=1, sleep=0, cuts=1, late=0, lease=8, spin=2, program="gang_check"):
    """Runs the checker; returns what it found, and the trace of a violation."""
    command = [built.program(program), *map(str, (states, depth, sleep, cuts, late, lease, spin))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert done.returncode == bool(result["broken"])
    print(command[1:], result)
    return result, done.stderr.splitlines()


@pytest.mark.drawn(7)
@pytest.mark.parametrize(
    ("depth", "lease", "late"),
    [
        pytest.param(*case, marks=() if case in CORNERS else pytest.mark.slow)
        for case in itertools.product([1, 2], [6, 8, 12, 20], [0, 1])
    ],
)
def test_no_order_of_events_leaves_a_gang_or_a_collective_waiting(depth, lease, late):
    result, way = check(500_000, depth=depth, lease=lease, late=late)
    assert not result["broken"], "\n".join(way)
    assert result["all"], "not all states were seen"
    assert result["states"] > 5_000
    assert result["wait_ms"] <= lease + 3
    assert result["spin_ms"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("sleep", [1, 3])
def test_nor_does_a_rank_that_sleeps(sleep):
    result, way = check(300_000, sleep=sleep, spin=9)
    assert not result["broken"], "\n".join(way)


@pytest.mark.slow
def test_ranks_that_cannot_go_on_to_a_cut_are_saved_by_leases_beside_others():
    result, way = check(500_000, cuts=0, lease=20, spin=8)
    assert not result["broken"], "\n".join(way)
    assert result["spin_ms"] > 2


def test_the_check_finds_ranks_that_are_not_stopped_together():
    result, way = check(500_000, cuts=0, spin=2)
    assert result["broken"] == "a collective waits for ever"
    assert any("submits" in line for line in way)


def test_the_check_finds_what_neither_a_cut_nor_a_lease_beside_others_ends():
    """Without either of them, a collective waits three leases and longer."""
    result, _ = check(500_000, cuts=0, lease=20, spin=60, program="gang_check_never_again")
    assert result["broken"] == "a collective waits for ever"


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "more", [{"sleep": 2, "spin": 9}, {"sleep": 6, "spin": 9, "late": 1}, {"cuts": 0, "spin": 8, "lease": 20}], ids=str
)
def test_many_more_orders_of_events(more):
    result, way = check(1_000_000, **more)
    assert not result["broken"], "\n".join(way)
