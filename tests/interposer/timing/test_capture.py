"""Stream captures go on untouched beside a metered and gated stream."""

from collections.abc import Callable

import pytest
from handmade import MS, Grant, Simulator, Tenant, until

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])
def test_capture(grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant], mode: int) -> None:
    grant.lease()
    tenant = run_tenant(grant, sim, "capture", mode, 40, 20_000)
    result = tenant.line()
    assert result["nodes"] == 40, "no event of ours became a node"
    slot = grant.slot()
    busy = sim.busy_ns(tenant.pid)
    assert slot.busy_ns == pytest.approx(busy, rel=0.1)
    tenant.end()


def test_a_captured_launch_needs_no_lease(grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]) -> None:
    """The lease goes while captures go on: the other stream waits, and a graph launch, but never a capture."""
    grant.lease()
    tenant = run_tenant(grant, sim, "capture", RELAXED, 40, 20_000)
    slot = grant.slot()
    until(lambda: slot.launches > 20, "work beside the capture runs")
    grant.revoke()
    until(lambda: slot.waiting > 0, "the gate closed")
    until(lambda: slot.waiting <= 2 and slot.drained == grant.lease_word(), "drained", 5)
    grant.lease()
    assert tenant.line()["nodes"] == 40
    assert slot.busy_ns > 10 * MS
    tenant.end()
