"""Threads that wait for work, or query it, while others launch: metered time against the simulator's accounting."""

from collections.abc import Callable
from itertools import cycle

import pytest
from pages.handmade import Grant, Simulator, Tenant
from timing.metered import judge, windows

pytestmark = pytest.mark.timing

US = 1000
WAYS = [
    "stream",
    "query",
    "context",
    "event",
    "eventquery",
    "shared",
    "sharedquery",
    "legacy",
    "beside",
    "order",
    "launchers",
]
"""What the threads do, or where the work goes: tests/interposer/timing/charges/races.c."""
KERNELS = {
    "even": (5000 * US, 5000 * US, 2000),
    "uneven": (30 * US, 30_000 * US, 20),
    "gaps": (30 * US, 3000 * US, 1500),
}
"""Duration of the short kernels and of every eighth kernel in ns, and the pause between launches of one thread in
us."""


LATE_NS = 8 * KERNELS["uneven"][1]
"""Seconds of work are queued there, and its marks have up to eight long kernels between them."""


def race(grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str, kernels: str, seconds: int) -> None:
    grant.lease()
    tenant = run("races", grant, sim, way, seconds * 1000, 2, *KERNELS[kernels])
    found = windows(grant, sim, tenant, seconds, f"{way}, {kernels}")
    judge(found, LATE_NS if kernels == "uneven" else 0)


@pytest.mark.parametrize(
    ("way", "kernels"),
    [("event", "even"), ("launchers", "even"), pytest.param("stream", "uneven", marks=pytest.mark.slow)],
)
def test_launches_during_waits(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str, kernels: str
) -> None:
    race(grant, sim, run, way, kernels, 2)


@pytest.mark.drawn(4)
@pytest.mark.slow
@pytest.mark.parametrize(("way", "kernels"), list(zip(WAYS, cycle(["even", "gaps"]), strict=False)))
def test_launches_during_waits_of_every_kind(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str, kernels: str
) -> None:
    race(grant, sim, run, way, kernels, 2)
