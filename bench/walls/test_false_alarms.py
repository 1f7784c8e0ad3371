"""Honest tenants cause no findings: whatever they do, and however busy the machine is, the daemon has no finding of any
kind and freezes no process.

GPUSHARE_BENCH_HONEST_SECONDS: length of each part, 30 by default.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run import built
from run.running import SPIN, Daemon, Tenant, start
from run.waiting import until

from gpushare.client import Client
from gpushare.demo import stage, story
from gpushare.demo.teams import script
from gpushare.demo.teams import story as teams
from gpushare.paths import Layout

SECONDS = float(os.environ.get("GPUSHARE_BENCH_HONEST_SECONDS", "30"))
TRAINING = Path(__file__).parents[2] / "tests" / "frameworks" / "programs.py"
LIVES = ("use", "fork-first", "fork-untouched", "fork-after", "vfork", "exec", "threads", "atexit")
"""Modes of tests/interposer/guest/lives.c: programs that fork, exec and end in every way. Not `clone`: a child that
the C library does not know of may find the loader's lock held for ever."""
AT_ONCE = 3
BURN, BUSY = "while True: pass", ("", ", a busy loop on each core")
FILL = "fill 4GiB 2MiB"
"""Allocates, in pieces, more than any tenant may have."""

pytestmark = pytest.mark.timeout(SECONDS + 300)


def judge(report, name: str, client: Client, layout: Layout, seconds: float, what: str) -> None:
    answer = client.call("GET", "/v1/findings")
    # The daemon makes this directory at its first freeze, and keeps it.
    frozen = (layout.run / "frozen").exists()
    measured = f"{answer['total']} findings{' and a freeze' if frozen else ''} in {seconds:.0f} s"
    report(f"false alarms: {name}", measured, what, "0", not answer["total"] and not frozen)
    assert not answer["total"], json.dumps(answer["findings"])
    assert not frozen


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "state")
    try:
        yield daemon.start()
    finally:
        daemon.stop()


def come_and_go(node: Daemon, choose: random.Random) -> int:
    """Runs some programs at once, each in one of many modes, and a tenant that is killed or ended while it works.
    Returns how many there were."""
    children = []
    for mode in choose.choices(LIVES, k=AT_ONCE):
        program = built.program(choose.choice(("lives", "linked-now")))
        children.append(start(node.run("300MiB", "1%", program, mode), node.env))
    tenant = Tenant(node.run("300MiB", "1%", SPIN))
    assert tenant.tell("alloc 1MiB")["ok"]
    tenant.tell("run 100000")
    choose.choice((tenant.kill, tenant.close))()
    try:
        ended = [child.wait(60) for child in children]
    finally:
        for child in children:
            child.kill()
        output = [child.communicate() for child in children]
    assert not any(ended), output
    return AT_ONCE + 1


@contextlib.contextmanager
def beside(busy: bool) -> Iterator[None]:
    """If `busy`, runs a busy loop for each core."""
    burners = [subprocess.Popen([sys.executable, "-Sc", BURN]) for _ in range(os.cpu_count() or 1) if busy]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


# The demo usually is a process of its own, whose end closes its pipes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(os.geteuid() != 0, reason="the demo starts containers")
@pytest.mark.parametrize(("scenario", "busy"), [("containers", False), ("containers", True), ("teams", False)])
def test_the_demo(report, scenario: str, busy: bool) -> None:
    """The demo's own story on its own daemon; its phases together last about SECONDS."""
    began = time.monotonic()
    of_teams = scenario == "teams"
    simulate = f"{script.DEVICES}x16GiB" if of_teams else "1x16GiB"
    steps = sum(len(act.steps) for act in script.ACTS) if of_teams else 4
    settle = teams.SETTLE_SECONDS if of_teams else story.SETTLE_SECONDS
    phase = max(0.5, SECONDS / steps - settle)
    with beside(busy), stage.stage(lambda _: None, simulate) as (demo, where, _):
        if of_teams:
            played = teams.Story(demo, where, phase, lambda _: None, None).play(script.ACTS)
            processes = sum(len(team.grants) for act in script.ACTS for team in act.teams)
            what = f"{processes} processes, {len(played)} steps, a device that fails"
        else:
            facts = story.Story(demo, where, phase, lambda _: None, lambda _: None).play(True)
            what = f"two containers, {len(facts.shares)} phases"
        name, layout = f"the demo, {scenario}{BUSY[busy]}", Layout.of(where / "node")
        judge(report, name, demo.client, layout, time.monotonic() - began, what)


