"""bench/gpu without a GPU: every group that can runs on the simulated device. Does not check performance."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gpubench import machine
from gpubench.groups import GROUPS, PREFLIGHT
from run.running import alive
from run.waiting import until

RUN = machine.ROOT / "bench" / "gpu" / "run"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="bench/gpu/run needs root"),
]
# Hides all control groups, in a mount namespace.
WITHOUT_CGROUPS = """
mount --make-rprivate /
for at in $(grep -E ' - cgroup2? ' /proc/self/mountinfo | cut -d' ' -f5 | tac); do umount -l "$at" || exit; done
exec "$@"
"""


def run(*arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs it in the root of the checkout, whose package must not hide the installed one."""
    command = [*prefix, sys.executable, str(RUN), "--installed", *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=machine.ROOT, env=env, capture_output=True, text=True, timeout=380, check=False)


def entries(directory: Path) -> dict[str, dict]:
    (file,) = directory.glob("*.json")
    assert file.name.startswith("simulated-")
    (found,) = json.loads(file.read_text())["runs"]
    assert found["simulated"] is True
    return {entry["group"]: entry for entry in found["groups"]}


def test_every_group_runs_on_the_simulated_device(tmp_path):
    done = run("--simulated", "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = entries(tmp_path)
    states = {name: entry["state"] for name, entry in found.items()}
    assert states == {group.name: "skipped" if group.real else "ok" for group in (PREFLIGHT, *GROUPS)}
    rows = {name: {row["name"]: row for row in entry["rows"]} for name, entry in found.items()}
    assert all(rows[group.name] for group in GROUPS if not group.real)
    # The programs measured the simulator's known values.
    assert rows["hidden"]["a bare context"]["value"] == 16
    assert rows["clients"]["kinds of clients not caught"]["value"] == 0
    assert rows["memory"]["usable under a limit of 4 GiB"]["value"] == 4096 - 16 - 2
    assert rows["memory"]["the same and 1 GiB more: NVML of the device beyond gpushare's books"]["value"] == 0
    peak = next(row for name, row in rows["memory"].items() if "fill it together" in name)
    assert 3900 < peak["value"] <= 4096 == peak["limit"]
    metered = rows["metering"]["100 us kernels back to back: busy time against the calibrated work"]
    assert abs(metered["value"]) < 25  # alongside other tests; tests/interposer/timing measures it
    table = next(tmp_path.glob("*.md")).read_text()
    assert "SIMULATED: no real GPU was measured" in table
    assert "`frameworks`: skipped: needs a real GPU" in table
    assert table.count("| --") == 0  # every row has a name


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a driver is installed: that is measured")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_without_driver_and_control_groups_it_checks_itself(tmp_path):
    done = run(
        "--out", tmp_path, "--group", "reclaim", prefix=("unshare", "--mount", "sh", "-c", WITHOUT_CGROUPS, "sh")
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.startswith("no NVIDIA driver is here")
    assert entries(tmp_path)["reclaim"]["state"] == "ok"


def test_where_nothing_can_be_shared_the_reason_is_named_once(tmp_path, monkeypatch):
    """A `gpushare run` that fails, and a compiler that fails for one program."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'run' in sys.argv[1:2] and 'true' in sys.argv: sys.exit('no control groups here')\n"
    )
    (tmp_path / "cc").write_text(
        f"#!/bin/sh\ncase $* in *stalls.c*) echo 'x.c:1: error: no such thing' >&2; exit 1;; esac\n"
        f'exec {shutil.which("cc")} "$@"\n'
    )
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = run("--simulated", "--out", tmp_path / "out", "--group", "memory,stalls")
    assert done.returncode == 1, done.stderr[-3000:]
    found = entries(tmp_path / "out")
    assert "no control groups here" in found["preflight"]["reason"]
    assert {name: entry["state"] for name, entry in found.items()} == {
        "preflight": "failed",
        "memory": "not run",
        "stalls": "incomplete",
    }
    reason = "stalls could not be built: x.c:1: error: no such thing"
    assert any(reason in skipped for skipped in found["stalls"]["skipped"])
    assert next((tmp_path / "out").glob("*.md")).read_text().count("no control groups here") == 1


def _descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _started(pid: int) -> tuple[list[int], int] | None:
    """Returns all processes that the command has started, and its load program, once they include it and a daemon."""
    pids = _descendants(pid)
    load = next((one for one in pids if "/load " in _command(one).partition("--")[0]), None)
    return (pids, load) if load is not None and any(" daemon " in _command(one) for one in pids) else None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_command(tmp_path, number):
    command = [sys.executable, str(RUN), "--simulated", "--installed", "--out", str(tmp_path), "--group", "shares"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids: list[int] = []
    work = None
    try:
        pids, load = until(lambda: _started(process.pid), seconds=60)
        work = Path(f"/proc/{load}/exe").readlink().parents[1]
        # Simulates a hung program: otherwise the group would wait for it for a minute.
        os.kill(load, signal.SIGSTOP)
        process.send_signal(number)
        until(lambda: not any(alive(pid) for pid in [process.pid, *pids]), "it and its children end", 40)
    finally:
        for pid in filter(alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    assert entries(tmp_path)["shares"]["state"] == ("running" if number == signal.SIGKILL else "interrupted")
    logs = list(tmp_path.glob("*.logs.txt"))
    assert [("==> daemon.log <==" in log.read_text()) for log in logs] == [True] * (number == signal.SIGTERM)
