"""A tenant's time limit applies to its grants even if the device is idle, as measured by the simulator."""

import pytest
from run.running import Tenant
from run.waiting import until

SECOND = 1_000_000_000
# Shares of the device's time, with tolerance; tests/model/core/test_leases.py shows them exactly in virtual time.
ROUGH = {"seconds": 0.7, "within": 0.08}
EXACT = {"seconds": 2, "within": 0.03}

pytestmark = pytest.mark.xdist_group("timing")


@pytest.fixture
def spin(daemon):
    running: list[Tenant] = []

    def start(share: str, **options: str) -> Tenant:
        running.append(daemon.spin("1GiB", share, **options))
        running[-1].tell("run 500000")
        return running[-1]

    yield start
    for tenant in running:
        tenant.kill()


def part(daemon, device, *tenants, seconds=2.0):
    """The part of the device's total time that the tenants get over `seconds`."""

    def books():
        found = daemon.books(device)
        rows = {row["pid"]: row["busy_ns"] for row in found["processes"]}
        return found["wall_ns"], sum(rows.get(tenant.pid, 0) for tenant in tenants)

    wall, busy = books()
    end = until(lambda: after if (after := books())[0] > wall + seconds * SECOND else None, "its time", 60)
    return (end[1] - busy) / (end[0] - wall)


@pytest.mark.parametrize("grade", [ROUGH, pytest.param(EXACT, marks=pytest.mark.slow)], ids=["rough", "exact"])
def test_one_that_is_alone_on_an_idle_device_is_held_to_it(daemon, client, spin, grade):
    def limited():
        return abs(part(daemon, 0, alone, seconds=grade["seconds"]) - 0.3) < grade["within"]

    assert daemon.cli_here("tenants", "set", "a", "--time", "20%", "--time-limit", "30%").returncode == 0
    alone = spin("20%", tenant="a", gpu="0")
    until(lambda: daemon.busy(alone.pid)[0] > SECOND // 10, "it runs", 20)
    until(limited, "30 %", 20)
    # A change takes effect at once.
    assert daemon.cli_here("tenants", "set", "a", "--time-limit", "none").returncode == 0
    until(lambda: part(daemon, 0, alone, seconds=grade["seconds"]) > 0.8, "all of it", 20)


@pytest.mark.slow
def test_several_grants_on_several_devices_get_the_limit_together(daemon, client, spin):
    client.set_tenant("a", {"time": 300, "time_limit": 600})
    first = spin("10%", tenant="a", gpu="0")
    second = spin("10%", tenant="a", gpu="0")
    until(lambda: min(daemon.busy(first.pid, second.pid)) > SECOND // 10, "both run", 20)
    # No other grant of the tenant runs: these two get all of its limit.
    until(lambda: abs(part(daemon, 0, first, second) - 0.6) < 0.05, "both have what their tenant may", 20)
    spin("10%", tenant="a", gpu="1")
    until(lambda: abs(part(daemon, 0, first, second) - 0.4) < 0.05, "the third has its part", 20)
    # The answer says so: 10 % was requested, and the tenant's guarantee of 30 % is split among three grants.
    here = next(grant for grant in client.grants() if grant["devices"][0]["index"] == 0)
    (device,) = client.grant(here["id"])["devices"]
    assert (device["time_milli"], device["time_limit_milli"]) == (100, 1000)
    assert (device["served_milli"], device["served_limit_milli"]) == (100, 200)
    shown = daemon.cli_here("grant", "show", here["id"]).stdout
    assert "time 10% (limit 100%), now 10% guaranteed, at most 20%" in shown
