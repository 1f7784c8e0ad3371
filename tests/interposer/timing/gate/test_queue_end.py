"""When a program knows that its work is complete, the arbiter knows it too."""

from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from timing.timed import busy

pytestmark = pytest.mark.timing

ROUNDS = 10
WAITS = ("stream", "context", "event", "copy", *busy("query", "event_query"))


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(("usual_ns", "other_ns"), [(20_000, 4 * MS), (4 * MS, 20_000)], ids=["longer", "shorter"])
def test_after_a_wait_nothing_is_expected_to_run(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], wait: str, usual_ns: int, other_ns: int
) -> None:
    """However wrong the estimate was, and however often the program queries again. The arbiter waits for the reported
    end: it is notified at once of work that is done sooner, since the device would idle for 4 ms otherwise."""
    grant.lease()
    tenant = run("ends", grant, sim, wait, usual_ns, other_ns, ROUNDS)
    late, early, rings = [], [], []
    for _ in range(ROUNDS):
        times = tenant.line()
        rings.append(grant.rings())
        end = grant.slot().queue_end_ns
        late.append(end - times["returned_ns"])
        early.append(times["launched_ns"] + other_ns - end)
        tenant.tell("")
    print(f"{wait}: end after the return {min(late)}..{max(late)} ns, before the work's end {max(early)} ns at most")
    print(f"rings {rings}")
    assert max(late) <= 100_000
    assert max(early) <= 500_000
    if other_ns < usual_ns:
        assert min(rings) >= 1
        assert sum(rings) <= 5 * ROUNDS  # of 7 waits a round
    tenant.end()
