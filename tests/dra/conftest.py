"""The DRA driver as a process, between stand-ins for the kubelet and the API server and a real daemon with two
simulated devices."""

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from run.makingroom import Room
from run.running import Daemon
from run.waiting import until
from schedulers.apiserver import ApiServer
from schedulers.kubelet import Kubelet

NODE = "node1"
QUICK = """
import gpushare.adapters.kubernetes.driver as driver
driver.SETTLE_SECONDS = driver.SOCKETS_SECONDS = 0.05
driver.AWAY_SECONDS = 0.3
import gpushare.adapters.kubernetes.statuses as statuses
statuses.WRITE_SECONDS = statuses.RETRY_SECONDS = 0.02
import gpushare.adapters.kubernetes.pace as pace
pace.REFILL_SECONDS = 0.01
from gpushare.cli.main import entry
entry()
"""


class Site:
    """Daemon, driver, kubelet and API server. `devices`: their names in slices, by index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.api, self.kubelet = ApiServer(), Kubelet(directory / "kubelet")
        self.api.add_node(NODE)
        self.config = self.api.kubeconfig(directory / "kubeconfig")
        self.room = Room(directory)
        self.daemon = Daemon(directory / "state", "2x16GiB").patch(self.room.patch)
        self.daemon.quicken(health=0.05).start()
        self.driver: subprocess.Popen[bytes] | None = None
        self.devices = [device["id"].lower() for device in self.daemon.client.devices()]

    def start(self) -> None:
        command = [
            sys.executable,
            "-c",
            QUICK,
            "adapter",
            "kubernetes",
            "--socket",
            str(self.daemon.layout.socket),
            "--node",
            NODE,
        ]
        command += ["--kubeconfig", str(self.config), "--kubelet-dir", str(self.directory / "kubelet")]
        with open(self.directory / "driver.log", "ab") as log:
            self.driver = subprocess.Popen(command, stdout=log, stderr=log)
        self.kubelet.register()

    def kill(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()

    def stop(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.driver.terminate()
            assert self.driver.wait(20) == 0, (self.directory / "driver.log").read_text()

    def shut_down(self) -> None:
        """Shuts the node down for a reboot: nothing runs any more, /run is empty, and the next boot id differs. The
        ledger's file has the last second too, as after an orderly stop of the daemon."""
        self.daemon.written()
        self.kill()
        self.daemon.kill()
        self.daemon.stop()  # removes what the daemon left: simulator, mounts
        for directory in (self.daemon.layout.run, self.daemon.layout.cdi):
            shutil.rmtree(directory)
        with contextlib.closing(sqlite3.connect(self.daemon.layout.ledger)) as ledger:
            ledger.execute("UPDATE runs SET boot_id = 'another'")
            ledger.commit()

    def grants(self) -> dict[str, dict]:
        """The daemon's grants by key."""
        return {grant["key"]: grant for grant in self.daemon.client.grants()}

    def shown(self) -> list[dict]:
        return self.api.slice(NODE)["spec"]["devices"]

    def published(self, what: str, found) -> None:
        """Waits until `found` accepts the slice's devices."""
        until(lambda: f"{NODE}-gpu.gpushare.dev" in str(self.api.objects) and found(self.shown()), what, 30)


@pytest.fixture(scope="session")
def shared_site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        Path(directory).chmod(0o755)
        Path(directory, "state").mkdir(mode=0o755)
        site = Site(Path(directory))
        try:
            site.start()
            yield site
            site.stop()
        finally:
            if site.driver is not None and site.driver.poll() is None:
                site.kill()
            site.daemon.stop()
            site.api.stop()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    shared_site.room.is_there()
    for grant in shared_site.daemon.client.grants():
        shared_site.daemon.client.release(grant["id"])
    shared_site.api.objects = {
        name: one for name, one in shared_site.api.objects.items() if "/resourceclaims/" not in name
    }
    shared_site.daemon.nothing_left()
