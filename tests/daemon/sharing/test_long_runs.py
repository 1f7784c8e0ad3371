"""Long runs: random histories against a model of the expected memory, and shares that must not drift."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from run.running import Daemon, Tenant
from run.waiting import until

from gpushare.errors import GpushareError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MIB = 1 << 20
KERNELS_NS = [5_000, 50_000, 300_000, 2_000_000, 7_000_000]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Life:
    """Tenants that start, work, change and are killed, and the limits that each must not exceed."""

    def __init__(self, node: Daemon, seed: int) -> None:
        self.node = node
        self.rng = random.Random(seed)
        self.tenants: list[tuple[Tenant, int]] = []  # with its memory limit

    def come(self) -> None:
        mib = self.rng.choice([512, 1024, 2048])
        share = self.rng.choice([20, 50, 100, 150])
        with contextlib.suppress(AssertionError):  # refused: the device is full
            self.tenants.append((self.node.spin(f"{mib}MiB", f"{share}m"), mib * MIB))

    def work(self) -> None:
        tenant, _ = self.rng.choice(self.tenants)
        tenant.tell(f"run {self.rng.choice(KERNELS_NS)} {self.rng.choice([10, 50, 100])}")

    def rest(self) -> None:
        self.rng.choice(self.tenants)[0].tell("idle")

    def allocate(self) -> None:
        tenant, limit = self.rng.choice(self.tenants)
        asked = self.rng.randrange(1, limit)
        held = tenant.tell("memory")
        answer = tenant.tell(f"alloc {asked}")
        fits = asked + 511 & ~511 <= held["free_bytes"]
        assert answer["ok"] == fits, (asked, held, answer)

    def free(self) -> None:
        self.rng.choice(self.tenants)[0].tell("free")

    def kill(self) -> None:
        tenant, _ = self.tenants.pop(self.rng.randrange(len(self.tenants)))
        tenant.kill()

    def pause(self) -> None:
        tenant, _ = self.rng.choice(self.tenants)
        os.kill(tenant.pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0, 0.2))
        os.kill(tenant.pid, signal.SIGCONT)

    def resize(self) -> None:
        with contextlib.suppress(GpushareError):
            grant = self.rng.choice(self.node.client.grants())
            self.node.client.resize(grant["id"], time=self.rng.choice([20, 60, 120]))

    def daemon_dies(self) -> None:
        self.node.kill()
        time.sleep(self.rng.uniform(0, 0.3))
        self.node.start()

    def step(self) -> None:
        steps = [self.come] if len(self.tenants) < 2 else [self.come] * (len(self.tenants) < 6)
        if self.tenants:
            steps += [self.work] * 3 + [
                self.rest,
                self.allocate,
                self.allocate,
                self.free,
                self.kill,
                self.pause,
                self.resize,
            ]
            steps += [self.daemon_dies] * (self.rng.random() < 0.3)
        self.rng.choice(steps)()

    def check(self) -> None:
        books = self.node.books()
        rows = {row["pid"]: row for row in books["processes"]}
        for tenant, limit in self.tenants:
            assert rows[tenant.pid]["peak_bytes"] <= limit
        assert sum(row["busy_ns"] for row in books["processes"]) <= books["busy_ns"] + 1
        assert books["busy_ns"] <= books["wall_ns"]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_lives(node: Daemon, seed: int) -> None:
    life = Life(node, seed)
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline:
        life.step()
        life.check()
    for tenant, _ in life.tenants:
        tenant.close()
    until(lambda: not node.client.grants(), "all grants end", 10)
    until(lambda: node.books()["bytes"] == 0, "all bytes come back", 10)


@pytest.mark.timing
def test_shares_do_not_drift(node: Daemon) -> None:
    asked = {600: 1_000_000, 300: 20_000, 100: 200_000}
    tenants = {milli: node.spin("1GiB", f"{milli}m") for milli in asked}
    for milli, kernel_ns in asked.items():
        tenants[milli].tell(f"run {kernel_ns}")
    time.sleep(1)
    got = node.shares(10, *[tenants[milli].pid for milli in asked])
    for tenant in tenants.values():
        tenant.close()
    for milli, share in zip(asked, got, strict=True):
        assert share == pytest.approx(milli, abs=15), dict(zip(asked, got, strict=True))


def test_many_grants_leave_the_daemon_as_it_was(node: Daemon) -> None:
    assert node.process is not None
    pid = node.process.pid

    def churn(count: int) -> None:
        for _ in range(count):
            grant = node.client.create(memory="1GiB", time=10)["id"]
            node.client.release(grant)

    churn(100)
    before = descriptors(pid), resident(pid)
    churn(1000)
    after = descriptors(pid), resident(pid)
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 8 * MIB
