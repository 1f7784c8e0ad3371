"""Programs that would hang under a strict bound on work in flight complete, whether the lease stays or comes and
goes."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from run.waiting import until

Run = Callable[..., Tenant]
DEPENDENT = 1
LIMIT_S = 3  # a hang would never end

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@contextmanager
def moving(*turns: tuple[Grant, int]) -> Iterator[None]:
    """Independent leases that come and go: 7 ms held, 3 ms not."""
    end = threading.Event()

    def move(grant: Grant, device: int) -> None:
        while not end.is_set():
            grant.lease(device)
            end.wait(0.007)
            grant.revoke(device)
            end.wait(0.003)
        grant.lease(device)

    threads = [threading.Thread(target=move, args=turn) for turn in turns]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def ended(tenant: Tenant) -> dict[str, int]:
    """The output of the program. A program that hangs is killed, which ends its output."""
    timer = threading.Timer(LIMIT_S, tenant.kill)
    timer.start()
    try:
        return tenant.line()
    finally:
        timer.cancel()


@pytest.mark.parametrize("mode", ["waitvalue", "hostfunction", "hostthread"])
def test_an_order_cuda_cannot_see(grant: Grant, sim: Simulator, run: Run, mode: str) -> None:
    """25 ms of work behind the operation that waits for it; 2 ms are allowed in flight, and 20 ms behind a value."""
    grant.lease()
    tenant = run("stuck", grant, sim, mode, 250, 100_000)
    until(lambda: grant.slot().flags & DEPENDENT, "the bound let it through")
    result = ended(tenant)
    print(f"{mode}: {result['wall_ns'] / MS:.0f} ms")
    assert sim.busy_ns(tenant.pid) == result["truth_ns"]
    assert grant.slot().flags & DEPENDENT == 0, "the queue is empty again"
    tenant.end()


def test_what_waits_for_a_value_is_not_in_flight(grant: Grant, sim: Simulator, run: Run) -> None:
    """A launch of an unknown function that is held back for being stuck waits for 5 ms."""
    grant.lease()
    tenant = run("stuck", grant, sim, "opened", 400, 20_000)
    result = ended(tenant)
    print(f"{result['wall_ns'] / MS:.0f} ms")
    assert result["wall_ns"] < 1000 * MS
    assert sim.busy_ns(tenant.pid) == result["truth_ns"]
    tenant.end()


@pytest.mark.parametrize("mode", ["waitvalue", "hostfunction", "hostthread"])
def test_with_a_lease_that_moves(grant: Grant, sim: Simulator, run: Run, mode: str) -> None:
    with moving((grant, 0)):
        tenant = run("stuck", grant, sim, mode, 200, 100_000)
        result = ended(tenant)
    print(f"{mode}: {result['wall_ns'] / MS:.0f} ms")
    assert sim.busy_ns(tenant.pid) == result["truth_ns"]
    tenant.end()


@pytest.mark.parametrize("restless", [False, True], ids=["held", "moving"])
def test_two_devices_that_wait_for_each_other(
    make_sim: Callable[..., Simulator], make_grant: Callable[..., Grant], run: Run, restless: bool
) -> None:
    sim = make_sim("2x2GiB")
    grant = make_grant(sim)
    turns = [(grant, 0), (grant, 1)] if restless else []
    for device in (0, 1):
        grant.lease(device)
    with moving(*turns):
        tenant = run("stuck", grant, sim, "devices", 60, 100_000)
        result = ended(tenant)
    print(f"two devices: {result['wall_ns'] / MS:.0f} ms")
    assert sim.busy_ns(tenant.pid, 0) + sim.busy_ns(tenant.pid, 1) == result["truth_ns"]
    tenant.end()


@pytest.mark.parametrize("leases", ["both", "in turn", "moving"])
def test_an_event_between_a_gated_process_and_a_running_one(
    make_grant: Callable[..., Grant], sim: Simulator, run: Run, tmp_path: Path, leases: str
) -> None:
    """One process records the event behind work that it has not submitted yet; the other waits for it with more work
    behind than the bound."""
    giving, taking = make_grant(sim), make_grant(sim)
    giving.lease()
    path = tmp_path / "handle"
    giver = run("stuck", giving, sim, "ipcgive", 100, 100_000, path)
    until(path.exists, "the event is recorded")
    taking.lease()
    if leases != "both":
        giving.revoke()
    taker = run("stuck", taking, sim, "ipctake", 100, 100_000, path)
    until(lambda: taking.slot().flags & DEPENDENT, "the bound let it through")
    assert giver.process.stdin is not None
    os.write(giver.process.stdin.fileno(), b"g")
    if leases == "in turn":
        until(lambda: giving.slot().waiting == 1, "the one that records waits for its lease")
        word = taking.revoke()
        time.sleep(0.001)
        assert taking.slot().drained != word, "what waits for the event is still in flight"
        giving.lease()
        results = [ended(giver)]
        taking.lease()
        results.append(ended(taker))
    else:
        with moving(*([(giving, 0), (taking, 0)] if leases == "moving" else [])):
            results = [ended(giver), ended(taker)]
    for tenant, result in zip((giver, taker), results, strict=True):
        assert sim.busy_ns(tenant.pid) == result["truth_ns"]
        tenant.end()


def test_the_recording_process_dies(make_grant: Callable[..., Grant], sim: Simulator, run: Run, tmp_path: Path) -> None:
    """Its record never happens: the other process waits for ever and is detected as stuck; its death releases
    everything."""
    giving, taking = make_grant(sim), make_grant(sim)
    giving.lease()
    taking.lease()
    path = tmp_path / "handle"
    giver = run("stuck", giving, sim, "ipcgive", 100, 100_000, path)
    until(path.exists, "the event is recorded")
    taker = run("stuck", taking, sim, "ipctake", 40, 100_000, path)
    until(lambda: taking.slot().flags & DEPENDENT, "the bound let it through")
    giver.kill()
    until(lambda: taking.slot().launches == 48, "all are submitted")
    time.sleep(0.1)  # long enough for a wrongly signalled event to be seen
    assert sim.busy_ns(taker.pid) == 8 * 100_000
    taker.kill()
    until(lambda: not any(p["bytes"] for p in sim.books()["devices"][0]["processes"]), "nothing is left")
