"""The order in which a stopping daemon releases what its arbiter's thread reads."""

import os
import random
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from run.built import SUPPORT
from run.running import SPIN, Tenant, alive

from gpushare.daemon.grants.adoption import Adoption
from gpushare.policy.grants.lifecycle import Phase


def test_pages_are_closed_after_the_arbiter_has_stopped():
    done = []

    def grant(name, phase, keep=False):
        record = SimpleNamespace(phase=phase, life=SimpleNamespace(keep=keep))
        return SimpleNamespace(name=name, record=record, workloads=[])

    grants = [
        grant("runs", Phase.ACTIVE),
        grant("bound", Phase.BOUND),
        grant("kept", Phase.BOUND, keep=True),
        grant("prepared", Phase.PREPARED),
    ]
    resources = SimpleNamespace(close=lambda live: done.append(("pages", live.name)))
    serving = SimpleNamespace(close=lambda: done.append(("arbiter",)))
    transitions = SimpleNamespace(
        send=lambda live, event: done.append(("ends", live.name)), wake_at=lambda live, when: None
    )
    Adoption(grants, None, resources, serving, transitions, SimpleNamespace()).let_go()
    assert done == [("ends", "bound"), ("arbiter",), ("pages", "runs"), ("pages", "kept"), ("pages", "prepared")]


@pytest.mark.parametrize("stops", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_a_daemon_that_is_asked_to_stop_beside_busy_tenants_never_dies_of_a_signal(make_daemon, stops):
    """After any time, whatever it was asked meanwhile."""
    stops = int(os.environ.get("GPUSHARE_TEST_STOPS", stops))
    daemon = make_daemon("--simulate", "1x16GiB").start()
    tenants = [Tenant(daemon.run("1GiB", "25%", SPIN, gpu="0"), daemon.env) for _ in range(3)]
    rng = random.Random(stops)
    try:
        for tenant in tenants:
            tenant.tell("run 200000")
        for _ in range(stops):
            for _ in range(rng.randrange(3)):
                daemon.client.grants()
            time.sleep(rng.random() * 0.02)
            assert not daemon.client.call("GET", "/v1/events?kind=lie")["events"]
            assert daemon.terminate() == 0, daemon.log.read_text()[-2000:]
            daemon.start()
        assert all(alive(tenant.pid) for tenant in tenants)
        pids = sorted(pid for grant in daemon.client.grants() for pid in grant["processes"])
        assert pids == sorted(tenant.pid for tenant in tenants)
    finally:
        for tenant in tenants:
            tenant.kill()


def test_pages_may_be_closed_as_soon_as_the_arbiter_is(tmp_path):
    """The arbiter's thread reads them until its close. Repeated many times, while bells ring without end."""
    program = """
import os, sys, threading
from pathlib import Path
from pages.madepages import limits_page, usage_page
from gpushare.binding.arbiter import Arbiter
from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.policy.quota.shares import Share
directory, rounds = Path(sys.argv[1]), int(sys.argv[2])
bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
for number, bell in enumerate(bells):
    limits_page(directory / f"l{number}", "g", [DeviceLimits(bytes(16), 1 << 30, 0, 250, 1000)]).close()
    usage_page(directory / f"u{number}", "g").close()
stopping = False
def ring():
    while not stopping:
        for bell in bells:
            try:
                os.eventfd_write(bell, 1)
            except BlockingIOError:
                os.eventfd_read(bell)
ringer = threading.Thread(target=ring)
ringer.start()
for _ in range(rounds):
    pages = [(LimitsPage.open(directory / f"l{n}"), UsagePage.open(directory / f"u{n}")) for n in range(3)]
    arbiter = Arbiter()
    for (limits, usage), bell in zip(pages, bells):
        slot = usage.claim(limits, 1)
        usage.pointer.slot[slot.index].device[0].waiting = 1
        arbiter.add(limits, usage, [0], [Share(250)], bell)
    arbiter.close()
    for limits, usage in pages:
        limits.close()
        usage.close()
stopping = True
ringer.join()
"""
    command = [sys.executable, "-c", program, tmp_path, "100"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
