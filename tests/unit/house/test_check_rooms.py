"""The refusals of scripts/check_rooms.py, with made-up graphs."""

import importlib.util
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
