"""What is in flight when its object ends is charged: the call that ends it waits for the work, or the work goes on, and
nobody asks about either."""

from collections.abc import Callable

import pytest
from handmade import MS, Grant, Simulator, Tenant

pytestmark = pytest.mark.timing

US = 1000
ENDS = ("context", "streams", "kernel", "module", "stream", "thread", "graph", "primary")
WAITS = ("none", "event", "stream", "context")
LENGTHS = ((4, MS), (1, 5 * MS), (20, 50 * US))
QUICK = {("context", "none", (4, MS)), ("kernel", "none", (1, 5 * MS)), ("primary", "none", (4, MS))}
CASES = [
    pytest.param(end, wait, launches, id=f"{end}-{wait}-{launches[0]}x{launches[1] // US}us",
                 marks=[] if (end, wait, launches) in QUICK else [pytest.mark.slow])
    for end in ENDS for wait in WAITS for launches in LENGTHS
]  # fmt: skip


@pytest.mark.parametrize(("end", "wait", "launches"), CASES)
def test_what_is_in_flight_is_charged(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], end: str, wait: str, launches: tuple[int, int]
) -> None:
    grant.lease()
    grant.set_bound(50 * MS)
    tenant = run("drops", grant, sim, end, wait, 150, *launches)
    said = tenant.line()
    busy, metered = sim.busy_ns(tenant.pid), grant.slot().busy_ns
    print(f"{end} {wait} {launches}: {metered / busy - 1:+.1%} of {busy / MS:.0f} ms in {said['rounds']} rounds")
    assert busy == said["truth_ns"]
    assert -0.05 <= metered / busy - 1 <= 0.10
