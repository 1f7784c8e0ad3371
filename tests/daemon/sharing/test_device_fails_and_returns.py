"""A device fails: guarantees shrink in proportion, all are notified, no tenant is killed; and the device comes back."""

import itertools
from pathlib import Path

import pytest
from pages.pagewords import device_limits
from run.running import Tenant, alive
from run.simulated import SETTING, SETTING_LOST, Wire
from run.waiting import until

from gpushare.binding.pages import LimitsPage
from gpushare.errors import RefusedError

GIB = 1 << 30
TOLD = ("DeviceHealth", "CapacityChanged", "QuotaDegraded", "QuotaRestored")


@pytest.fixture
def daemon(attentive):
    return attentive


@pytest.fixture
def labs(client):
    """Two tenants whose guarantees add up to two devices."""
    client.set_tenant("a", {"time": 1500})
    client.set_tenant("b", {"time": 500})
    return client


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


def health(client):
    return [device["health"] for device in client.devices()]


def lose(client, device):
    client.set_sim_lost(device, lost=True)
    until(lambda: health(client)[device] == "unhealthy", "the loss is seen", 20)


def restore(client, device):
    client.set_sim_lost(device, lost=False)
    until(lambda: health(client)[device] == "healthy", "the return is seen", 20)


def standings(client):
    return {t["name"]: (t["guarantee"]["time"], t["have"]["time"], t["degraded"]) for t in client.tenants()}


def named(client, since, last):
    """Events with a name after `since`, up to the first for which `last` is true."""
    found = []
    for event in client.watch(since=since, timeout=20):
        if event.get("name") in TOLD or event["kind"] == "grant":
            found.append(event)
        if last(event):
            return found
    raise AssertionError(found)


def test_guarantees_shrink_in_proportion_and_are_restored(labs):
    assert standings(labs)["a"] == (1500, 1500, False)
    lose(labs, 0)
    # `default` owns the unreserved part, which is nothing here.
    assert standings(labs) == {"default": (0, 0, False), "a": (1500, 750, True), "b": (500, 250, True)}
    node = labs.node()
    assert (node["degraded"], node["devices"], node["devices_working"]) == (True, 2, 1)
    assert (node["capacity"]["time"], node["have"]["time"]) == (2000, 1000)
    restore(labs, 0)
    assert standings(labs) == {"default": (0, 0, False), "a": (1500, 1500, False), "b": (500, 500, False)}
    assert labs.node()["degraded"] is False


def test_who_is_promised_nothing_by_name_has_less_first(client):
    client.set_tenant("a", {"time": 800})
    lose(client, 1)
    assert standings(client) == {"default": (1200, 200, True), "a": (800, 800, False)}


def test_everybody_is_notified_by_events_with_the_numbers(labs):
    grant = labs.create(memory=GIB, time=500, device=0, tenant="b")
    since = labs.call("GET", "/v1/grants")["rv"]
    lose(labs, 0)
    events = named(labs, since, lambda event: event["kind"] == "grant")
    assert [event["name"] for event in events[:2]] == ["DeviceHealth", "CapacityChanged"]
    assert events[0]["object"]["health_reason"]
    assert events[0]["object"]["unhealthy_since_ns"]
    assert events[1]["object"]["have"]["time"] == 1000
    notified = {e["object"]["name"]: e["object"] for e in events if e["name"] == "QuotaDegraded"}
    promised_and_have = {name: (t["guarantee"]["time"], t["have"]["time"]) for name, t in notified.items()}
    assert promised_and_have == {"a": (1500, 750), "b": (500, 250)}
    last = events[-1]["object"]
    assert (last["id"], last["phase"]) == (grant["id"], "reserved")
    assert "device 0" in last["notice"]
    assert (last["devices"][0]["health"], last["devices"][0]["guaranteed_milli"]) == ("unhealthy", 0)

    since = events[-1]["rv"]
    restore(labs, 0)
    events = named(labs, since, lambda event: event["kind"] == "grant")
    assert [event["name"] for event in events[:4]] == ["DeviceHealth", "CapacityChanged", *["QuotaRestored"] * 2]
    assert events[-1]["object"]["notice"] == ""
    assert events[-1]["object"]["devices"][0]["guaranteed_milli"] == 500


def test_new_grants_are_refused_there_with_the_reason(labs):
    reserved = labs.create(memory=GIB, time=100, device=0, tenant="b")
    lose(labs, 0)
    with pytest.raises(RefusedError, match=r"device 0 .* takes no new grants: it does not work: simulated device 0"):
        labs.create(memory=GIB, time=100, device=0, tenant="b")
    with pytest.raises(RefusedError, match="the node has 1 that can be given; device 0: it does not work"):
        labs.create(memory=GIB, time=100, devices=2, tenant="b")
    with pytest.raises(RefusedError, match=r"device 0 .* of grant .* does not work"):
        labs.bind(reserved["id"], "process")
    assert labs.create(memory=GIB, time=100, tenant="b")["devices"][0]["index"] == 1
    lose(labs, 1)
    with pytest.raises(RefusedError, match="no device of this node is healthy: device 0: it does not work"):
        labs.create(memory=GIB, time=100, tenant="b")


