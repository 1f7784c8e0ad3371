"""Runs libFuzzer on all code that reads untrusted bytes. Add crashing inputs to corpus/<target>."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from run import built

from gpushare import paths

HERE = Path(__file__).resolve().parent
FEW = "-runs=300"
LONG = "-max_total_time=4"
TARGETS = sorted(file.stem for file in HERE.glob("*.c"))
LONGEST = {"hook": 32768, "image": 16384, "arbiter": 16384, "gangs": 16384}  # bytes of input; 4096 for the others


def fuzz(program: Path, name: str, bound: str, directory: Path) -> int:
    """Runs the corpus, then generated inputs up to `bound`, an option of libFuzzer; returns the number of runs."""
    corpus, found = HERE / "corpus" / name, directory / "found"
    found.mkdir()
    env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "ASAN_OPTIONS": "detect_leaks=1"}
    env.pop("LD_PRELOAD", None)
    options = [bound, f"-max_len={LONGEST.get(name, 4096)}", "-timeout=10", "-rss_limit_mb=4096"]
    options += ["-print_final_stats=1", "-seed=1", f"-artifact_prefix={directory}/"]
    run = subprocess.run([program, *options, found, corpus], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{name}: {run.stderr[-6000:]}"
    [units] = re.findall(r"stat::number_of_executed_units: (\d+)", run.stderr)
    return int(units)


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes(name: str, tmp_path: Path) -> None:
    assert fuzz(built.program(f"fuzz-{name}", "fuzz"), name, FEW, tmp_path) > 10


@pytest.mark.drawn(5)
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_for_longer(name: str, tmp_path: Path) -> None:
    assert fuzz(built.program(f"fuzz-{name}", "fuzz"), name, LONG, tmp_path) > 50
