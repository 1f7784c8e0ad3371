"""What is in flight when its object ends is charged: the call that ends it waits for the work, or the work goes on, and
nobody asks about either."""

from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant

pytestmark = pytest.mark.timing

US = 1000
ENDS = ("context", "streams", "kernel", "module", "stream", "thread", "graph", "primary")
LONG, LONGER, SHORT = (4, MS), (1, 5 * MS), (20, 50 * US)
QUICK = [("context", "none", LONG), ("kernel", "none", LONGER), ("primary", "none", LONG)]
SLOW = [
    *((end, "none", launches) for end in ENDS for launches in (LONG, LONGER, SHORT)),
    *((end, wait, SHORT) for end in ("context", "streams", "primary") for wait in ("event", "stream", "context")),
]
CASES = [
    pytest.param(
        *case,
        id=f"{case[0]}-{case[1]}-{case[2][0]}x{case[2][1] // US}us",
        marks=[] if case in QUICK else [pytest.mark.slow],
    )
    for case in SLOW
]


@pytest.mark.drawn(12)
@pytest.mark.parametrize(("end", "wait", "launches"), CASES)
def test_what_is_in_flight_is_charged(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], end: str, wait: str, launches: tuple[int, int]
) -> None:
    grant.lease()
    grant.set_bound(50 * MS)
    tenant = run("drops", grant, sim, end, wait, 100, *launches)
    result = tenant.line()
    busy, metered = sim.busy_ns(tenant.pid), grant.slot().busy_ns
    print(f"{end} {wait} {launches}: {metered / busy - 1:+.1%} of {busy / MS:.0f} ms in {result['rounds']} rounds")
    assert busy == result["truth_ns"]
    assert 0.95 * busy <= metered
    assert metered <= 1.1 * busy + 10 * MS  # a thread may get no processor for that long when its wait is over
