"""The device plugin as a process, through the real protocol, with a real daemon of two simulated devices."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run.running import GPUSHARE, SPIN, Daemon
from run.waiting import until
from schedulers.kubelet import timed
from schedulers.slotkubelet import Refused, SlotKubelet

from gpushare.adapters.deviceplugin import RESOURCE
from gpushare.adapters.deviceplugin.plugin import Allocator, Options
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.units import PAGE

GIB = 1 << 30
QUICK = """
import gpushare.adapters.deviceplugin.plugin as plugin
plugin.LOOK_SECONDS, plugin.TRUST_SECONDS, plugin.ERROR_SECONDS = 0.05, 0.0, 0.05
plugin.slots.UNLISTED_SECONDS, plugin.WAIT_SECONDS = 0.5, 30.0
from gpushare.cli.main import entry
entry()
"""


class Site:
    """Daemon, plugin and kubelet. `devices`: device ids."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubelet = SlotKubelet(directory / "kubelet")
        self.daemon = Daemon(directory / "state", "2x16GiB")
        self.daemon.patch("import gpushare.daemon.app", "gpushare.daemon.app._HEALTH_SECONDS = 0.05").start()
        self.devices = [device["id"] for device in self.daemon.client.devices()]
        self.plugin: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = [sys.executable, "-c", QUICK, "adapter", "device-plugin", "--socket", str(self.daemon.layout.socket)]
        command += ["--kubelet-dir", str(self.directory / "kubelet"), *options]
        with open(self.directory / "plugin.log", "ab") as log:
            self.plugin = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.plugin is not None
        self.plugin.kill()
        self.plugin.wait()

    def said(self) -> str:
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
            assert site.plugin.wait(20) == 0, site.said()
        finally:
            if site.plugin is not None and site.plugin.poll() is None:
                site.kill()
            site.kubelet.stop()
            site.daemon.stop()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    shared_site.kubelet.wait(20)
    yield shared_site
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
    assert [one["id"] for one in site.daemon.client.grants()] == [grant["id"]], site.said()
    until(lambda: "slots stay" in site.said() or site.kubelet.streams == 1, "that the plugin goes on")
    site.kubelet.allocate(slots(site, 1, 1), "b")
    site.kubelet.pods.clear()
    until(lambda: site.daemon.client.grants() == [], "the end of both", 30)
