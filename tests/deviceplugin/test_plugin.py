"""The device plugin as a process, through the real protocol, with a real daemon of two simulated devices."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run.makingroom import Room
from run.running import GPUSHARE, SPIN, Daemon, Tenant
from run.waiting import until
from schedulers.kubelet import timed
from schedulers.slotkubelet import Refused, SlotKubelet

from gpushare.adapters.deviceplugin import RESOURCE
from gpushare.adapters.deviceplugin.plugin import Allocator, Options
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.text.units import PAGE

GIB = 1 << 30
QUICK = """
import gpushare.adapters.deviceplugin.plugin as plugin
plugin.LOOK_SECONDS, plugin.TRUST_SECONDS, plugin.ERROR_SECONDS = 0.05, 0.0, 0.05
plugin.slots.UNLISTED_SECONDS, plugin.WAIT_SECONDS = {unlisted}, 30.0
from gpushare.cli.main import entry
entry()
"""


class Site:
    """Daemon, plugin and kubelet. `devices`: device ids."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubelet = SlotKubelet(directory / "kubelet")
        self.room = Room(directory)
        self.daemon = Daemon(directory / "state", "2x16GiB").patch(self.room.patch)
        self.daemon.quicken(health=0.05).start()
        self.devices = [device["id"] for device in self.daemon.client.devices()]
        self.plugin: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, unlisted: float = 0.5) -> None:
        quick = QUICK.format(unlisted=unlisted)
        command = [sys.executable, "-c", quick, "adapter", "device-plugin", "--socket", str(self.daemon.layout.socket)]
        command += ["--kubelet-dir", str(self.directory / "kubelet"), *options]
        with open(self.directory / "plugin.log", "ab") as log:
            self.plugin = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.plugin is not None
        self.plugin.kill()
        self.plugin.wait()

    def restart(self, unlisted: float = 0.5) -> None:
        """Kills the plugin and starts it again."""
        self.kill()
        until(lambda: self.kubelet.streams == 0, "the end of the stream", 30)
        self.start(unlisted=unlisted)
        self.kubelet.wait(20)

    def log_text(self) -> str:
        return (self.directory / "plugin.log").read_text()


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        Path(directory).chmod(0o755)
        Path(directory, "state").mkdir(mode=0o755)
        site = Site(Path(directory))
        try:
            site.kubelet.start()
            site.start()
            yield site
            site.plugin.terminate()
            assert site.plugin.wait(20) == 0, site.log_text()
        finally:
            if site.plugin is not None and site.plugin.poll() is None:
                site.kill()
            site.kubelet.stop()
            site.daemon.stop()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    shared_site.kubelet.wait(20)
    yield shared_site
    shared_site.room.is_there()
    shared_site.kubelet.pods.clear()
    for grant in shared_site.daemon.client.grants():
        shared_site.daemon.client.release(grant["id"])


def slots(site: Site, device: int, count: int, first: int = 0) -> list[str]:
    return [f"{site.devices[device]}.{number}" for number in range(first, first + count)]


def test_slots_are_registered_with_their_places(site):
    offer = {"version": "v1beta1", "endpoint": "gpushare.sock", "resource": "gpushare.dev/slot", "preferred": True}
    assert site.kubelet.registered[-1] == offer
    assert set(site.kubelet.slots) == {*slots(site, 0, 10), *slots(site, 1, 10)}
    assert all(len(name) <= 63 for name in site.kubelet.slots)


def test_slots_are_one_grant_until_their_pod_is_gone(site):
    took, answer = timed(lambda: site.kubelet.allocate(slots(site, 1, 3), "a"))
    [grant] = site.daemon.client.grants()
    assert answer == {"cdi": [f"gpushare.dev/gpu={grant['id']}"], "annotations": {}}
    [part] = grant["devices"]
    assert (part["id"], part["time_milli"], grant["keep"]) == (site.devices[1], 300, True)
    assert part["memory_limit_bytes"] == 16 * GIB * 3 // 10 // PAGE * PAGE
    assert took < 5000
    run = [*GPUSHARE, "run", "--socket", str(site.daemon.layout.socket), "--grant", grant["id"], "--"]
    subprocess.run([*run, str(SPIN), "--seconds", "0.05"], check=True, stdout=subprocess.DEVNULL)
    assert [one["id"] for one in site.daemon.client.grants()] == [grant["id"]], "a container may start again"
    del site.kubelet.pods["a"]
    until(lambda: site.daemon.client.grants() == [], "the grant's end")


