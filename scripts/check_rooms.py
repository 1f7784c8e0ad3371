"""The rooms of the C code: includes and calls have one direction (rooms.toml), and there are no cycles of calls between
files.

usage: check_rooms.py BUILD, a build of this tree. Includes are read from the sources. Calls are read from the object
files: a symbol that is undefined in one file and defined in another one of the same target. Generated sources belong to
no room.
"""

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# nm's letters: U is undefined; T, D, B, R, V, W and similar are defined. Lower case is local to the file.
UNDEFINED, DEFINED = "U", frozenset("TDBRVWCGS")

Graph = dict[str, set[str]]


def sources() -> list[str]:
    """The tracked C files of the product."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "native", "hooks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split() if name.endswith((".c", ".h", ".S")) and (ROOT / name).is_file()]


def allowed(rules: dict[str, list[dict[str, list[str]]]]) -> Graph:
    """room -> the rooms that it may use, including itself."""
    may: Graph = {}
    for house in rules["house"]:
        below = set(house.get("ground", []))
        for room in house["rooms"]:
            if room in may:
                raise ValueError(f"{room} stands in two houses")
            below = below | {room}
            may[room] = set(below)
    return may


def room_of(name: str, rooms: Iterable[str]) -> str | None:
    """The innermost room that contains a file."""
    return max((room for room in rooms if name.startswith(room + "/")), key=len, default=None)


def includes(names: list[str]) -> Graph:
    """file -> the tracked headers that it includes, relative to native/ or to its own folder."""
    known, found = set(names), {}
    for name in names:
        wanted = INCLUDE.findall((ROOT / name).read_text())
        places = [(f"native/{one}", (Path(name).parent / one).as_posix()) for one in wanted]
        found[name] = {place for pair in places for place in pair if place in known}
    return found


def objects(build: Path, known: set[str]) -> Iterator[tuple[str, list[tuple[str, Path]]]]:
    """(target, [(source, object)]) of each CMake target, without objects of deleted sources."""
    for target in sorted(build.rglob("CMakeFiles/*.dir")):
        if not target.is_dir():
            continue
        folder = target.parent.parent.relative_to(build)
        rows = []
        for path in sorted(target.rglob("*.o")):
            parts = [".." if part == "__" else part for part in path.relative_to(target).with_suffix("").parts]
            source = (ROOT / folder).joinpath(*parts).resolve()
            if source.is_relative_to(ROOT) and (name := source.relative_to(ROOT).as_posix()) in known:
                rows.append((name, path))
        if rows:
            yield target.name, rows


def symbols(paths: list[Path]) -> dict[Path, tuple[set[str], set[str]]]:
    """(needed, defined) of each object file."""
    found: dict[Path, tuple[set[str], set[str]]] = {path: (set(), set()) for path in paths}
    listed = subprocess.run(["nm", "--print-file-name", *paths], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        path, _, row = line.partition(":")
        *_, kind, name = row.split()
        needed, defined = found[Path(path)]
        if kind == UNDEFINED:
            needed.add(name)
        elif kind in DEFINED:
            defined.add(name)
    return found


def calls(build: Path, known: set[str]) -> Graph:
    """file -> the files whose functions or variables it uses."""
    found: Graph = defaultdict(set)
    for _, rows in objects(build, known):
        listed = symbols([path for _, path in rows])
        tables = {name: listed[path] for name, path in rows}
        home = {symbol: name for name, (_, defined) in tables.items() for symbol in defined}
        for name, (needed, _) in tables.items():
            found[name] |= {home[symbol] for symbol in needed if symbol in home and home[symbol] != name}
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The groups of files that reach each other (Tarjan's strongly connected components of more than one file)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in graph.get(node, ()):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def problems(build: Path) -> list[str]:
    names = sources()
    may = allowed(tomllib.loads((Path(__file__).parent / "rooms.toml").read_text()))
    said, called = includes(names), calls(build, set(names))
    if not called:
        return [f"{build} has no object files of this tree: build it first"]
    found = [f"{name} lies in no room of scripts/rooms.toml" for name in names if room_of(name, may) is None]
    for verb, graph in (("includes", said), ("uses a symbol of", called)):
        for name, others in sorted(graph.items()):
            room = room_of(name, may)
            wrong = {other: room_of(other, may) for other in sorted(others)}
            found += [
                f"{name} {verb} {other}: {room} may not use {home}"
                for other, home in wrong.items()
                if room and home and home not in may[room]
            ]
        found += [f"files in a circle ({verb}): {', '.join(group)}" for group in circles(graph)]
    return found


if __name__ == "__main__":
    messages = problems(ROOT / sys.argv[1])
    print("\n".join(messages) or "check_rooms: ok")
    sys.exit(bool(messages))
