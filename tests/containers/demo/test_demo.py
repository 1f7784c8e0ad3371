"""`gpushare demo` as a user runs it. The bounds on times are wide, because the verdict's own bounds are for an idle
machine."""

import contextlib
import importlib.util
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from run.leftovers import nothing_left, processes_with
from run.waiting import until

from gpushare.inject import grantfiles
from gpushare.paths import Layout

DEMO = [sys.executable, "-m", "gpushare", "demo"]
# Shortens the phases and the settling time before each; the command line requires phases of at least 2 s.
SHORT = """
from gpushare.cli import main
from gpushare.cli.node import demo
from gpushare.demo import story
demo._seconds, story.SETTLE_SECONDS = float, {settle}
main.entry()
"""

_spec = importlib.util.spec_from_file_location("verdict_test", Path(__file__).with_name("test_verdict.py"))
verdict_test = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verdict_test)

pytestmark = [
    pytest.mark.xdist_group("machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="containers need root"),
    pytest.mark.skipif(shutil.which("runc") is None, reason="runc is not installed"),
]


@pytest.fixture
def environment(tmp_path):
    """Everything that the demo creates is below TMPDIR, so that leftovers are distinguishable from those of other
    demos."""
    short = Path("/tmp") / f"gsd{os.getpid()}"
    short.mkdir()
    yield {**os.environ, "TMPDIR": str(short)}
    nothing_left(short)
    short.rmdir()


def short(settle: float, phase: float, *options: str) -> list[str]:
    return [sys.executable, "-c", SHORT.format(settle=settle), "demo", *options, "--phase-seconds", str(phase)]


@pytest.mark.parametrize(
    ("command", "within"),
    [
        pytest.param(short(0.3, 1.0, "--json"), 350, id="short"),
        pytest.param(
            [*DEMO, "--json", "--phase-seconds", "2"], 250, id="whole", marks=[pytest.mark.slow, pytest.mark.timing]
        ),
    ],
)
def test_demo_in_json(environment, command, within):
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    value = json.loads(result.stdout)
    jsonschema.validate(value, verdict_test.SCHEMA)
    assert result.returncode == (0 if value["verdict"] == "pass" else 1)
    assert result.stderr == ""
    assert value["kills"] == 0
    phases = {phase["name"]: phase["shares_milli"] for phase in value["phases"]}
    assert list(phases) == ["both", "owner_idle", "owner_back", "over_limit"]
    assert all(abs(phases[name]["research"] - 750) < within for name in ("both", "owner_back", "over_limit"))
    assert phases["owner_idle"]["class"] > 900 - within
    research, class_ = value["tenants"]
    assert (research["share_asked_milli"], class_["share_asked_milli"]) == (750, 250)
    assert 6 << 30 <= research["memory_peak_bytes"] <= research["memory_limit_bytes"] == 8 << 30
    assert (4 << 30) - (16 << 20) < value["oom_refused_at_bytes"] <= class_["memory_limit_bytes"] == 4 << 30
    exact = [claim for claim in value["claims"] if "%" not in claim["measured"] and "ms" not in claim["measured"]]
    assert exact and all(claim["ok"] for claim in exact), exact


def test_demo_at_a_terminal(environment):
    master, slave = pty.openpty()
    process = subprocess.Popen(short(0.1, 0.6), env=environment, stdout=slave, stderr=slave, stdin=slave)
    os.close(slave)
    text = b""
    with process:
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            text += piece
    os.close(master)
    answer = re.sub("\x1b\\[[0-9]+m", "", text.decode())  # colours
    first, second, *_ = answer.splitlines()
    assert first == "... starting a daemon of its own"
    if not Path("/dev/nvidiactl").exists():
        assert "SIMULATED" in second
    steps = [line for line in answer.splitlines() if line.startswith("... ")]
    assert steps[1:] == [
        "... starting container research",
        "... research takes 6GiB of device memory",
        "... starting container class",
        "... class takes 2GiB of device memory",
        "... taking everything away",
    ]
    assert "\x1b[2A" in answer
    for phase in ("both tenants want", "research goes idle", "research comes back", "class asks for 6GiB", "verdict"):
        assert phase in answer
    assert ("PASS: " in answer) == (process.returncode == 0)


@pytest.mark.parametrize(
    ("number", "after"), [(signal.SIGINT, "both"), (signal.SIGTERM, "both"), (signal.SIGINT, "start")]
)
def test_interrupted_demo_leaves_nothing(environment, number, after):
    process = subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, text=True)
    with process:
        if after == "both":
            while "both tenants" not in process.stdout.readline():
                assert process.poll() is None
        else:
            until(lambda: list(Path(environment["TMPDIR"]).glob("*/node/run/node.sock")), seconds=20)
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(60) == 130


