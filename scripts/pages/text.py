"""Markdown that GitHub and the site render alike."""

import re
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
_MARKUP = re.compile(r"[*<>\[\]\\]|(?<!\w)_|_(?!\w)")


def made_from(what: str) -> str:
    """The first line of each page: a comment that names the source to edit instead."""
    return f"<!-- Made from {what} by scripts/pages. Change it there, then run make pages. -->\n\n"


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").strip()


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with an empty line after it."""
    lines = [titles, ["---"] * len(titles), *([cell(one) for one in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of a docstring, each in one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", textwrap.dedent(docstring)) if part.strip()]


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def wrapped(text: str, indent: str = "", first: str = "") -> str:
    """A paragraph in lines of WIDTH, broken outside `code` only. `first`: how its first line begins; `indent`: how the
    others do."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ") + "\n"


def escaped(text: str) -> str:
    """The product's text for a page: markup is escaped, except in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\g<0>", part) for part in parts)
