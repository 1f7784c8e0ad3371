"""Graphs are charged the time they take, whichever bodies of conditional nodes run and whatever their kernels
launch."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant

pytestmark = pytest.mark.timing


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    """Kernels that change a condition take as long as in branches.c."""
    simulator = Simulator(tmp_path / "sim", "1x4GiB", "--kernel-ns", "10000")
    yield simulator
    simulator.stop()


SLOW = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("while", "if-wait", "switch-wait", "device")]


@pytest.mark.parametrize("mode", ["if", "switch", "while-wait", "device-wait", *SLOW])
def test_bodies_are_charged(grant: Grant, sim: Simulator, run: Callable[..., Tenant], mode: str) -> None:
    grant.lease()
    grant.set_bound(50 * MS)
    tenant = run("branches", grant, sim, mode, 400)
    truth = tenant.line()["truth_ns"]
    busy, metered = sim.busy_ns(tenant.pid), grant.slot().busy_ns
    print(f"{mode}: error {metered / busy - 1:+.2%} of {busy / MS:.0f} ms")
    assert busy == truth
    assert abs(metered / busy - 1) <= 0.02
    tenant.end()
