"""A process that uses a device for longer than it is charged is held to its share. The simulator's books are the
judge."""

import os
import signal
import sys
from typing import Any

import pytest
from machine import freezer
from run.built import SUPPORT
from run.running import SPIN, Running, Tenant, copied_driver
from run.waiting import until

from gpushare.paths import SIM_DIR_ENV, SIM_LIB_DIR

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemon has to make cgroups"),
    pytest.mark.xdist_group("timing"),
]

SECONDS = 2.0


def past(daemon: Any, share: str) -> tuple[Running, int, str]:
    """Starts a process that joins a grant and can then work past the interposer; returns it, its pid and its grant."""
    searched = f"{copied_driver(daemon.state_dir).parent}:{SIM_LIB_DIR}"
    bare = ("-u", "LD_PRELOAD", f"LD_LIBRARY_PATH={searched}", f"{SIM_DIR_ENV}={daemon.layout.sim}")
    program = SUPPORT / "run" / "pastjoiner.py"
    child = daemon.tenant("env", *bare, sys.executable, str(program), time=share, gpu="0", forked=False)
    word, grant, _, _, pid, _ = child.stdout.readline().split()
    assert word == "joined"
    return child, int(pid), grant


@pytest.mark.promise("overuse-is-stopped")
def test_who_works_past_its_slot_is_kept_to_its_share(make_daemon, exact):
    daemon = make_daemon().quicken(doubt=0.3).start()
    honest = Tenant(daemon.run("1GiB", "75%", SPIN, gpu="0"))
    try:
        honest.tell("run 500000")
        child, pid, grant = past(daemon, "25%")
        child.stdin.write("500000\n")
        child.stdin.flush()
        [found] = until(lambda: daemon.findings(grant=grant), "it is found", 20)
        assert (found["kind"], found["pid"], found["act"], found["device"]) == ("overuse", pid, "held", 0)
        group = daemon.cgroup(grant)
        until(lambda: freezer.frozen(group), "it is stopped")
        until(lambda: not freezer.frozen(group), "it goes on", 20)
        assert "for longer than they are charged" in daemon.client.grant(grant)["notice"]
        assert "for longer than it is charged" in daemon.cli_here("events", "--findings").stdout
        ours, _ = daemon.shares(2 * SECONDS if exact else SECONDS, honest.pid, pid)
        print(f"the honest one has {ours:.0f} of 1000")
        assert ours >= (730 if exact else 600)  # without the hold it would be 500 or less
        # A stopping daemon thaws it, as nothing else would.
        until(lambda: freezer.frozen(group), "it is stopped again")
        daemon.terminate()
        assert not freezer.frozen(group)
        daemon.start()
        before = daemon.busy(pid)
        until(lambda: daemon.busy(pid) > before, "it goes on")
        child.kill()
        until(lambda: grant not in {one["id"] for one in daemon.client.grants()}, "its grant ends")
    finally:
        honest.kill()


@pytest.mark.promise("honest-are-not-found")
def test_beside_one_that_is_stopped_again_and_again_nobody_is_found(make_daemon):
    """A stopped process cannot say that its work has ended. The arbiter takes it that it still runs, for a while, and
    charges its neighbour for a part of what that has."""
    daemon = make_daemon().quicken(doubt=0.3).start()
    honest, stopped = (Tenant(daemon.run("1GiB", share, SPIN, gpu="0")) for share in ("25%", "75%"))

    def has_more(pid: int, ns: int) -> None:
        [before] = daemon.busy(pid)
        until(lambda: daemon.busy(pid)[0] >= before + ns, "it runs")

    try:
        honest.tell("run 500000")
        stopped.tell("run 500000")
        for _ in range(6):
            has_more(stopped.pid, 20_000_000)
            os.kill(stopped.pid, signal.SIGSTOP)
            has_more(honest.pid, 900_000_000)
            os.kill(stopped.pid, signal.SIGCONT)
        assert not daemon.findings()
    finally:
        for one in (honest, stopped):
            one.kill()
