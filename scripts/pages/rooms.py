"""docs/concepts/inside/rooms.md: its table of Python rooms, from what the packages and modules say of themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

from text import paragraphs, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/concepts/inside/rooms.md"
BEGIN, END = "<!-- Python rooms: written by make pages from their docstrings -->\n", "<!-- end of Python rooms -->"


def _rooms() -> Iterator[tuple[str, str]]:
    """Each package, and each module at the top, with the first paragraph of its docstring."""
    packages = [path.parent for path in sorted((ROOT / "gpushare").rglob("__init__.py"))]
    modules = [path for path in sorted((ROOT / "gpushare").glob("*.py")) if not path.name.startswith("__")]
    for path in [*packages[1:], *modules]:
        source = path / "__init__.py" if path.is_dir() else path
        described = ast.get_docstring(ast.parse(source.read_text()))
        yield f"`{path.relative_to(ROOT)}`", paragraphs(described or "")[0]


def page() -> str:
    """The page with its table as it should be. Raises ValueError where the page has no place for it."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.relative_to(ROOT)} has no lines {BEGIN.strip()!r} and {END!r}")
    return before + begin + table(("room", "one reason to exist"), _rooms()).rstrip("\n") + "\n" + end + after
