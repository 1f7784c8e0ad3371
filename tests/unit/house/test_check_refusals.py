"""The refusals of scripts/check.py, with made-up names."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_crowded_room_is_refused(check: ModuleType) -> None:
    full = [Path(f"gpushare/room/m{number}.py") for number in range(check.FILES_MAX)]
    besides = [Path("gpushare/room/__init__.py"), Path("gpushare/room/inner/m.py")]
    assert check.crowded([*full, *besides]) == []
    [one] = check.crowded([*full, *besides, Path("gpushare/room/page.html")])
    assert one.startswith(f"gpushare/room has {check.FILES_MAX + 1} files")


def test_each_tree_that_is_capped_is_here(check: ModuleType) -> None:
    assert all(any((SCRIPT.parents[1] / tree).iterdir()) for tree in check.CAPPED)


@pytest.mark.parametrize(
    ("line", "is_foreign"),
    [
        ("pip install NAME", True),
        ("python3 -m pip --quiet install --upgrade 'NAME'", True),
        ("# pip3 install msgspec NAME==0.1.0", True),
        ("install NAME[kubernetes]", True),
        ("pip install 'gpushare-node[kubernetes]'", False),
        ("pip install dist/gpushare_node-*.whl && sudo gpushare install", False),
        ("/opt/gpushare/bin/pip uninstall gpushare", False),
    ],
)
def test_nobody_is_told_to_fetch_somebody_elses_package(check: ModuleType, line: str, is_foreign: bool) -> None:
    assert bool(check.FETCHED.search(line.replace("NAME", "gpushare"))) is is_foreign