def test_a_tenant_places_what_is_left_of_its_guarantee_beside_the_other(labs):
    """Its reservation is on the lost device. The reservation on the other device shrinks, so that it can continue there
    until the device is back."""
    labs.set_tenant("a", {"time": 1000})
    labs.set_tenant("b", {"time": 1000})
    kept = labs.create(memory=GIB, time=1000, device=1, tenant="a", ttl_seconds=600)
    labs.create(memory=GIB, time=1000, device=0, tenant="b", ttl_seconds=600)
    lose(labs, 0)
    assert labs.grant(kept["id"])["devices"][0]["guaranteed_milli"] == 500
    with pytest.raises(RefusedError, match=r"guarantee of 50% left \(100% were promised, devices are lost\)"):
        labs.create(memory=GIB, time=510, tenant="b")
    moved = labs.create(memory=GIB, time=500, tenant="b")
    assert moved["devices"][0]["index"] == 1
    restore(labs, 0)
    assert labs.grant(kept["id"])["devices"][0]["guaranteed_milli"] == 1000
    assert labs.grant(moved["id"])["borrow"] is True


def test_programs_there_stand_still_and_go_on_those_elsewhere_do_not_notice(daemon, labs, spin):
    there = spin("50%", tenant="b", gpu="0")
    spin("50%", tenant="a", gpu="1")
    until(lambda: min(daemon.busy(there.pid)[0], daemon.books(1)["busy_ns"]) > 0, "both run", 20)
    lose(labs, 0)
    stood, ran = daemon.books(0)["busy_ns"], daemon.books(1)["busy_ns"]
    until(lambda: daemon.books(1)["busy_ns"] > ran + 100_000_000, "the other device works", 20)
    assert daemon.books(0)["busy_ns"] == stood
    assert alive(there.pid)
    [grant] = [grant for grant in labs.grants() if grant["tenant"] == "b"]
    assert grant["phase"] == "active"
    assert "does not work" in grant["notice"]
    restore(labs, 0)
    until(lambda: daemon.books(0)["busy_ns"] > stood + 100_000_000, "it goes on", 20)
    assert labs.grant(grant["id"])["notice"] == ""


def test_shares_elsewhere_follow_what_is_left(daemon, labs, spin):
    """Each had a guarantee of one device; the remaining device is split by what is left of the guarantees."""
    labs.set_tenant("a", {"time": 1000})
    labs.set_tenant("b", {"time": 1000})
    one = spin("100%", tenant="a", gpu="1")
    lose(labs, 0)
    other = spin("50%", tenant="b", gpu="1")

    def busy():
        rows = {row["pid"]: row["busy_ns"] for row in daemon.books(1)["processes"]}
        return rows.get(one.pid, 0), rows.get(other.pid, 0)

    first = until(lambda: busy() if min(busy()) > 0 else None, "both run", 20)
    until(lambda: sum(busy()) > sum(first) + 2_000_000_000, "two seconds of work", 60)
    got = [after - before for after, before in zip(busy(), first, strict=True)]
    # The rule decides between half and nothing. How close to half is asserted where nothing else uses the processors.
    assert abs(got[0] / sum(got) - 0.5) < 0.2, got


def test_a_device_that_came_back_while_the_daemon_was_away(daemon, labs, spin):
    there = spin("50%", tenant="b", gpu="0")
    [grant] = labs.grants()

    def guarantee():
        """The guarantee that applies without a daemon."""
        with LimitsPage.open(Path(grant["dir"]) / "limits", writable=False) as page:
            return device_limits(page)[0].guarantee_milli

    assert guarantee() == 500
    lose(labs, 0)
    assert guarantee() == 0
    daemon.kill()
    with Wire(Path(daemon.layout.sim) / "sim.sock") as wire:
        assert wire.call(SETTING, 0, SETTING_LOST, 0)[0] == 0
    daemon.start()
    assert health(labs)[0] == "healthy"
    assert guarantee() == 500
    assert alive(there.pid)


