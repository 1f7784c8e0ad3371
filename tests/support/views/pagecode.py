"""Finds code on the project's pages, and the command lines in it."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = ("*.md", "docs/**/*.md", "bench/README.md", "native/**/README.md", "packaging/**/*.md")
SHELL = ("sh", "bash", "console", "")
"""Languages of blocks with command lines. A block without a language may also show output."""

_BLOCK = re.compile(r"^( *)(`{3,})([\w+-]*)[^\n`]*\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
_PROMPT = re.compile(r"^[$#] ")
_ASSIGNMENT = re.compile(r"\w+=")
_BEFORE = {"sudo", "exec", "until", "while", "if", "then", "do", "!", "time", "$"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})


def blocks(page: Path, *kinds: str) -> list[Block]:
    """The code blocks of a page, in order. `kinds`: their languages; all if none is given."""
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    found = []
    for match in _BLOCK.finditer(text):
        if not kinds or match[3] in kinds:
            lines = [line.removeprefix(match[1]) for line in match[4].splitlines(keepends=True)]
            found.append(Block(name, text.count("\n", 0, match.start()) + 1, match[3], "".join(lines)))
    return found


def mentions(page: Path) -> Iterator[list[str]]:
    """The words after `gpushare` in a page's prose: often not a whole call."""
    for answer in re.findall(r"`(?:sudo )?gpushare ([^`\n]+)`", _BLOCK.sub("", page.read_text())):
        yield answer.split()


def _lines(block: Block) -> Iterator[str]:
    """Command lines, with continuations joined. From a console, those after a prompt."""
    here, text = "", block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if here:
            here = "" if line == here else here
            continue
        if document := re.search(r"<<-?\s*'?(\w+)'?", line):
            here = document[1]
        if block.kind in ("console", ""):
            if _PROMPT.match(line):
                yield _PROMPT.sub("", line, count=1)
            elif block.kind == "" and re.match(r"(sudo )?gpushare ", line):
                yield line
        else:
            yield line


def commands(block: Block) -> Iterator[list[str]]:
    """The words after `gpushare` in each call of it in a shell block."""
    for line in _lines(block):
        # A command substitution is itself a command, and one word of the command around it.
        inner = re.findall(r"\$\(([^()]*)\)", line)
        for part in (*inner, re.sub(r"\"?\$\([^()]*\)\"?", "SUBSTITUTED", line)):
            yield from _calls(part)


def _calls(line: str) -> Iterator[list[str]]:
    words = shlex.shlex(re.sub(r"\b[012]>", ">", line), posix=True, punctuation_chars="();<>|&")
    words.whitespace_split = True
    call: list[str] = []
    try:
        found = [*words, ";"]
    except ValueError:
        return  # a quotation that continues on the next line: a program, not a call
    for word in found:
        if set(word) <= set("();<>|&"):
            yield from _own(call)
            call = [">"] if set(word) & set("<>") else []
        else:
            call.append(word)


def _own(call: list[str]) -> Iterator[list[str]]:
    while call and (call[0] in _BEFORE or _ASSIGNMENT.match(call[0])):
        call = call[1:]
    if call and Path(call[0]).name == "gpushare":
        yield [word.strip("[]") for word in call[1:]]