def test_slots_for_which_room_is_made_wait(site):
    site.room.is_made_after(3, 0.15)
    assert site.kubelet.allocate(slots(site, 0, 2), "a")["cdi"]
    assert len(site.room.pauses) == 3 and min(site.room.pauses) >= 0.15


def test_slots_of_two_devices_are_refused(site):
    with pytest.raises(Refused, match=r"slots are of 2 devices .* a share is of one device, which has 10 slots"):
        site.kubelet.allocate([*slots(site, 0, 1), *slots(site, 1, 1)])
    with pytest.raises(Refused, match=r"slot 'x\.7' is unknown"):
        site.kubelet.allocate(["x.7"])
    assert site.daemon.client.grants() == []


def test_slots_that_are_given_again_have_a_new_grant(site):
    site.kubelet.allocate(slots(site, 0, 4), "a")
    [before] = site.daemon.client.grants()
    site.kubelet.pods.clear()
    site.kubelet.allocate(slots(site, 0, 2, first=3), "b")
    [after] = site.daemon.client.grants()
    assert after["id"] != before["id"]
    assert after["devices"][0]["time_milli"] == 200


PODS = {
    "one": [("init", 10), ("main", 10)],
    "smaller": [("init", 6), ("main", 3), ("main", 4)],
    "larger": [("init", 2), ("main", 5), ("main", 5)],
    "several": [("init", 3), ("init", 5), ("init", 4), ("main", 2), ("main", 6)],
    "sidecars": [("init", 4), ("sidecar", 2), ("init", 5), ("sidecar", 1), ("main", 4), ("main", 1)],
}


@pytest.mark.parametrize("containers", PODS.values(), ids=PODS)
def test_all_containers_of_a_pod_get_their_shares(site, containers):
    """A device with ten slots, of which kubelet gives some to an init container first and then to others."""
    client, device = site.daemon.client, site.devices[0]
    named = list(site.kubelet.admit("p", slots(site, 0, 10), *containers))
    grants = {name: grant for grant in client.grants() for name in grant["cdi"]}
    assert set(grants) == set(named) and len(named) == len(containers)
    sizes = [grants[name]["devices"][0] for name in named]
    assert [one["time_milli"] for one in sizes] == [100 * count for _, count in containers]
    assert [one["memory_limit_bytes"] for one in sizes] == [
        16 * GIB * count // 10 // PAGE * PAGE for _, count in containers
    ]
    taken = next(one["guaranteed"] for one in client.devices() if one["id"] == device)
    used = len({slot for grant in grants.values() for slot in of_key(grant)})
    assert taken["time"] == 100 * used
    assert 0 <= 16 * GIB * used // 10 - taken["memory"] < len(named) << 20, "sizes are rounded down"
    for name in (named[0], named[-1]):
        spins(site, grants[name]["id"])
    assert {one["id"] for one in client.grants()} == {one["id"] for one in grants.values()}, "all may start again"
    del site.kubelet.pods["p"]
    until(lambda: client.grants() == [], "the end of all grants")


def of_key(grant) -> set[int]:
    mask = int(grant["key"].split("/")[-2], 16)
    return {number for number in range(10) if mask >> number & 1}


def spins(site, grant: str) -> None:
    run = [*GPUSHARE, "run", "--socket", str(site.daemon.layout.socket), "--grant", grant, "--"]
    subprocess.run([*run, str(SPIN), "--seconds", "0.01"], check=True, stdout=subprocess.DEVNULL)


def test_slots_of_a_pod_that_never_started_go_to_the_next(site):
    """As long as kubelet might be giving them to the same pod they are shared in turn, and take no more than once."""
    list(site.kubelet.admit("failed", slots(site, 0, 10), ("init", 10)))
    del site.kubelet.pods["failed"]
    [name] = site.kubelet.admit("next", slots(site, 0, 10), ("main", 10))
    [grant] = [grant for grant in site.daemon.client.grants() if name in grant["cdi"]]
    spins(site, grant["id"])
    del site.kubelet.pods["next"]
    until(lambda: site.daemon.client.grants() == [], "the end of both")


