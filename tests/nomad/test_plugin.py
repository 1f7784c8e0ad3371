"""The device plugin for Nomad as a process, through the real protocol, with a real daemon of two simulated devices."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run.makingroom import Room
from run.running import SPIN, Daemon
from run.waiting import until
from schedulers.nomadclient import Agent, Refused

from gpushare import __version__
from gpushare.text.units import PAGE

GIB = 1 << 30


class Site:
    def __init__(self, directory: Path) -> None:
        self.log = directory / "plugin.log"
        self.room = Room(directory)
        self.daemon = Daemon(directory / "state", "2x16GiB").patch(self.room.patch).start()
        self.devices = [device["id"] for device in self.daemon.client.devices()]
        self.agent = self.start()

    def start(self) -> Agent:
        agent = Agent(self.daemon.layout.socket, self.log)
        agent.configure(user="root", idle_seconds=0, tenant=None)
        return agent

    def slots(self, device: int, *numbers: int) -> list[str]:
        return [f"{self.devices[device]}.{number}" for number in numbers]

    def no_grants(self) -> None:
        until(lambda: self.daemon.client.grants() == [], "the end of all grants", 30)


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        Path(directory).chmod(0o755)
        Path(directory, "state").mkdir(mode=0o755)
        site = Site(Path(directory))
        try:
            yield site
            assert site.agent.stop() == 0, site.log.read_text()
        finally:
            if site.agent.process.poll() is None:
                site.agent.kill()
            site.daemon.stop()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    shared_site.room.is_there()
    for grant in shared_site.daemon.client.grants():
        shared_site.daemon.client.release(grant["id"])


def test_the_handshake(site, tmp_path):
    assert site.agent.line[:3] == ["1", "2", "unix"]
    assert site.agent.line[4] == "grpc"
    assert site.agent.healthy()
    assert site.agent.info() == {"type": 3, "api": ["v0.1.0"], "version": __version__, "name": "gpushare"}
    log = tmp_path / "log"
    refused = Agent(site.daemon.layout.socket, log, NOMAD_PLUGIN_MAGIC_COOKIE="")
    assert refused.process.wait(20) == 2
    assert "for Nomad to start" in log.read_text()


def test_the_configuration(site):
    assert site.agent.schema() == {
        "slots": "number", "socket": "string", "tenant": "string", "user": "string", "idle_seconds": "number",
        "start_seconds": "number",
    }  # fmt: skip
    for wrong, answer in (({"slots": 0}, "slots = 0"), ({"user": "no one"}, "unknown on this node"), ({"x": 1}, "`x`")):
        with pytest.raises(Refused, match=answer):
            site.agent.configure(**wrong)


def test_a_group_per_device_and_its_health(site):
    shown = site.agent.fingerprints()
    now = next(shown)
    assert set(now) == set(site.devices)
    one = now[site.devices[0]]
    assert (one["job"], one["healthy"]) == ("gpushare/slot", site.slots(0, *range(10)))
    assert (one["attributes"]["memory"], one["attributes"]["slot_memory"]) == (16384, 1638)
    grant = site.daemon.client.create(memory="1GiB", time="25%", device=0)
    assert next(shown)[site.devices[0]]["sick"] == site.slots(0, 7, 8, 9)
    site.daemon.client.release(grant["id"])
    assert next(shown)[site.devices[0]]["sick"] == []


def test_a_task_has_its_share_until_it_ends(site):
    given = site.agent.reserve(site.slots(1, 0, 1, 2))
    [grant] = site.daemon.client.grants()
    part = grant["devices"][0]
    assert (part["id"], part["time_milli"], part["memory_limit_bytes"]) == (
        site.devices[1],
        300,
        16 * GIB * 3 // 10 // PAGE * PAGE,
    )
    own = given["env"]["GPUSHARE_GRANT_DIR"]
    assert given["mounts"][own] == (own, False)
    assert all(read_only for path, (host, read_only) in given["mounts"].items() if path != own)
    task = subprocess.Popen([SPIN, "--seconds", "60"], env={**os.environ, **given["env"]}, stdout=subprocess.DEVNULL)
    try:
        stats = site.agent.stats()
        until(lambda: next(stats).get(site.slots(1, 2)[0], (0, 0))[0] > 0, "memory of the task", 30)
        busy = site.daemon.client.sim_stats()["devices"][1]["processes"]
        assert [process["pid"] for process in busy if process["bytes"]] == [task.pid]
        assert [one["id"] for one in site.daemon.client.grants()] == [grant["id"]]
    finally:
        task.kill()
        task.wait()
    site.no_grants()


def test_slots_of_two_devices_are_refused(site):
    with pytest.raises(Refused, match="of 2 devices"):
        site.agent.reserve([*site.slots(0, 1), *site.slots(1, 1)])
    assert site.daemon.client.grants() == []


@pytest.fixture
def lent(site: Site) -> Iterator[str]:
    """The id of a grant that has borrowed memory of device 0, which the plugin's tenant is guaranteed."""
    client = site.daemon.client
    client.set_tenant("owner", {"memory": 30 * GIB})
    site.agent.configure(user="root", idle_seconds=0, tenant="owner")
    yield client.create(memory="10GiB", time=0, device=0, borrow_memory=True)["id"]
    site.agent.configure(user="root", idle_seconds=0, tenant=None)
    for grant in client.grants():
        client.release(grant["id"])
    client.remove_tenant("owner")


def test_a_reservation_that_waits_stops_nobody(site, lent):
    client = site.daemon.client
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(site.agent.reserve, site.slots(0, 0, 1, 2, 3))
        until(lambda: client.grant(lent)["eviction"], "the reservation waits")
        assert site.agent.reserve(site.slots(1, 0))["env"]
        assert next(site.agent.fingerprints())
        assert next(site.agent.stats())
        assert site.agent.healthy()
        assert not waiting.done()
        client.release(lent)
        given = waiting.result()
    assert {given["env"]["GPUSHARE_GRANT_DIR"]} < {grant["dir"] for grant in client.grants()}


def test_a_reservation_for_which_room_is_made_waits(site):
    site.room.is_made_after(3, 0.15)
    assert site.agent.reserve(site.slots(0, 0))["env"]
    assert len(site.room.pauses) == 3 and min(site.room.pauses) >= 0.15


def test_a_reservation_that_nomad_has_given_up_leaves_no_grant(site, lent):
    client = site.daemon.client
    before = {one["id"] for one in client.grants(ended=True)}
    with pytest.raises(Refused):
        site.agent.reserve(site.slots(0, 0, 1, 2, 3), seconds=0.2)
    assert client.grant(lent)["eviction"]
    client.release(lent)

    def made():
        return [one for one in client.grants(ended=True) if one["id"] not in before]

    [one] = until(made, "it gets its memory")
    until(lambda: client.grant(one["id"])["phase"] == "released", "the end of its grant")


def test_a_plugin_that_is_killed_finds_its_grants_again(site):
    site.agent.reserve(site.slots(0, 1, 2))
    [before] = site.daemon.client.grants()
    site.agent.kill()
    site.agent = site.start()
    site.agent.reserve(site.slots(0, 2, 3))
    [after] = site.daemon.client.grants()
    assert after["id"] != before["id"], "the task of the first is over, or its slots would not be given again"
