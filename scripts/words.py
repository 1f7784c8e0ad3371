"""Words of the inside, such as `lease`, are for the reference and for those who change gpushare: what the command line
says, and pages for users, do without (docs/concepts/glossary.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
INNER = re.compile(r"\b(milli|rungs?|leases?|leased|scavengers?|scavenged)\b", re.IGNORECASE)
PAGES = ("README*.md", "docs/index.md", "docs/start/*.md", "docs/guides/**/*.md")
PRODUCT = ("gpushare/**/*.py", "gpushare/dashboard/page/*.html", "gpushare/dashboard/page/*.js")
NOT_MESSAGES = (
    *("gpushare/daemon/http/metrics.py", "gpushare/daemon/http/device_metrics.py", "gpushare/daemon/http/routes.py"),
    "gpushare/adapters/",
)
"""Files whose texts are part of the reference, or are read by the clients of adapters."""
INSIDE = ("debug",)
"""Functions that print the inside."""
NAMES = {"events": ("lease",)}
"""Names of fields and kinds that the help of a verb lists."""
_QUOTED = re.compile(r'"([^"]*)"')
"""Of a script: templates are for names and numbers."""
_FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_NOT_PROSE = re.compile(r"<!--.*?-->|`[^`\n]*`|\]\([^)\s]*\)", re.DOTALL)


def on_pages() -> Iterator[str]:
    """Inner words in the prose of pages for users: not in code, nor in links' targets."""
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        blank = page.read_text()
        for pattern in (_FENCE, _NOT_PROSE):
            blank = pattern.sub(lambda match: "\n" * match[0].count("\n"), blank)
        for number, line in enumerate(blank.splitlines(), 1):
            for word in INNER.findall(line):
                yield f"{page.relative_to(ROOT)}:{number} says {word}"


def in_help(parser: Any, verb: str = "") -> Iterator[str]:
    """Inner words in the help of a verb and of those below it. `parser`: gpushare.cli.parser.Parser."""
    for word in INNER.findall(parser.format_help()):
        if word not in NAMES.get(verb, ()):
            yield f"gpushare {verb} --help says {word}"
    for name, below in parser.verbs().items():
        yield from in_help(below, f"{verb} {name}".strip())


def in_messages() -> Iterator[str]:
    """Inner words in texts of the product: strings of several words that are neither docstrings nor logged."""
    for path in sorted(path for pattern in PRODUCT for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(NOT_MESSAGES):
            continue
        lines = list(enumerate(path.read_text().splitlines(), 1))
        if path.suffix == ".js":
            found = [(number, text) for number, line in lines for text in _QUOTED.findall(line) if " " in text]
        else:
            found = list(_texts(ast.parse(path.read_text()))) if path.suffix == ".py" else lines
        for number, text in found:
            for word in INNER.findall(text):
                yield f"{name}:{number} says {word}"


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring, or the comment of a constant
    if isinstance(node, ast.FunctionDef) and node.name in INSIDE:
        return
    if isinstance(node, ast.Call) and getattr(getattr(node.func, "value", None), "id", "") == "log":
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        yield node.lineno, node.value
    for below in ast.iter_child_nodes(node):
        yield from _texts(below)


def problems() -> list[str]:
    from gpushare.cli.main import build_parser

    found = [*on_pages(), *in_help(build_parser()), *in_messages()]
    return [f"{one}: write it in words of docs/concepts/glossary.md" for one in found]
