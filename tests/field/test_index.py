"""README.md beside this file names tests for each of the 25 cases; it must not rot."""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NUMBERED = re.compile(r"^def (test_(\d\d)_\w+)\(", re.M)


def index() -> dict[int, list[str]]:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", (HERE / "README.md").read_text(), re.M)
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in rows}


def test_every_case_is_shown() -> None:
    assert sorted(index()) == list(range(1, 26))
    assert all(index().values())


def test_every_named_test_is_collected() -> None:
    named = {name for names in index().values() for name in names}
    files = sorted({name.partition("::")[0] for name in named})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stdout
    collected = {line.partition("[")[0] for line in listed.stdout.splitlines() if "::" in line}
    assert named <= collected, sorted(named - collected)


def test_every_numbered_test_is_named() -> None:
    """In its own case's row."""
    cases = index()
    for file in sorted([*HERE.glob("test_*.py"), *HERE.parent.glob("*/test_field.py")]):
        for name, number in NUMBERED.findall(file.read_text()):
            assert f"{file.relative_to(ROOT)}::{name}" in cases[int(number)]
