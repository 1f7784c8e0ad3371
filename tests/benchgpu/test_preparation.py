"""bench/gpu on machines that lack something. A made-up nvidia-smi and the simulated driver without a simulator stand in
for a GPU: programs are built and started, and every one ends at cuInit."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from gpubench import machine

from gpushare import paths

RUN = machine.ROOT / "bench" / "gpu" / "run"
root = pytest.mark.skipif(os.geteuid() != 0, reason="bench/gpu/run needs root")
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*=name*) echo 'NVIDIA Test 1' ;;
*=compute_cap*) echo 9.0 ;;
*=memory.total*) echo 16384 ;;
*) echo 580.1 ;;
esac
"""
# Takes away all control groups, in a mount namespace of its own.
WITHOUT_CGROUPS = """
mount --make-rprivate /
for at in $(grep -E ' - cgroup2? ' /proc/self/mountinfo | cut -d' ' -f5 | tac); do umount -l "$at" || exit; done
exec "$@"
"""


def run(tmp_path, *arguments: object, smi: str = NVIDIA_SMI) -> subprocess.CompletedProcess[str]:
    """On what looks like a machine with a GPU."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(smi)
    (tools / "nvidia-smi").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR)}
    command = [sys.executable, str(RUN), "--out", str(tmp_path / "out"), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)


def only_run(directory) -> dict:
    (file,) = directory.glob("*.json")
    (found,) = json.loads(file.read_text())["runs"]
    return found


@root
def test_without_gpushare_the_experiments_still_run(tmp_path):
    """A prefix that holds no build stands for all that can keep gpushare from being built."""
    done = run(tmp_path, "--prefix", tmp_path / "nothing", "--part", "stalls,reclaim")
    assert done.returncode == 1, done.stderr[-3000:]
    found = only_run(tmp_path / "out")
    parts = {entry["part"]: entry for entry in found["parts"]}
    assert parts["reclaim"]["state"] == "not run"
    assert "holds no build of gpushare" in found["preflight"]["reason"]
    # It was built and started, and met what there is of a device.
    assert "CUDA_ERROR_NO_DEVICE" in json.dumps(parts["stalls"]["broken"] + [parts["stalls"]["reason"]])
    table = next((tmp_path / "out").glob("test-1-*.md")).read_text()
    assert table.count("holds no build of gpushare") == 1


@root
def test_a_device_that_is_not_there_is_no_self_check(tmp_path):
    done = run(tmp_path, "--part", "stalls", smi="#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert done.returncode == 2
    assert "nvidia-smi shows no GPU 0" in done.stderr
    assert not (tmp_path / "out").exists()


@root
def test_missing_packages_are_looked_for_in_wheels(tmp_path):
    done = run(tmp_path, "--wheels", tmp_path / "none", "--part", "stalls")
    assert done.returncode == 2
    assert "there are no .whl files" in done.stderr
    assert not (tmp_path / "out").exists()


@root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_control_groups_are_provided_where_none_are_mounted(tmp_path):
    command = [sys.executable, str(RUN), "--simulated", "--installed", "--out", str(tmp_path), "--part", "reclaim"]
    shell = ["unshare", "--mount", "sh", "-c", WITHOUT_CGROUPS, "sh"]
    done = subprocess.run([*shell, *command], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert only_run(tmp_path)["parts"][0]["state"] == "ok"