def test_slots_of_several_pods_that_failed_go_to_the_next(site):
    for first in (0, 5):
        list(site.kubelet.admit("failed", slots(site, 0, 5, first=first), ("init", 5)))
        del site.kubelet.pods["failed"]
    [name] = site.kubelet.admit("next", slots(site, 0, 10), ("main", 10))
    assert len(site.daemon.client.grants()) == 2, "one of the two might be the same pod's"
    spins(site, name.rpartition("=")[2])
    site.kubelet.pods.clear()
    until(lambda: site.daemon.client.grants() == [], "the end of all")


def test_no_pod_has_more_containers_in_turn_than_may_be(site):
    admitted = site.kubelet.admit("p", slots(site, 0, 10), *[("init", 1)] * 33)
    with pytest.raises(Refused, match="32 containers of the pod use the same slots"):
        list(admitted)
    assert len(site.daemon.client.grants()) == 32


def test_slots_of_a_pod_that_failed_end_no_grant_of_another(site):
    list(site.kubelet.admit("failed", slots(site, 0, 10), ("init", 10)))
    del site.kubelet.pods["failed"]
    [name] = site.kubelet.admit("runs", slots(site, 0, 10), ("main", 2))
    command = [*GPUSHARE, "run", "--socket", str(site.daemon.layout.socket), "--grant", name.rpartition("=")[2], "--"]
    tenant = Tenant([*command, str(SPIN)])
    [other] = site.kubelet.admit("next", slots(site, 0, 8, first=2), ("main", 8))
    assert {one for grant in site.daemon.client.grants() for one in grant["cdi"]} == {name, other}
    assert tenant.tell("alloc 1GiB")["ok"], "it runs on"
    tenant.close()
    site.kubelet.pods.clear()
    until(lambda: site.daemon.client.grants() == [], "the end of both")


def test_a_used_pods_slots_are_never_shared_with_the_next(site):
    [name] = site.kubelet.admit("a", slots(site, 0, 4), ("main", 4))
    spins(site, name.rpartition("=")[2])
    del site.kubelet.pods["a"]
    [other] = site.kubelet.admit("b", slots(site, 0, 4), ("main", 4))
    assert [grant["cdi"] for grant in site.daemon.client.grants()] == [[other]]


@pytest.fixture
def slow_site(site) -> Iterator[Site]:
    """The plugin waits for longer until kubelet lists a pod, as it does in earnest."""
    site.restart(unlisted=60)
    yield site
    site.restart()


def test_plugin_and_kubelet_and_daemon_start_again_while_a_pod_is_admitted(slow_site):
    site = slow_site
    admitted = site.kubelet.admit("p", slots(site, 0, 10), ("init", 10), ("init", 5), ("main", 3), ("main", 7))
    named = [next(admitted)]
    site.restart(unlisted=60)
    named.append(next(admitted))
    registered = len(site.kubelet.registered)
    site.kubelet.stop()
    site.kubelet.start()
    until(lambda: len(site.kubelet.registered) > registered, "kubelet's new registration", 30)
    site.kubelet.wait(20)
    named.append(next(admitted))
    site.daemon.kill()
    site.daemon.start()
    named += admitted
    assert {name for grant in site.daemon.client.grants() for name in grant["cdi"]} == set(named)
    [whole] = [one["guaranteed"]["time"] for one in site.daemon.client.devices() if one["id"] == site.devices[0]]
    assert whole == 1000
    site.restart()
    del site.kubelet.pods["p"]
    until(lambda: site.daemon.client.grants() == [], "the end of all grants")


def test_a_daemon_that_is_away_for_a_moment_fails_no_pod(site):
    site.daemon.kill()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(site.kubelet.allocate, slots(site, 0, 1), "a")
        site.daemon.start()
        assert waiting.result()["cdi"]


