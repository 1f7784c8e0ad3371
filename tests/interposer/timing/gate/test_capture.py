"""Stream captures are unaffected by a metered and gated stream in the same program."""

from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from run.waiting import until

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


MODES = pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])


@MODES
def test_capture(grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant], mode: int) -> None:
    grant.lease()
    tenant = run_tenant(grant, sim, "capture", mode, 40, 20_000)
    assert tenant.line()["nodes"] == 40, "no event of ours became a node"
    tenant.end()


def test_a_captured_launch_needs_no_lease(grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]) -> None:
    """The lease is revoked during captures: the other stream and graph launches wait, but never a capture."""
    grant.lease()
    tenant = run_tenant(grant, sim, "capture", RELAXED, 40, 20_000, "stepwise")
    slot = grant.slot()
    tenant.line()
    grant.revoke()
    until(lambda: grant.gated(tenant.pid) == 1 and slot.drained == grant.lease_word(), "the gate closed")
    tenant.tell("")
    assert tenant.line()["nodes"] == 40
    assert grant.gated(tenant.pid) == 1
    grant.lease()
    assert tenant.line()["nodes"] == 40
    assert slot.launches > 50
    tenant.end()


@MODES
@pytest.mark.parametrize("what", ["spread", "watch", "watchrelaxed", "tograph", "mistakes"])
def test_every_call_answers_as_the_driver_alone(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], what: str, mode: int
) -> None:
    """A capture that spreads to a stream with work in flight, during event queries by a watchdog, or into an existing
    graph; and invalid use by the program, after which everything works as before."""
    grant.lease()
    bare = run("captures", None, sim, what, mode)
    expected = bare.line()
    bare.end()
    tenant = run("captures", grant, sim, what, mode)
    result = tenant.line()
    print(result["results"])
    assert len(result["results"]) > 1
    assert result["results"] == expected["results"]
    assert sim.busy_ns(tenant.pid) == sim.busy_ns(bare.pid)
    until(lambda: grant.slot().inflight == 0, "all is proven done")
    tenant.end()


@pytest.mark.timing
@pytest.mark.parametrize("what", ["spread", "watch", "tograph", "mistakes", "capture"])
def test_work_beside_captures_is_metered(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], run_tenant: Callable[..., Tenant], what: str
) -> None:
    """Bursts of a few kernels of 20 us: the host's view of the time counts, so this needs a quiet machine."""
    grant.lease()
    if what == "capture":
        tenant = run_tenant(grant, sim, "capture", GLOBAL, 40, 20_000)
    else:
        tenant = run("captures", grant, sim, what, GLOBAL)
    tenant.line()
    assert grant.slot().busy_ns == pytest.approx(sim.busy_ns(tenant.pid), rel=0.15)
    tenant.end()


def test_a_watchdog_that_breaks_a_capture_breaks_it_without_us_too(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant]
) -> None:
    """Proves that the test above can fail: in global mode an unguarded query is an error, in the others it is not."""
    grant.lease()
    answers = {mode: run("captures", grant, sim, "watch", mode).line()["results"] for mode in (GLOBAL, THREAD_LOCAL)}
    assert answers[GLOBAL][-1] != 0
    assert answers[THREAD_LOCAL][-1] == 0


@pytest.mark.timing
def test_an_updated_graph_is_metered_by_its_new_length(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant]
) -> None:
    """The program waits for each of 280 launches, so the host's view of the time counts: a wait that returns late is
    charged (0.4 ms of 10 was seen, and 1.9). By its old length the graph would be charged half."""
    grant.lease()
    tenant = run("captures", grant, sim, "update")
    result = tenant.line()
    busy, metered = sim.busy_ns(tenant.pid), grant.slot().busy_ns
    print(f"updated graph: error {metered / busy - 1:+.2%}")
    assert busy == result["truth_ns"]
    assert 0.97 * busy <= metered <= 1.12 * busy + 5 * MS
    tenant.end()
