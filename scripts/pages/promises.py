"""docs/security/promises.md: each promise, what holds it, and the tests that are marked with its name."""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from text import made_from, table

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docs/security/promises.toml"
MARK = "promise"
HEAD = """# Promises

What gpushare promises, what holds it, and the tests that fail if it is broken. The tests name the
promise themselves (`@pytest.mark.promise("NAME")`), and a promise that no test names fails
`make check`. What is not held: [limits](limits.md).

"""


def marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(promise, test) of each mark in a file of tests. `pytestmark`, for all of the file, gives an empty test."""
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            for promise in _named(decorator):
                yield promise, node.name  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            for mark in node.value.elts if isinstance(node.value, ast.List) else [node.value]:
                for promise in _named(mark):
                    yield promise, ""


def _named(mark: ast.expr) -> list[str]:
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == f"pytest.mark.{MARK}":
        return [ast.literal_eval(argument) for argument in mark.args]
    return []


def shown_by() -> dict[str, list[str]]:
    """The marked tests of each promise, each as `file:function`, or `file` for all of it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if f"pytest.mark.{MARK}(" in text:
            for promise, test in marks(ast.parse(text)):
                found[promise].append(f"`{path.relative_to(ROOT)}{':' if test else ''}{test}`")
    return found


def page() -> str:
    """The whole page. Raises ValueError for a promise without a test, and for a mark that names none."""
    sections = tomllib.loads(SOURCE.read_text())["section"]
    tests = shown_by()
    names = [name for section in sections for name in section["promises"]]
    if lost := [name for name in names if name not in tests]:
        raise ValueError(f"{SOURCE.relative_to(ROOT)}: no test is marked with {', '.join(lost)}")
    if unknown := sorted(set(tests) - set(names)):
        raise ValueError(f"{SOURCE.relative_to(ROOT)} has no promise {', '.join(unknown)}, which tests are marked with")
    text = made_from("docs/security/promises.toml and the marks of the tests") + HEAD
    for section in sections:
        rows = [(one["text"], one["by"], "<br>".join(tests[name])) for name, one in section["promises"].items()]
        text += f"## {section['title']}\n\n" + table(("promise", "held by", "shown by"), rows)
    return text.rstrip("\n") + "\n"
