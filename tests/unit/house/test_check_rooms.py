"""The refusals of scripts/check_rooms.py, with made-up graphs and trees."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from run.built import ROOT

SCRIPT = ROOT / "scripts" / "check_rooms.py"


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_rooms", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_house_is_used_downwards(rooms: ModuleType) -> None:
    may = rooms.allowed({"house": [{"ground": ["page"], "rooms": ["os", "time"]}, {"rooms": ["page"]}]})
    assert may == {"os": {"page", "os"}, "time": {"page", "os", "time"}, "page": {"page"}}


def test_a_room_stands_in_one_house(rooms: ModuleType) -> None:
    with pytest.raises(ValueError, match="two houses"):
        rooms.allowed({"house": [{"rooms": ["os"]}, {"rooms": ["os"]}]})


def test_a_file_lies_in_the_innermost_room(rooms: ModuleType) -> None:
    known = ["native/interposer", "native/interposer/os"]
    assert rooms.room_of("native/interposer/os/guest.c", known) == "native/interposer/os"
    assert rooms.room_of("native/interposers/guest.c", known) is None


def test_circles_are_found_whole(rooms: ModuleType) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert sorted(rooms.circles(graph)) == [["a", "b", "c"], ["f", "g"]]


def test_a_build_without_objects_is_no_proof(rooms: ModuleType, tmp_path: Path) -> None:
    assert rooms.problems(tmp_path) == [f"{tmp_path} has no object files of this tree: build it first"]


@pytest.fixture
def tree(rooms: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one room, native/pools, of which each file is compiled into build/."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for folder in ("scripts", "native/pools", "build/CMakeFiles/pools.dir/native/pools"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "scripts" / "rooms.toml").write_text('[[house]]\nrooms = ["native/pools"]\n')
    monkeypatch.setattr(rooms, "ROOT", tmp_path)
    return tmp_path


def compiled(tree: Path, sources: dict[str, str]) -> Path:
    for name, text in sources.items():
        (tree / "native" / "pools" / name).write_text(text)
    for source in (tree / "native" / "pools").glob("*.c"):
        made = tree / "build" / "CMakeFiles" / "pools.dir" / "native" / "pools" / f"{source.name}.o"
        subprocess.run(["gcc", "-c", "-I", tree / "native", source, "-o", made], check=True)
    return tree / "build"


CHARGE_H = """#ifndef CHARGE_H
#define CHARGE_H
enum { STEP = 4 };
#define TWICE(x) (2 * (x))
static inline int rounded(int bytes) { return bytes / STEP * STEP; }
int charge(int bytes);
#endif
"""
CHARGE_C = '#include "pools/charge.h"\n#include "pools/map.h"\nint charge(int bytes) { return place(bytes); }\n'
MAP_H = "int place(int bytes);\n"


@pytest.mark.parametrize("used", ["rounded(bytes)", "bytes + STEP", "TWICE(bytes)", "charge(bytes)"])
def test_what_a_header_defines_is_used_too(rooms: ModuleType, tree: Path, used: str) -> None:
    map_c = f'#include "pools/map.h"\n#include "pools/charge.h"\nint place(int bytes) {{ return {used}; }}\n'
    build = compiled(tree, {"charge.h": CHARGE_H, "charge.c": CHARGE_C, "map.h": MAP_H, "map.c": map_c})
    assert rooms.problems(build) == ["parts in a circle: native/pools/charge, native/pools/map"]


def test_what_is_only_declared_or_mentioned_is_not_used(rooms: ModuleType, tree: Path) -> None:
    map_c = '#include "pools/charge.h"\n/* rounded(bytes) */\nint place(int bytes) { return bytes; }\n'
    build = compiled(tree, {"charge.h": CHARGE_H, "charge.c": CHARGE_C, "map.h": MAP_H, "map.c": map_c})
    assert rooms.problems(build) == []


def test_a_folder_has_twenty_files_at_most(rooms: ModuleType, tree: Path) -> None:
    build = compiled(tree, {f"pool{number}.c": f"int pool{number};\n" for number in range(20)})
    assert rooms.problems(build) == []
    (tree / "native" / "pools" / "README.md").write_text("# Pools\n")
    assert rooms.problems(build) == ["native/pools has 21 files, 20 at most: give it rooms"]
