"""The gate, in a real process under a lease word that the test changes."""

import statistics
import threading
import time
from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from run.waiting import until
from timing.timed import BUSY

Run = Callable[..., Tenant]


def test_a_launch_waits_for_the_lease(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    tenant = run_tenant(grant, sim, "loop", 100_000)
    slot = grant.slot()
    until(lambda: slot.waiting == 1, "the tenant waits")
    assert grant.rung()
    time.sleep(0.1)  # long enough to detect a leak
    assert slot.launches == 0
    assert sim.busy_ns(tenant.pid) == 0
    grant.lease()
    until(lambda: slot.launches > 100, "the tenant runs")
    # It still waits now and then, for its work in flight to fall under the bound.
    assert slot.wait_ns >= 90 * MS
    result = tenant.end()
    assert slot.waiting == 0
    assert result["truth_ns"] == 100_000 * result["launches"]


@pytest.mark.timing
def test_revoked_work_drains(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    """The work drains within the bound plus one kernel; the time allowed is generous, for a busy machine."""
    tenant = run_tenant(grant, sim, "loop", 100_000)
    slot = grant.slot()
    took = []
    for _ in range(10):
        grant.lease()
        began = slot.launches
        until(lambda began=began: slot.launches > began + 100, "the tenant runs")
        while grant.rung():
            pass
        word = grant.revoke()
        revoked = time.monotonic_ns()
        until(lambda word=word: slot.drained == word, "drained is published")
        took.append(time.monotonic_ns() - revoked)
        assert grant.rung()
        until(lambda: grant.gated(tenant.pid) == 1, "the tenant waits again")
        launches, busy = slot.launches, sim.busy_ns(tenant.pid)
        time.sleep(0.02)
        assert slot.launches == launches
        assert sim.busy_ns(tenant.pid) - busy <= 2 * MS + 100_000
    took.sort()
    print(f"revoke to drained: median {took[5] / 1e6:.2f} ms, worst {took[-1] / 1e6:.2f} ms")
    assert took[5] <= 10 * MS
    grant.lease()
    tenant.end()


@pytest.mark.timing
def test_work_in_flight_is_bounded(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    """Work in flight is the launched time that the simulator has not executed yet."""
    tenant = run_tenant(grant, sim, "loop", 100_000)
    slot = grant.slot()
    worst = 0
    grant.lease()
    until(lambda: slot.launches > 500, "the tenant runs")
    for _ in range(20):
        before = slot.launches
        grant.lease()
        until(lambda before=before: slot.launches > before + 20, "the tenant runs")
        time.sleep(0.01)
        word = grant.revoke()
        submitted = slot.launches * 100_000
        executed = sim.busy_ns(tenant.pid)
        worst = max(worst, submitted - executed)
        until(lambda word=word: slot.drained == word, "the tenant has stopped")
    print(f"most in flight: {worst / 1e6:.2f} ms")
    # The bound, the launches between two marks, and one launch between the two reads.
    assert worst <= 2 * MS + 500_000 + 200_000
    grant.lease()
    tenant.end()


@pytest.mark.timing
@pytest.mark.parametrize("kernel_ms", [6, *(pytest.param(ms, marks=pytest.mark.slow) for ms in (3, 40))])
def test_kernels_longer_than_the_bound_leave_no_gaps(
    grant: Grant, sim: Simulator, run_tenant: Run, kernel_ms: int
) -> None:
    """The next one is admitted while the previous one still runs."""
    tenant = run_tenant(grant, sim, "loop", kernel_ms * MS)
    slot = grant.slot()
    grant.lease()
    until(lambda: slot.launches >= 24, "the tenant runs", 30)
    parts = [sim.worked(0.2) for _ in range(5)]
    print("of the device:", [f"{part:.3f}" for part in parts])
    assert statistics.median(parts) > 0.985
    tenant.end()


@pytest.mark.timing
@pytest.mark.parametrize("kernel_ms", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_kernels_longer_than_patience_are_bounded_too(
    grant: Grant, sim: Simulator, run_tenant: Run, kernel_ms: int
) -> None:
    """Such kernels are late by nature, not because the gate delays them. Of an unknown function, eight may be in
    flight."""
    tenant = run_tenant(grant, sim, "loop", kernel_ms * MS)
    slot = grant.slot()
    grant.lease()
    until(lambda: slot.launches >= 24, "the tenant runs", 30)
    worst = 0
    for _ in range(20):
        submitted = slot.launches
        worst = max(worst, submitted - sim.busy_ns(tenant.pid) // (kernel_ms * MS))
        until(lambda submitted=submitted: slot.launches > submitted, "one more")
    print(f"most in flight: {worst} kernels")
    assert worst <= 3
    tenant.end()


@pytest.mark.timing
def test_many_threads_are_bounded_together(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    tenant = run_tenant(grant, sim, "crowd", 24, MS // 2)
    slot = grant.slot()
    grant.lease()
    until(lambda: slot.launches >= 200, "the tenant runs", 30)
    worst = 0
    for _ in range(100):
        submitted = slot.launches
        worst = max(worst, submitted - sim.busy_ns(tenant.pid) // (MS // 2))
        until(lambda submitted=submitted: slot.launches > submitted, "one more")
    print(f"most in flight: {worst} kernels of {slot.waiting} threads that wait")
    # The bound is four kernels; if each thread let one pass on its own, there would be 24.
    assert worst <= 12
    tenant.end()


@pytest.mark.timing
@pytest.mark.parametrize("mode", [("loop", 100_000), ("crowd", 8, 200_000)], ids=["loop", "eight-threads"])
def test_without_the_daemon_the_guarantee_holds(
    make_grant: Callable[..., Grant], sim: Simulator, run_tenant: Run, mode: tuple
) -> None:
    grants = [make_grant(sim, guarantee_milli=share) for share in (250, 500)]
    tenants = [run_tenant(grant, sim, *mode) for grant in grants]
    grants[0].lease()
    for grant in grants:
        until(lambda grant=grant: grant.slot().launches + grant.slot().waiting > 0, "both joined")
    for grant in grants:
        grant.daemon_dies()
    until(lambda: grants[1].slot().launches > 0, "the one without a lease runs again")
    time.sleep(0.3)
    before = [sim.busy_ns(tenant.pid) for tenant in tenants]
    began = time.monotonic_ns()
    time.sleep(1.5)
    wall = time.monotonic_ns() - began
    got = [(sim.busy_ns(tenant.pid) - b) / wall for tenant, b in zip(tenants, before, strict=True)]
    print(f"shares without the daemon: {got[0]:.3f} of 0.250, {got[1]:.3f} of 0.500")
    assert 0.12 <= got[0] <= 0.33
    assert 0.25 <= got[1] <= 0.60
    for grant, tenant in zip(grants, tenants, strict=True):
        grant.revoke()
        grant.daemon_returns()
        until(lambda grant=grant: grant.connections == 1, "joined again")
        until(lambda grant=grant, pid=tenant.pid: grant.gated(pid) > 0, "leases count again")
        grant.lease()
    for tenant in tenants:
        tenant.end()


def test_no_thread_before_the_first_call(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    grant.lease()
    tenant = run_tenant(grant, sim, "threads")
    bare = run_tenant(None, sim, "threads").line()
    with_us = tenant.line()
    assert with_us["before"] == 1
    assert with_us["after"] - bare["after"] <= 1


@pytest.mark.timing
def test_handles_come_and_go(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    grant.lease()
    tenant = run_tenant(grant, sim, "churn", 60)
    result = tenant.line()
    slot = grant.slot()
    assert slot.launches == 60 * 30
    assert 0.5 * result["truth_ns"] <= slot.busy_ns <= 1.2 * result["truth_ns"]
    assert slot.inflight == 0
    tenant.end()


@pytest.mark.timing
@BUSY
def test_many_threads_and_a_restless_lease(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    tenant = run_tenant(grant, sim, "stress")
    slot = grant.slot()
    result: list[dict[str, int]] = []
    reader = threading.Thread(target=lambda: result.append(tenant.line()))
    reader.start()
    while reader.is_alive():
        grant.lease()
        time.sleep(0.007)
        grant.revoke()
        time.sleep(0.002)
    reader.join()
    busy = sim.busy_ns(tenant.pid)
    print(f"stress: metered {slot.busy_ns / 1e6:.1f} ms, busy {busy / 1e6:.1f} ms, launches {slot.launches}")
    assert busy == result[0]["truth_ns"]
    assert slot.waiting == 0
    assert slot.inflight == 0
    assert slot.busy_ns == pytest.approx(busy, rel=0.25)
    grant.lease()
    tenant.end()


def test_a_cancelled_thread_leaves_nothing_behind(grant: Grant, sim: Simulator, run_tenant: Run) -> None:
    tenant = run_tenant(grant, sim, "cancelled", 40)
    slot = grant.slot()
    result: list[dict[str, int]] = []
    reader = threading.Thread(target=lambda: result.append(tenant.line()))
    reader.start()
    until(lambda: slot.waiting == 1, "the first one waits")
    while reader.is_alive():
        grant.lease()
        time.sleep(0.007)
        grant.revoke()
        time.sleep(0.004)
    reader.join()
    assert slot.waiting == 0
    assert slot.inflight == 0
    assert sim.busy_ns(tenant.pid) == result[0]["truth_ns"]
    grant.lease()
    tenant.end()


def test_two_devices_are_gated_apart(
    make_sim: Callable[..., Simulator], make_grant: Callable[..., Grant], run_tenant: Run
) -> None:
    sim = make_sim("2x2GiB")
    grant = make_grant(sim)
    grant.lease(1)
    tenant = run_tenant(grant, sim, "loop", 100_000)
    until(lambda: grant.slot().waiting == 1, "waits for device 0")
    assert grant.slot().launches == 0
    grant.lease(0)
    until(lambda: grant.slot().launches > 50, "runs on device 0")
    assert grant.slot(device=1).launches == 0
    tenant.end()
