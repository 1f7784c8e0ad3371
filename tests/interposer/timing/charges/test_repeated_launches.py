"""Repeated launches are not booked individually, and none is lost."""

from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from run.waiting import until
from timing.timed import BUSY


@pytest.mark.parametrize(
    ("mode", "n"), [("refused", 20_000), ("waits", 20_000), ("captures", 100), ("threads", 100), ("ends", 100)]
)
def test_every_launch_is_counted(grant: Grant, sim: Simulator, run: Callable[..., Tenant], mode: str, n: int) -> None:
    """Also launches after a refused or a captured one, of threads that alternate, and of threads that exited."""
    grant.lease()
    grant.set_bound(50 * MS)
    tenant = run("repeats", grant, sim, mode, n)
    taken = tenant.line()["taken"]
    assert taken >= 10_000 * (mode != "captures")
    assert grant.slot().launches == taken
    assert grant.slot().busy_ns >= 0.95 * sim.busy_ns(tenant.pid)


@BUSY
@pytest.mark.timing
def test_a_default_stream_is_another_one_in_each_context(
    make_sim: Callable[..., Simulator], make_grant: Callable[..., Grant], run: Callable[..., Tenant]
) -> None:
    sim = make_sim("2x4GiB")
    grant = make_grant(sim)
    for device in (0, 1):
        grant.lease(device)
        grant.set_bound(50 * MS, device)
    tenant = run("repeats", grant, sim, "devices", 1500)
    assert tenant.line()["taken"] == 150_000
    for device, launches in enumerate((100_000, 50_000)):
        busy, slot = sim.busy_ns(tenant.pid, device), grant.slot(0, device)
        print(f"device {device}: metered {slot.busy_ns / busy - 1:+.1%} of {busy / MS:.0f} ms")
        assert slot.launches == launches
        assert 2000 * launches == busy
        assert slot.busy_ns == pytest.approx(busy, rel=0.1)


@pytest.mark.parametrize("pattern", ["b2b", "sync", "two"])
def test_a_revoke_is_heard_between_repeats(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant], pattern: str
) -> None:
    """Launches that were not booked by then are booked as soon as the next launch waits."""
    tenant = run_tenant(grant, sim, "pattern", pattern, 1_000_000, 2000)
    slot = grant.slot()
    until(lambda: slot.waiting == 1, "the tenant waits")
    for _ in range(20):
        began = slot.launches
        grant.lease()
        until(lambda began=began: slot.launches > began + 1000, "the tenant runs")
        word = grant.revoke()
        until(lambda word=word: grant.gated(tenant.pid) == 1 and slot.drained == word, "the tenant waits again")
        until(lambda: sim.busy_ns(tenant.pid) == 2000 * slot.launches, "all that is counted has run")
