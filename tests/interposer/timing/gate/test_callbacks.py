"""Launches in a host function never wait, because the stream is blocked until the function returns."""

from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from run.waiting import until

pytestmark = pytest.mark.timing

MODES = ["function", "callback", "captured", "node", "anynode", "changed", "execchanged", "anychanged"]
KERNEL_NS = 100 * MS  # long enough to be observed in flight


@pytest.mark.parametrize("mode", MODES)
def test_a_launch_in_a_callback_passes_without_a_lease(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], mode: str
) -> None:
    grant.lease()
    tenant = run("callbacks", grant, sim, mode, KERNEL_NS)
    before = tenant.line()["before_ns"]
    slot = grant.slot()
    launches = slot.launches
    word = grant.revoke()
    if mode in ("function", "callback"):
        until(lambda: slot.drained == word, "nothing is in flight but a function of the host")
    tenant.tell("go")
    until(lambda: slot.launches == launches + 1, "metered")
    assert slot.drained != word, "the drain that was reported holds no more"
    until(lambda: sim.busy_ns(tenant.pid) == before + KERNEL_NS, "it ran")
    assert tenant.line() == {"calls": 1, "answer": 0}
    until(lambda: slot.waiting == 1, "a launch of the program's own thread waits, as before")
    until(lambda: slot.drained == word, "drained again")
    grant.lease()
    assert tenant.end()["truth_ns"] == sim.busy_ns(tenant.pid)
    # No mark was recorded in the callback: the kernel is charged at the next mark. It ran without a lease, when others
    # are believed to have half of the device.
    busy = sim.busy_ns(tenant.pid)
    assert 0.9 * busy - KERNEL_NS / 2 <= slot.busy_ns <= 1.1 * busy


def test_callbacks_by_the_thousand(grant: Grant, sim: Simulator, run: Callable[..., Tenant]) -> None:
    """More functions than the interposer has slots for: each is called with its own data, once."""
    grant.lease()
    tenant = run("callbacks", grant, sim, "many")
    assert tenant.line() == {"functions": 600, "wrong": 0}
    tenant.end()


def test_a_callback_is_not_bounded(grant: Grant, sim: Simulator, run: Callable[..., Tenant]) -> None:
    """40 ms of work at once, with 2 ms allowed in flight: none of it starts before the callback returns."""
    grant.lease()
    tenant = run("callbacks", grant, sim, "bounded", MS)
    took = tenant.line()["took_ns"]
    print(f"40 launches in a callback: {took / MS:.1f} ms")
    assert took < 10 * MS
    tenant.end()
