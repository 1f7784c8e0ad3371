"""What a grant's processes hold beyond what they were charged counts against its limit. The simulator's books are the
judge. Uncharged memory is taken past the interposer, by a process that has joined."""

import json
import os
import sys

import pytest
from run import built
from run.built import SUPPORT
from run.running import GPUSHARE, SPIN, Tenant, copied_driver, start
from run.waiting import until

from gpushare.enforce.cgroup import Hierarchies

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or Hierarchies.of().unified is None, reason="needs root and cgroup v2"
)

MIB = 1 << 20
PAST = 512


@pytest.fixture
def daemon(make_daemon):
    return make_daemon("--simulate", "1x16GiB").start()


class Past:
    """A process that joins a grant and takes memory past the interposer."""

    def __init__(self, daemon, grant: str) -> None:
        command = [*GPUSHARE, "run", "--socket", str(daemon.layout.socket), "--grant", grant, "--"]
        self.process = start(
            [*command, str(built.program("newlinkmap")), str(copied_driver(daemon.state_dir)), "joined"],
            daemon.env,
            stderr=False,
        )
        assert self.hear() == {"joined": 0, "init": 0}

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def take(self, mib: int) -> None:
        self.process.stdin.write(f"take {mib}\n")
        self.process.stdin.flush()
        assert self.hear() == {"mib": mib, "last": 0}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def share(daemon, grant: str):
    return daemon.client.grant(grant)["devices"][0]


def test_it_counts_against_the_limit_and_is_shown(daemon):
    grant = daemon.client.create(memory="1GiB", time="10%", keep=True)["id"]
    past = Past(daemon, grant)
    command = [*GPUSHARE, "run", "--socket", str(daemon.layout.socket), "--grant", grant, "--"]
    honest = Tenant([*command, str(SPIN)], daemon.env)
    try:
        past.take(PAST)
        own = daemon.books()["processes"]
        [beyond] = [row["bytes"] for row in own if row["pid"] == past.process.pid]
        until(lambda: share(daemon, grant)["memory_uncharged_bytes"] == beyond, "it is counted, and no more")
        seen = share(daemon, grant)
        assert seen["memory_bytes"] == sum(row["bytes"] for row in own)
        assert not honest.tell(f"alloc {1024 - PAST}MiB")["ok"], "that is what was left without the other's"
        free = (1 << 30) - seen["memory_bytes"]
        assert honest.tell(f"alloc {free // MIB // 2 * 2}MiB")["ok"], "the rest is still its"
        assert sum(row["bytes"] for row in daemon.books()["processes"]) <= 1 << 30
        past.close()
        until(lambda: share(daemon, grant)["memory_uncharged_bytes"] == 0, "it ends with its process")
        assert honest.tell(f"alloc {PAST - 16}MiB")["ok"]
    finally:
        past.close()
        honest.close()
        daemon.client.release(grant)


def test_who_comes_after_the_last_has_all_of_it(daemon):
    grant = daemon.client.create(memory="1GiB", time="10%", keep=True)["id"]
    past = Past(daemon, grant)
    past.take(PAST)
    until(lambda: share(daemon, grant)["memory_uncharged_bytes"] >= PAST * MIB, "it is counted")
    past.close()
    until(lambda: share(daemon, grant)["memory_uncharged_bytes"] == 0, "nobody is there any more")
    daemon.client.release(grant)


def test_it_outlives_the_daemon(daemon):
    grant = daemon.client.create(memory="1GiB", time="10%", keep=True)["id"]
    past = Past(daemon, grant)
    try:
        past.take(PAST)
        until(lambda: share(daemon, grant)["memory_uncharged_bytes"] >= PAST * MIB, "it is counted")
        before = share(daemon, grant)["memory_uncharged_bytes"]
        daemon.kill()
        daemon.start()
        assert share(daemon, grant)["memory_uncharged_bytes"] == before
    finally:
        past.close()
        daemon.client.release(grant)


CHURN = """
import sys
from cuda.bindings import driver
sys.path.insert(0, sys.argv[1])
from run.worker import context, ok
ok(driver.cuInit(0))
context()
for _ in range(40000):
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(256 << 20))))
"""


def test_who_allocates_and_frees_all_the_while_has_nothing_uncharged(daemon):
    """Nothing may look uncharged, although the pages and the driver are not read at one instant."""
    child = start(daemon.run("1GiB", "50%", sys.executable, "-c", CHURN, str(SUPPORT)), daemon.env, stderr=False)
    most = 0
    while child.poll() is None:
        for grant in daemon.client.grants():
            most = max(most, grant["devices"][0]["memory_uncharged_bytes"])
    assert (child.wait(), most) == (0, 0)
    child.communicate()


def test_what_processes_share_is_not_counted_for_each(make_daemon, tmp_path):
    """The driver also counts memory for importers: here it lists 2 GiB more for each process than that has."""
    looks = tmp_path / "looks"
    looks.touch()
    daemon = make_daemon("--simulate", "1x16GiB").patch(
        "from dataclasses import replace",
        "from gpushare.node.simulated import SimulatedBackend as Backend",
        f"said, looks = Backend.processes, open({str(looks)!r}, 'a', buffering=1)",
        "more = lambda row: replace(row, memory_bytes=row.memory_bytes + (2 << 30))",
        "Backend.processes = lambda *of: print(file=looks) or [more(row) for row in said(*of)]",
    )
    tenant = daemon.start().spin("1GiB", "10%")
    try:
        assert tenant.tell("alloc 512MiB")["ok"]
        seen = looks.stat().st_size
        until(lambda: looks.stat().st_size > seen + 30, "it has been looked at for longer than an excess may last")
        [grant] = daemon.client.grants()
        assert grant["devices"][0]["memory_uncharged_bytes"] == 0
        assert tenant.tell(f"alloc {1024 - 512 - 64}MiB")["ok"]
        assert not daemon.false_alarms()
    finally:
        tenant.close()


def test_what_a_driver_lists_for_no_process_is_known_of_each_context(make_daemon):
    """The driver's list omits 8 MiB of each context, which are in the device's total."""
    daemon = make_daemon("--simulate", "1x16GiB").patch(
        "from dataclasses import replace",
        "from gpushare.node.simulated import SimulatedBackend as Backend",
        f"said, device, hidden = Backend.processes, Backend.device, {8 * MIB}",
        "less = lambda row: replace(row, memory_bytes=row.memory_bytes - hidden)",
        "Backend.processes = lambda *of: [less(row) for row in said(*of)]",
        "Backend.device = lambda *of: replace(device(*of), unlisted_bytes=hidden)",
        "Backend.devices = lambda self: [self.device(0)]",
    )
    daemon.start()
    grant = daemon.client.create(memory="1GiB", time="10%", keep=True)["id"]
    past = Past(daemon, grant)
    try:
        past.take(PAST)
        [own] = [row["bytes"] for row in daemon.books()["processes"] if row["pid"] == past.process.pid]
        until(lambda: share(daemon, grant)["memory_uncharged_bytes"] == own, "all of it is counted")
    finally:
        past.close()
        daemon.client.release(grant)
