"""Metered time against the simulator's books, second by second."""

import itertools
import time

from pages.handmade import Grant, Simulator, Tenant
from run.waiting import until


def both(grant: Grant, sim: Simulator, pid: int) -> tuple[int, int]:
    """Metered and true busy time, ns, at nearly the same instant. This process may lose its processor in between, so
    the quickest of ten readings counts, or the first within a millisecond."""
    readings = []
    for _ in range(10):
        began = time.monotonic()
        truth = sim.busy_ns(pid)
        metered = grant.slot().busy_ns
        readings.append((time.monotonic() - began, metered, truth))
        if readings[-1][0] < 0.001:
            break
    return min(readings)[1:]


def windows(
    grant: Grant, sim: Simulator, tenant: Tenant, seconds: int, name: str, rest: bool = False
) -> list[tuple[int, int]]:
    """Metered and true busy time, ns, in each second of a program that prints one line when it starts and one when all
    is done; the last second includes what remains. rest: a second ends when the device is next idle, so that no kernel
    is split."""
    shape = tenant.line()
    read = [both(grant, sim, tenant.pid)]
    began = time.monotonic()
    for second in range(1, seconds):
        time.sleep(max(0.0, began + second - time.monotonic()))
        if rest:
            until(lambda: grant.slot().inflight == 0, "the device rests")
        read.append(both(grant, sim, tenant.pid))
    tenant.line()
    until(lambda: grant.slot().inflight == 0, "all is proven done")
    time.sleep(0.02)
    read.append(both(grant, sim, tenant.pid))
    tenant.end()
    found = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(read)]
    errors = [f"{(metered - truth) / 1e6:+.1f} of {truth / 1e6:.0f}" for metered, truth in found]
    total = read[-1][0] - read[0][0], read[-1][1] - read[0][1]
    print(f"{name} {shape}: total {total[0] / total[1] - 1:+.2%}; ms: {', '.join(errors)}")
    return found


def judge(found: list[tuple[int, int]], late_ns: int = 0) -> None:
    """Asserts that metered time is within 2% of the true time in all, and within 5% in each second. late_ns: how much
    work may be done and not metered yet, because one mark covers it."""
    truth = sum(true for _, true in found)
    assert abs(sum(metered for metered, _ in found) / truth - 1) <= 0.02
    assert all(abs(metered - true) <= 0.05 * true + late_ns for metered, true in found)
