"""Random programs of everything at once: metered time against the simulator's books, second by second."""

import itertools
import time
from collections.abc import Callable

import pytest
from handmade import MS, Grant, Simulator, Tenant
from waiting import until

pytestmark = pytest.mark.timing


def both(grant: Grant, sim: Simulator, pid: int) -> tuple[int, int]:
    """What is metered and what is true at nearly one instant: this process may lose its processor in between, so the
    quickest of ten readings counts, or the first within a millisecond."""
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
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], seed: int, seconds: int, gaps: bool, rest: bool = False
) -> list[tuple[int, int]]:
    """What was metered and what is true, ns, in each second of the program; the last one includes the rest of it. rest:
    a second ends when the device next rests, so that no kernel is cut in two."""
    grant.lease()
    grant.set_bound(50 * MS)
    tenant = run("mixed", grant, sim, str(seed), seconds * 1000, int(gaps))
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
    print(f"seed {seed} {shape}, gaps {gaps}: total {total[0] / total[1] - 1:+.2%}; ms: {', '.join(errors)}")
    return found


def judge(found: list[tuple[int, int]]) -> None:
    """A second is judged by what is true of it."""
    truth = sum(true for _, true in found)
    assert abs(sum(metered for metered, _ in found) / truth - 1) <= 0.02
    assert all(abs(metered - true) <= 0.05 * true for metered, true in found)


def test_a_random_program(grant: Grant, sim: Simulator, run: Callable[..., Tenant]) -> None:
    judge(windows(grant, sim, run, 1, 3, False))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "gaps"), [(2, False), (3, True)])
def test_random_programs(grant: Grant, sim: Simulator, run: Callable[..., Tenant], seed: int, gaps: bool) -> None:
    judge(windows(grant, sim, run, seed, 5, gaps))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 12])
def test_random_programs_of_one_thread(grant: Grant, sim: Simulator, run: Callable[..., Tenant], seed: int) -> None:
    """With pauses they leave the device idle for a third of the time or more, and a mark does not say which stream's
    work the device did."""
    judge(windows(grant, sim, run, seed, 5, True, rest=True))
