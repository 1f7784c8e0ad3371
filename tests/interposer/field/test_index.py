"""README.md in this directory names the tests of each of the 25 cases. This test keeps it current."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NUMBERED = re.compile(r"^def (test_(\d\d)_\w+)\(", re.M)


def index() -> dict[int, list[str]]:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", (HERE / "README.md").read_text(), re.M)
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in rows}


def test_every_case_is_shown() -> None:
    assert sorted(index()) == list(range(1, 26))
    assert all(index().values())


def test_every_named_test_is_there() -> None:
    named = {name for names in index().values() for name in names}
    there = set()
    for file in {name.partition("::")[0] for name in named}:
        tree = ast.parse((ROOT / file).read_text())
        there |= {f"{file}::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert named <= there, sorted(named - there)


def test_every_numbered_test_is_named() -> None:
    """In the row of the test's own case."""
    cases = index()
    for file in sorted([*HERE.glob("test_*.py"), *(ROOT / "tests").glob("*/test_field.py")]):
        for name, number in NUMBERED.findall(file.read_text()):
            assert f"{file.relative_to(ROOT)}::{name}" in cases[int(number)]