def test_killed_tenant_is_notified(environment):
    """If a tenant is killed, the demo ends with one line and status 1, and does not hang."""
    process = subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        while "both tenants" not in process.stdout.readline():
            assert process.poll() is None
        bundles = list(Path(environment["TMPDIR"]).glob("*/class"))
        state = subprocess.run(
            ["runc", "--root", bundles[0].parent / "runc", "state", f"{bundles[0].parent.name}-class"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        os.kill(json.loads(state.stdout)["pid"], signal.SIGKILL)
        process.stdout.read()
        answer = process.stderr.read()
        assert process.wait(60) == 1
        assert answer.startswith("gpushare: container class ended with status") and answer.count("\n") == 1


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_demo_leaves_no_process(environment, waits):
    """The simulator, like hardware, stays for 10 s for another daemon; if `waits` is false the test ends it."""
    process = subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, text=True)
    with process:
        while "both tenants" not in process.stdout.readline():
            assert process.poll() is None
        process.kill()
    short = Path(environment["TMPDIR"])
    if not waits:
        until(lambda: all("/gpushare-sim " in line for line in processes_with(str(short)).values()), seconds=20)
        for simulator in processes_with(str(short)):
            os.kill(simulator, signal.SIGTERM)
    until(lambda: not processes_with(str(short)), "its processes end", 30)
    for left in short.iterdir():
        layout = Layout.of(left / "node")
        for grant in layout.grants.glob("g-*"):
            grantfiles.remove(layout, grant.name)
        shutil.rmtree(layout.grants, ignore_errors=True)
        shutil.rmtree(left)
    for directory, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
        if "gpushare-demo" in Path(directory).parts[-2:]:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def test_without_runc(environment):
    bare = {**environment, "PATH": "/nonexistent"}
    result = subprocess.run(DEMO, env=bare, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (1, "gpushare: runc is not installed: apt-get install runc\n")


TEAMS = """
from gpushare.cli import main
from gpushare.cli.node import demo
from gpushare.demo.teams import script, story
import gpushare.demo.main
gpushare.demo.main.ACTS = (script.QUOTA,)
demo._seconds, story.SETTLE_SECONDS = float, 0.4
main.entry()
"""


@pytest.mark.slow
def test_teams_borrow_and_give_back(environment):
    """The bounds are wide, as the measurements are short and the machine busy."""
    command = [sys.executable, "-c", TEAMS, "demo", "--scenario", "teams", "--json", "--phase-seconds", "0.4"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.stderr == ""
    value = json.loads(result.stdout)
    assert result.returncode == (0 if value["verdict"] == "pass" else 1)
    assert len(value["steps"]) == 10
    for step in value["steps"]:
        assert step["alive"] == step["processes"] == 20
        for tenant in step["tenants"]:
            over = tenant["got_milli"] - tenant["entitlement_milli"]
            # A tenant could have taken unused time, had its programs had a processor.
            assert -600 - step["idle_milli"] < over < 600, step
    assert sum(len(step["served_ms"]) for step in value["steps"]) >= 8
