"""A run with --drawn plays some of the rows that are marked so: always as many, other ones each time."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from run.built import SUPPORT

ROWS, MOST = 400, 3
FILE = f"""
import pytest

@pytest.mark.drawn({MOST})
@pytest.mark.parametrize("row", range({ROWS}))
def test_of_a_product(row):
    print(f"row {{row}}.")

def test_of_its_own():
    print("row own.")
"""


def played(directory: Path, *options: str) -> list[str]:
    (directory / "test_rows.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(directory), "-q", "-rP", *options]
    plugin = ["-p", "values.drawn", "-W", "ignore::pytest.PytestUnknownMarkWarning", "test_rows.py"]
    done = subprocess.run(
        [*command, *plugin], cwd=directory, env={"PYTHONPATH": str(SUPPORT), "PATH": ""}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"^row (\w+)\.", done.stdout, re.MULTILINE))


def test_all_without_the_option(tmp_path: Path) -> None:
    assert len(played(tmp_path)) == ROWS + 1


def test_a_few_with_it_the_same_in_all_processes(tmp_path: Path) -> None:
    found = played(tmp_path, "--drawn", "-n", "2")  # pytest-xdist compares what its processes have drawn
    assert len(found) == MOST + 1 and "own" in found


@pytest.mark.parametrize("options", [["--drawn"], ["--drawn", "--draw=7"]], ids=["new", "of a seed"])
def test_other_ones_each_time_unless_a_seed_is_given(tmp_path: Path, options: list[str]) -> None:
    times = {tuple(played(tmp_path, *options)) for _ in range(2)}
    assert (len(times) == 1) == (len(options) == 2)  # of 10 million draws