def test_an_allocation_that_waits_stops_nobody(site):
    client = site.daemon.client
    client.set_tenant("default", {"memory": 30 * GIB})
    client.set_tenant("borrower", {})
    lent = client.create(tenant="borrower", memory="10GiB", time=0, device=0, borrow_memory=True)["id"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(site.kubelet.allocate, slots(site, 0, 4), "a")
        until(lambda: client.grant(lent)["eviction"], "the allocation waits")
        site.kubelet.allocate(slots(site, 1, 1), "b")
        del site.kubelet.pods["b"]
        until(lambda: len(client.grants()) == 1, "the end of the other pod's grant")
        assert not waiting.done()
        client.release(lent)
        assert waiting.result()["cdi"]
    client.remove_tenant("borrower")
    client.set_tenant("default", {})


@pytest.mark.parametrize(
    ("pod", "time", "memory"),
    [
        ({}, 200, 16 * GIB * 2 // 10 >> 20 << 20),
        ({"gpushare.dev/time": "30%", "gpushare.dev/memory": "2Gi"}, 300, 2 * GIB),
    ],
    ids=["slots", "annotated"],
)
def test_with_annotations_the_grant_is_made_with_the_container(site, pod, time, memory):
    client = site.daemon.client
    [answer] = Allocator(client, Options(Sizes(10), RESOURCE, True, {})).allocate([slots(site, 1, 2)])
    assert (answer.cdi, client.grants()) == ((), [])
    config = {"annotations": {**pod, **dict(answer.annotations)}, "process": {"env": []}, "mounts": []}
    grant = client.grant(client.call("POST", "/v1/oci/edit", {"config": config})["grant"])
    [part] = grant["devices"]
    assert (part["id"], part["time_milli"], part["memory_limit_bytes"]) == (site.devices[1], time, memory)


def test_preferred_are_those_of_the_device_that_the_node_would_choose(site):
    every, free = [*slots(site, 0, 10), *slots(site, 1, 10)], [*slots(site, 0, 10), *slots(site, 1, 4, first=6)]
    site.daemon.client.create(memory="4GiB", time="30%", device=0)
    assert site.kubelet.prefer(every, [], 3) == slots(site, 1, 3)
    packed = Allocator(site.daemon.client, Options(Sizes(10), RESOURCE, False, {"placement": "pack"}))
    assert packed.preferred(every, [], 3) == slots(site, 0, 3)
    assert site.kubelet.prefer(free, [], 5) == slots(site, 0, 5)
    assert site.kubelet.prefer(free, slots(site, 0, 1, first=9), 2) == [*slots(site, 0, 1, first=9), *slots(site, 0, 1)]


def test_what_others_have_is_not_offered(site):
    grant = site.daemon.client.create(memory="1GiB", time="25%", device=0)
    site.kubelet.wait(17)
    assert {name for name, (ok, _) in site.kubelet.slots.items() if not ok} == set(slots(site, 0, 3, first=7))
    site.kubelet.allocate(site.kubelet.free(site.devices[0]), "a")
    site.daemon.client.release(grant["id"])
    site.kubelet.wait(20)


def test_a_device_that_fails_takes_its_slots_along(site):
    site.daemon.client.set_sim_lost(0, lost=True)
    site.kubelet.wait(10)
    site.daemon.client.set_sim_lost(0, lost=False)
    site.kubelet.wait(20)


def test_kubelet_and_plugin_and_daemon_start_again(site):
    site.kubelet.allocate(slots(site, 0, 10), "a")
    [grant] = site.daemon.client.grants()
    registered = len(site.kubelet.registered)
    site.kubelet.stop()
    site.kubelet.start()
    until(lambda: len(site.kubelet.registered) > registered, "kubelet's new registration", 30)
    site.kubelet.wait(20)
    site.kill()
    until(lambda: site.kubelet.streams == 0, "the end of the stream", 30)
    site.start()
    site.kubelet.wait(20)
    site.daemon.kill()
    site.daemon.start()
    assert [one["id"] for one in site.daemon.client.grants()] == [grant["id"]], site.log_text()
    until(lambda: "slots stay" in site.log_text() or site.kubelet.streams == 1, "that the plugin goes on")
    site.kubelet.allocate(slots(site, 1, 1), "b")
    site.kubelet.pods.clear()
    until(lambda: site.daemon.client.grants() == [], "the end of both", 30)
