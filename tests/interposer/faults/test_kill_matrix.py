"""kill -9 of the daemon, of tenants and of the hook at many points: no process hangs, no grant leaks, no byte is lost.

Memory and time are measured by the simulator; grants by the node API and the files on disk.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from run.running import Daemon, Tenant, alive
from run.waiting import until

from gpushare import paths
from gpushare.errors import GpushareError

MIB = 1 << 20
POINTS = [0, 0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]  # ms after the start


def leftovers(node: Daemon) -> list[str]:
    """Grant directories and CDI specs on disk."""
    layout = paths.Layout.of(node.state_dir)
    found = [path.name for path in layout.grants.iterdir() if path.is_dir()] if layout.grants.exists() else []
    found += [path.name for path in layout.cdi.iterdir()] if layout.cdi.exists() else []
    return sorted(name for name in found if name not in ("any", "gpushare.dev-gpu_any.json"))


def nothing_left(node: Daemon) -> bool:
    return not node.client.grants() and not leftovers(node) and node.books()["bytes"] == 0


@pytest.mark.parametrize(
    "points", [POINTS[::2], pytest.param(POINTS[1::2], marks=pytest.mark.slow)], ids=["some", "rest"]
)
def test_tenants_killed_at_many_points_leave_nothing(node: Daemon, points: list[float]) -> None:
    witness = node.spin("1GiB", "25%")
    witness.tell("run 500000")
    held = node.books()["bytes"]
    for delay in points:
        victim = subprocess.Popen(
            node.run("2GiB", "25%", paths.LIB_DIR / "gpushare-spin", "--alloc", "1G", "--seconds", "30"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # The first half of the start is Python's; the points cover the second half.
        time.sleep(0.15 + delay * 5 / 1000)
        victim.kill()
        victim.wait()
        until(lambda: len(node.client.grants()) == 1, "the killed tenant's grant is released", 20)
        until(lambda: node.books()["bytes"] == held, "its bytes are back", 20)
    [before] = node.busy(witness.pid)
    until(lambda: node.busy(witness.pid)[0] > before + 50_000_000, "the neighbour still runs", 20)
    witness.close()
    until(lambda: nothing_left(node), seconds=20)


def test_tenant_killed_while_it_allocates(node: Daemon) -> None:
    grant = None
    rng = random.Random(7)
    for _ in range(6):
        tenant = node.spin("1GiB", "50%")
        stop = threading.Event()

        def churn(tenant: Tenant = tenant, stop: threading.Event = stop) -> None:
            with contextlib.suppress(Exception):
                while not stop.is_set():
                    tenant.tell("alloc 64M")
                    tenant.tell("free")

        worker = threading.Thread(target=churn)
        worker.start()
        [grant] = node.client.grants()
        time.sleep(rng.uniform(0.02, 0.1))
        tenant.process.kill()
        stop.set()
        worker.join()
        tenant.close()
        until(lambda: nothing_left(node), seconds=20)
    assert grant is not None
    # A leaked limit would make this start fail.
    again = node.spin("1GiB", "50%")
    assert again.tell(f"alloc {900 * MIB}")["ok"]
    again.close()


@pytest.mark.parametrize("delay", [0, *(pytest.param(ms, marks=pytest.mark.slow) for ms in (3, 20, 100))])
def test_daemon_killed_under_two_tenants(node: Daemon, delay: float) -> None:
    owner, borrower = node.spin("4GiB", "75%"), node.spin("4GiB", "25%")
    for tenant in (owner, borrower):
        assert tenant.tell("alloc 1G")["ok"]
        tenant.tell("run 300000")
    time.sleep(0.3 + delay / 1000)
    grants = {grant["id"] for grant in node.client.grants()}
    sim_pid = node.client.node()["sim_pid"]
    node.kill()
    assert alive(owner.pid)
    assert alive(borrower.pid)
    # Memory limits hold without a daemon.
    owner.tell("idle")
    refused = owner.tell("alloc 4G")
    assert (refused["ok"], refused["name"]) == (False, "CUDA_ERROR_OUT_OF_MEMORY")
    # Time is then metered by a local budget.
    assert borrower.tell("idle")["kernels"] > 0
    at = borrower.tell("run 300000")
    assert at["event"] == "run"
    node.start()
    assert node.client.node()["sim_pid"] == sim_pid, "the simulated hardware outlives a daemon"
    assert {grant["id"] for grant in node.client.grants()} == grants
    owner.tell("run 300000")
    until(lambda: all(len(grant["processes"]) == 1 for grant in node.client.grants()), "both joined again", 10)
    time.sleep(0.5)
    shares = node.shares(2, owner.pid, borrower.pid)
    assert shares[0] == pytest.approx(750, abs=60), shares
    for tenant in (owner, borrower):
        tenant.close()
    until(lambda: nothing_left(node), seconds=20)


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_daemon_killed_while_grants_come_and_go(node: Daemon, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        answered: list[str] = []

        def churn(answered: list[str] = answered) -> None:
            with contextlib.suppress(GpushareError, OSError, ValueError):
                for number in range(200):
                    grant = node.client.create(memory="1GiB", time=10, ttl_seconds=300)
                    answered.append(grant["id"])
                    if number % 2:
                        node.client.release(answered.pop(0))

        worker = threading.Thread(target=churn)
        worker.start()
        time.sleep(rng.uniform(0.01, 0.3))
        node.kill()
        worker.join()
        node.start()
        known = {grant["id"] for grant in node.client.grants()}
        # Every answered reservation exists; the client cannot know about at most the one request in flight.
        assert set(answered) <= known, answered
        on_disk = set(leftovers(node))
        assert {name for name in on_disk if any(grant in name for grant in known)} == on_disk, (
            "an unknown grant's files"
        )
        for grant in known:
            node.client.release(grant)
        until(lambda: nothing_left(node), seconds=20)


def test_tenant_dies_while_the_daemon_is_dead(node: Daemon) -> None:
    tenant = node.spin("4GiB", "50%")
    assert tenant.tell("alloc 1G")["ok"]
    node.kill()
    tenant.kill()
    node.start()
    until(lambda: nothing_left(node), seconds=10)


def test_hooks_killed_at_many_points_leave_no_grant(node: Daemon) -> None:
    """A killed hook makes the start fail; the reservation expires, and nothing else remains."""
    for delay in POINTS:
        kill_a_hook(node, delay)
    until(lambda: nothing_left(node), seconds=10)


def kill_a_hook(node: Daemon, delay: float) -> None:
    grant = node.client.create(memory="1GiB", time=50, ttl_seconds=1)
    sleeper = subprocess.Popen(["sleep", "60"])
    state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": sleeper.pid, "bundle": "/"}
    hook = subprocess.Popen(
        [paths.HOOK, "create-runtime", "--grant", grant["id"], "--socket", node.client.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert hook.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            hook.stdin.write(json.dumps(state).encode())
            hook.stdin.close()
        time.sleep(delay / 1000)
        hook.kill()
        hook.wait()
    finally:
        # An engine does this when a hook fails: it kills the container's first process.
        sleeper.send_signal(signal.SIGKILL)
        sleeper.wait()


def test_stopped_tenant_does_not_stop_its_neighbour(node: Daemon) -> None:
    stuck, other = node.spin("1GiB", "50%"), node.spin("1GiB", "50%")
    for tenant in (stuck, other):
        tenant.tell("run 300000")
    time.sleep(0.3)
    os.kill(stuck.pid, signal.SIGSTOP)
    try:
        before = node.busy(other.pid, stuck.pid)
        until(lambda: node.busy(other.pid)[0] - before[0] > 300_000_000, "the neighbour gets the device")
        assert node.busy(stuck.pid)[0] - before[1] < 100_000_000, "more than what was in flight"
    finally:
        os.kill(stuck.pid, signal.SIGCONT)
    for tenant in (stuck, other):
        tenant.close()
    until(lambda: nothing_left(node), seconds=20)


def test_files_are_in_the_state_dir(node: Daemon, tmp_path: Path) -> None:
    """Two daemons on one machine do not interfere."""
    second = Daemon(tmp_path / "second").start()
    try:
        second.client.create(memory="1GiB", time=100)
        assert len(second.client.grants()) == 1
        assert not node.client.grants()
    finally:
        second.stop()
