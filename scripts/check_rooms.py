"""The rooms of the C code: includes and uses have one direction (rooms.toml), no parts depend on each other in a
circle, and no folder has more files than one can survey.

usage: check_rooms.py BUILD, a build of this tree. Includes are read from the sources. A use is either a symbol that is
undefined in one object file and defined in another one of the same target, or a function, macro or constant that a
header defines and another file names. A part is a source with the header of its name. Generated sources belong to no
room.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# What a header defines and not only declares.
INLINE = re.compile(r"^static inline [^;{=(]*?\b(\w+)\([^;{]*\{", re.MULTILINE)
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?=\S*[ \t]+\S)", re.MULTILINE)
ENUM = re.compile(r"\benum\b[^;{()]*\{([^}]*)\}")
CONSTANT = re.compile(r"(?:^|,)\s*(\w+)")
# nm's letters: U is undefined; T, D, B, R, V, W and similar are defined. Lower case is local to the file.
UNDEFINED, DEFINED = "U", frozenset("TDBRVWCGS")

FILES_MAX = 20  # in one folder, without its subfolders

Graph = dict[str, set[str]]


def files() -> list[str]:
    """The tracked files of the C houses."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "native", "hooks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split() if (ROOT / name).is_file()]


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


def defined_in(header: str) -> set[str]:
    """The inline functions, macros and constants that a header's text (without comments) defines."""
    constants = {name for body in ENUM.findall(header) for name in CONSTANT.findall(body)}
    return {*INLINE.findall(header), *MACRO.findall(header), *constants}


def header_uses(texts: dict[str, str], included: Graph) -> Graph:
    """file -> the headers, included directly or not, of which it names something that they define."""
    defined = {name: defined_in(text) for name, text in texts.items() if name.endswith(".h")}
    found = {}
    for name, text in texts.items():
        words, reached, ahead = set(re.findall(r"\w+", text)), {name}, [name]
        while ahead:
            new = included.get(ahead.pop(), set()) - reached
            reached |= new
            ahead += new
        found[name] = {other for other in reached - {name} if words & defined.get(other, set())}
    return found


def parts(graph: Graph) -> Graph:
    """The same uses between parts: a source and the header of its name are one."""
    found: Graph = defaultdict(set)
    for name, others in graph.items():
        part = name.rsplit(".", 1)[0]
        found[part] |= {other.rsplit(".", 1)[0] for other in others} - {part}
    return found


def crowded(names: Iterable[str]) -> list[str]:
    """The folders with more than FILES_MAX files."""
    counts = Counter(name.rpartition("/")[0] for name in names)
    return [
        f"{folder} has {count} files, {FILES_MAX} at most: give it rooms"
        for folder, count in sorted(counts.items())
        if count > FILES_MAX
    ]


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
    every = files()
    names = [name for name in every if name.endswith((".c", ".h", ".S"))]
    may = allowed(tomllib.loads((ROOT / "scripts" / "rooms.toml").read_text()))
    included, called = includes(names), calls(build, set(names))
    if not called:
        return [f"{build} has no object files of this tree: build it first"]
    found = [f"{name} lies in no room of scripts/rooms.toml" for name in names if room_of(name, may) is None]
    for verb, graph in (("includes", included), ("uses a symbol of", called)):
        for name, others in sorted(graph.items()):
            room = room_of(name, may)
            wrong = {other: room_of(other, may) for other in sorted(others)}
            found += [
                f"{name} {verb} {other}: {room} may not use {home}"
                for other, home in wrong.items()
                if room and home and home not in may[room]
            ]
    found += [f"headers in a circle: {', '.join(group)}" for group in circles(included)]
    texts = {name: COMMENT_OR_STRING.sub(" ", (ROOT / name).read_text()) for name in names}
    used = header_uses(texts, included)
    for name, others in called.items():
        used[name] |= others
    found += [f"parts in a circle: {', '.join(group)}" for group in circles(parts(used))]
    return found + crowded(every)


if __name__ == "__main__":
    messages = problems(ROOT / sys.argv[1])
    print("\n".join(messages) or "check_rooms: ok")
    sys.exit(bool(messages))