def test_a_gang_with_a_lost_device_holds_up_nobody_on_its_others(daemon, client, spin):
    """Its leases are given together, and its work on the lost device never drains."""
    gang = spin("40%", devices="2")
    neighbour = spin("40%", gpu="1")
    until(lambda: min(daemon.busy(gang.pid)[0], daemon.books(1)["busy_ns"]) > 0, "both run", 20)
    lose(client, 0)
    [notified] = [grant for grant in client.grants() if len(grant["devices"]) == 2]
    assert [device["health"] for device in notified["devices"]] == ["unhealthy", "healthy"]
    assert [device["guaranteed_milli"] for device in notified["devices"]] == [0, 400]
    ran = daemon.books(1)["busy_ns"]
    until(lambda: daemon.books(1)["busy_ns"] > ran + 200_000_000, "the neighbour goes on", 20)
    stood = daemon.busy(gang.pid)[0]
    restore(client, 0)
    until(lambda: daemon.busy(gang.pid)[0] > stood + 100_000_000, "the gang goes on", 20)
    assert alive(neighbour.pid)


def test_the_command_line_shows_it(daemon, labs):
    grant = labs.create(memory=GIB, time=500, device=0, tenant="b")
    assert daemon.cli_here("sim", "lose", "0").returncode == 0
    until(lambda: health(labs)[0] == "unhealthy", "seen", 20)
    assert "device 0" in daemon.cli_here("devices").stdout.splitlines()[-1]
    assert "b is degraded, devices do not work: it has 25% of 50% of time" in daemon.cli_here("tenants", "list").stdout
    assert f"{grant['id']}: device 0" in daemon.cli_here("ps").stdout
    assert "does not work" in daemon.cli_here("grant", "show", grant["id"]).stdout
    doctor = daemon.cli_here("doctor")
    assert doctor.returncode == 1
    assert "does not work" in doctor.stdout
    assert "degraded: 75% of 150% of time" in doctor.stdout
    assert 'gpushare_tenant_have_milli{tenant="b"} 250' in labs.text("/metrics")
    assert daemon.cli_here("sim", "restore", "0").returncode == 0
    until(lambda: health(labs)[0] == "healthy", "seen", 20)
    assert "degraded" not in daemon.cli_here("doctor").stdout
    for wrong in ("9", "x", "-1"):
        done = daemon.cli_here("sim", "lose", wrong)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_a_daemon_that_starts_beside_a_lost_device_knows_it_and_keeps_the_grant(daemon, labs, spin):
    there = spin("50%", tenant="b", gpu="0")
    [grant] = labs.grants()
    lose(labs, 0)
    daemon.kill()
    daemon.start()
    assert health(labs)[0] == "unhealthy"
    assert alive(there.pid)
    assert "does not work" in labs.grant(grant["id"])["notice"]
    stood = daemon.books(0)["busy_ns"]
    restore(labs, 0)
    until(lambda: daemon.books(0)["busy_ns"] > stood + 100_000_000, "it goes on", 20)
    assert labs.grant(grant["id"])["notice"] == ""


def test_a_gang_goes_on_where_one_of_its_devices_is_missing_at_the_start(daemon, client, spin):
    gang = spin("40%", devices="2")
    held = client.create(memory=GIB, time=100, device=1)
    before = client.devices()
    lose(client, 0)
    daemon.kill()
    daemon.start()
    notified = {grant["id"]: grant for grant in client.grants()}
    assert alive(gang.pid)
    assert {grant["phase"] for grant in notified.values()} == {"active", "reserved"}
    assert notified[held["id"]]["devices"][0]["health"] == "healthy"
    [both] = [grant for grant in notified.values() if len(grant["devices"]) == 2]
    assert [device["health"] for device in both["devices"]] == ["unhealthy", "healthy"]
    # The last known facts: its number, capacity and guarantees.
    kept = ("id", "index", "name", "pci_bus_id", "capacity", "context_bytes", "guaranteed")
    assert [[device[key] for key in kept] for device in client.devices()] == [
        [device[key] for key in kept] for device in before
    ]
    assert (client.node()["capacity"]["time"], client.node()["have"]["time"]) == (2000, 1000)
    stood = daemon.busy(gang.pid)[0]
    restore(client, 0)
    until(lambda: daemon.busy(gang.pid)[0] > stood + 100_000_000, "the gang goes on", 20)
    assert client.create(memory=GIB, time=100, device=0)["phase"] == "reserved"


def test_a_node_whose_devices_are_all_missing_at_the_start_serves_all_the_same(daemon, labs, spin):
    there = spin("50%", tenant="b", gpu="0")
    for device in (0, 1):
        lose(labs, device)
    daemon.kill()
    daemon.start()
    assert health(labs) == ["unhealthy", "unhealthy"]
    assert standings(labs)["a"] == (1500, 0, True)
    assert alive(there.pid)
    restore(labs, 1)
    restore(labs, 0)
    assert standings(labs)["a"] == (1500, 1500, False)


def test_losing_it_many_times_leaves_everything_as_it_was(labs):
    before = [labs.tenants(), [d["guaranteed"] for d in labs.devices()]]
    for device in itertools.islice(itertools.cycle((0, 1)), 4):
        lose(labs, device)
        restore(labs, device)
    assert [labs.tenants(), [d["guaranteed"] for d in labs.devices()]] == before