@pytest.mark.parametrize("busy", [False, True], ids=["calm", "busy"])
def test_training(node: Daemon, report, busy: bool) -> None:
    """Two PyTorch loops as in tests/frameworks, in two grants; if `busy`, next to others that come and go."""
    python = os.environ.get("GPUSHARE_FRAMEWORKS_PYTHON")
    if not python:
        pytest.skip("no Python with PyTorch in GPUSHARE_FRAMEWORKS_PYTHON: scripts/setup frameworks makes one")
    loops, choose = [], random.Random(18)
    try:
        for share in ("70%", "25%"):
            command = node.run("2GiB", share, python, str(TRAINING), "forever")
            loops.append(subprocess.Popen(command, env=node.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        assert [loop.stdout.readline() for loop in loops] == [b"begun\n"] * 2
        pids = [loop.pid for loop in loops]
        until(lambda: min(node.busy(*pids)) > 0, "both run", 60)
        before, runs, end = node.busy(*pids), 0, time.monotonic() + SECONDS
        with beside(busy):
            while (left := end - time.monotonic()) > 0:
                if busy:
                    runs += come_and_go(node, choose)
                else:
                    time.sleep(left)
        assert [loop.poll() for loop in loops] == [None, None]
        used = [(after - at) / 1e9 for at, after in zip(before, node.busy(*pids), strict=True)]
        what = f"two loops, {used[0]:.1f} and {used[1]:.1f} s of the device; {runs} other programs"
        judge(report, f"training{BUSY[busy]}", node.client, node.layout, SECONDS, what)
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


@pytest.mark.parametrize("busy", [False, True], ids=["calm", "busy"])
def test_tenants_that_come_and_go(node: Daemon, report, busy: bool) -> None:
    """They run next to two tenants that compute, hold all memory that they may, free it and take it again."""
    choose, runs = random.Random(18), 0
    steady = [node.spin("1GiB", "25%"), node.spin("2GiB", "50%")]
    try:
        with beside(busy):
            for tenant in steady:
                assert not tenant.tell(FILL)["ok"], "it holds all of its limit"
                tenant.tell("run 300000")
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                runs += come_and_go(node, choose)
                again = choose.choice(steady)
                again.tell("free")
                again.tell(FILL)
    finally:
        for tenant in steady:
            tenant.close()
    name, what = f"tenants that come and go{BUSY[busy]}", f"{runs} programs beside two that compute"
    judge(report, name, node.client, node.layout, SECONDS, what)


def test_one_grant_of_many_short_programs(node: Daemon, report) -> None:
    """A shell starts one program after another, each killed while it works, alone on the device: if each were charged
    too little, it would add up."""
    loop = f"while :; do timeout -s KILL 0.3 {SPIN} --kernel-ns 300000 --seconds 60 >&2; echo; done"
    child = subprocess.Popen(
        node.run("1GiB", "10%", "sh", "-c", loop), env=node.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        before = node.books()["busy_ns"]
        time.sleep(SECONDS)
        used = node.books()["busy_ns"] - before
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        runs = len(child.communicate()[0].splitlines())
    assert runs > SECONDS / 3
    what = f"{runs} programs, {used / 1e9:.1f} s of the device"
    judge(report, "one grant of many short programs", node.client, node.layout, SECONDS, what)
