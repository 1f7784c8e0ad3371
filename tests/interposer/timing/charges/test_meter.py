"""The complete meter in a process, against the simulator's books."""

import time
from collections.abc import Callable

import pytest
from pages.handmade import Grant, Simulator, Tenant
from run.waiting import until
from timing.timed import BUSY

PATTERNS = ("b2b", "host", "sync", "mix", "mixhost", "two", "burst")


WAITS = ("sync", "event", "task")
"""The program waits for each launch. The first waits that are late for want of a processor are charged as work: up to
LATE_NS in all."""
LATE_NS = 10_000_000
STALLED_NS = 2_000_000
"""A thread that launches may lose its processor for so long; until it is back, nothing shows that the device idles."""


# Launches per pattern and kernel length: about a third of a second each; a second where the program waits for each.
def launches(pattern: str, ns: int) -> int:
    if pattern in WAITS:
        return 1_000_000_000 // (15_000 + ns)
    each = {"mix": 5 * ns, "mixhost": 5 * ns, "host": 24_000 + ns}.get(pattern, ns + 3000)
    return min(60_000, max(400, 300_000_000 // each))


# Each pattern with the shortest or the second shortest kernels, and with longer ones; meter/ has all lengths in virtual
# time.
CASES = [
    (pattern, kernel_us)
    for at, pattern in enumerate((*PATTERNS, "event", "task"))
    for kernel_us in ((2, 100) if at % 2 else (5, 20))
]
SHORT = [case for case in CASES if case[1] < 100]


@pytest.mark.timing
@pytest.mark.parametrize(
    ("pattern", "kernel_us"), [pytest.param(*case, marks=[BUSY] if case in SHORT else []) for case in CASES]
)
def test_metered_against_the_books(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant], pattern: str, kernel_us: int
) -> None:
    grant.lease()
    grant.set_bound(50_000_000)
    ns = kernel_us * 1000
    # If the queue never empties, the device's clock decides; otherwise the host's view of it.
    allowed = 0.02 if pattern in ("b2b", "mix", "two") else 0.05
    if pattern == "two" and kernel_us == 2:  # brackets contain launches of the other stream
        allowed = 0.3
    tenant = run_tenant(grant, sim, "pattern", pattern, launches(pattern, ns), ns)
    result = tenant.line()
    busy, metered = sim.busy_ns(tenant.pid), grant.slot().busy_ns
    print(f"{pattern} {kernel_us} us: error {metered / busy - 1:+.2%}, busy {busy} of {result['wall_ns']} ns")
    assert busy == pytest.approx(result["truth_ns"], rel=0.01)
    assert -allowed * busy <= metered - busy <= allowed * busy + (LATE_NS if pattern in WAITS else STALLED_NS)
    tenant.end()


@pytest.mark.timing
@pytest.mark.parametrize(
    "kernel_us",
    [
        pytest.param(20, marks=[pytest.mark.slow, BUSY]),
        300,
        pytest.param(3000, marks=pytest.mark.slow),
        pytest.param(50_000, marks=pytest.mark.slow),
    ],
)
def test_metered_under_leases_in_turn(
    make_grant: Callable[..., Grant], sim: Simulator, run_tenant: Callable[..., Tenant], kernel_us: int
) -> None:
    """Two tenants that want the whole device, alternating every 20 ms; the next is leased at `drained`, or after 1
    ms."""
    grants = [make_grant(sim) for _ in range(2)]
    tenants = [run_tenant(grant, sim, "loop", kernel_us * 1000) for grant in grants]
    for grant in grants:
        until(lambda grant=grant: grant.slot().waiting == 1, "both wait")
    leased = [0, 0]
    # The first kernels, of unknown length, are charged as if shared evenly, which costs up to two of them: of the
    # longest, 80 turns have twenty.
    for turn in range(240 if kernel_us == 50_000 else 80):
        grant, other = grants[turn % 2], grants[(turn + 1) % 2]
        began = time.monotonic_ns()
        grant.set_foreign_work(other.slot().drained != other.lease_word() and turn > 0)
        other.set_foreign_work(True)
        grant.lease()
        while time.monotonic_ns() - began < 20_000_000:
            time.sleep(0.0005)
            grant.set_foreign_work(other.slot().drained != other.lease_word() and turn > 0)
        word = grant.revoke()
        revoked = time.monotonic_ns()
        while grant.slot().drained != word and time.monotonic_ns() - revoked < 1_000_000:
            pass
        leased[turn % 2] += time.monotonic_ns() - began
    for grant in grants:
        until(lambda grant=grant: grant.slot().drained == grant.lease_word(), "drained")
    busy = [sim.busy_ns(tenant.pid) for tenant in tenants]
    metered = [grant.slot().busy_ns for grant in grants]
    errors = [m / b - 1 for m, b in zip(metered, busy, strict=True)]
    print(f"in turn, {kernel_us} us: errors {errors[0]:+.2%} {errors[1]:+.2%}, busy {busy[0]} {busy[1]} ns")
    for grant in grants:
        grant.lease()
    for tenant in tenants:
        tenant.end()
    assert all(abs(error) <= 0.05 for error in errors)
    # plus the work still in flight at the end of each tenant's last lease
    assert sum(metered) <= 1.05 * sum(leased) + 2 * kernel_us * 1000


@BUSY
@pytest.mark.timing
def test_two_processes_of_a_grant_share_its_time(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]
) -> None:
    """The hardware slices the device between them; each is charged its part, and each has half of the bound."""
    tenants = [run_tenant(grant, sim, "loop", 100_000) for _ in range(2)]
    for index in range(2):
        until(lambda index=index: grant.slot(index).waiting == 1, "both wait")
    grant.lease()
    began = time.monotonic_ns()
    until(lambda: time.monotonic_ns() - began > 1_000_000_000, "a second went by")
    grant.revoke()
    until(lambda: all(grant.slot(i).drained == grant.lease_word() for i in range(2)), "both drained")
    wall = time.monotonic_ns() - began
    busy = sum(sim.busy_ns(tenant.pid) for tenant in tenants)
    metered = sum(grant.slot(i).busy_ns for i in range(2))
    print(f"two processes: metered {metered / 1e6:.0f} ms, busy {busy / 1e6:.0f} ms of {wall / 1e6:.0f} ms")
    grant.lease()
    for tenant in tenants:
        tenant.end()
    assert metered <= 1.05 * wall
    assert metered == pytest.approx(busy, rel=0.1)


@pytest.mark.timing
def test_copies_over_the_link_are_not_device_time(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]
) -> None:
    grant.lease()
    grant.set_bound(50_000_000)
    tenant = run_tenant(grant, sim, "copies", 40, 8 << 20, 1_000_000)
    result = tenant.line()
    metered = grant.slot().busy_ns
    print(f"kernels {result['truth_ns'] / 1e6:.1f} ms, metered {metered / 1e6:.1f} ms")
    assert metered == pytest.approx(result["truth_ns"], rel=0.05)
    tenant.end()


@pytest.mark.timing
def test_a_profiled_process_is_charged_its_residency(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]
) -> None:
    grant.lease()
    profiler = {"CUDA_INJECTION64_PATH": "/nonexistent/libprofiler.so"}
    tenant = run_tenant(grant, sim, "pattern", "sync", 2000, 20_000, env=profiler)
    result = tenant.line()
    assert grant.slot().inflight == 0
    assert result["truth_ns"] <= grant.slot().busy_ns <= result["wall_ns"]
    tenant.end()
