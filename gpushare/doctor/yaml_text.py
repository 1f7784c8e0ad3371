"""Reads the YAML in which programs write CDI specs: blocks of mappings, sequences and scalars, and JSON. No dependency
of the product reads YAML, and no more of it is needed."""

import json
import re
from typing import Any

# Quoted, or plain: no sign with a meaning first, and no ` #`, which begins a comment.
_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|(?:[^\s"'#&*!|>%@`{\[\]},?-]|[?-](?=\S))(?:[^#]|(?<!\s)#)*?)\s*:(?:\s+|$)"""
)
_Line = tuple[int, str]
"""Its indentation, and what follows it."""


def parse(text: str) -> Any:
    """Returns the value of a text with one document. Raises ValueError for one that uses more of YAML than said above,
    RecursionError for one that is nested too deeply."""
    lines: list[_Line] = []
    for line in text.splitlines():
        bare = line.strip(" ")
        if not bare or bare.startswith("#") or (bare == "---" and not lines):
            continue
        if "\t" in line[: len(line) - len(line.lstrip())] or bare in ("---", "..."):
            raise _unread(bare)
        lines.append((len(line) - len(line.lstrip(" ")), bare))
    value, rest = _block(lines, 0)
    if rest != len(lines):
        raise _unread(lines[rest][1])
    return value


def _block(lines: list[_Line], at: int) -> tuple[Any, int]:
    """Returns the value of the block that begins at a line, and the number of the line after it."""
    if at == len(lines):
        return None, at
    indent, text = lines[at]
    if text == "-" or text.startswith("- "):
        return _sequence(lines, at, indent)
    if _KEY.match(text):
        return _mapping(lines, at, indent)
    return _scalar(text), at + 1


def _sequence(lines: list[_Line], at: int, indent: int) -> tuple[list[Any], int]:
    found = []
    while at < len(lines) and lines[at][0] == indent and (lines[at][1] == "-" or lines[at][1].startswith("- ")):
        inner = lines[at][1][1:].lstrip(" ")
        if inner:
            # `- key: value` begins a block where its first word stands.
            lines[at] = indent + len(lines[at][1]) - len(inner), inner
            value, at = _block(lines, at)
        else:
            value, at = _block(lines, at + 1) if _is_deeper(lines, at + 1, indent) else (None, at + 1)
        found.append(value)
    return found, at


def _mapping(lines: list[_Line], at: int, indent: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == indent and (match := _KEY.match(lines[at][1])):
        key, text = str(_scalar(match[1])), lines[at][1][match.end() :]
        at += 1
        if text and not text.startswith("#"):
            found[key] = _scalar(text)
        elif _is_deeper(lines, at, indent) or (
            at < len(lines) and lines[at][0] == indent and (lines[at][1] + " ").startswith("- ")
        ):
            found[key], at = _block(lines, at)
        else:
            found[key] = None
    return found, at


def _is_deeper(lines: list[_Line], at: int, indent: int) -> bool:
    return at < len(lines) and lines[at][0] > indent


def _scalar(text: str) -> Any:
    """A string, or what JSON reads it as; other plain words (`yes`, `0o17`) stay strings."""
    if text[0] in "|>&*!%@`?":
        raise _unread(text)
    if text[0] == "'":
        if not re.fullmatch(r"'(?:[^']|'')*'(\s+#.*)?", text):
            raise _unread(text)
        return text[1 : text.rindex("'")].replace("''", "'")
    if text[0] in '"{[':
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return _words(text)
        if not re.fullmatch(r"(\s+#.*)?", text[end:]):
            raise _unread(text)
        return value
    plain = re.split(r"\s+#", text, maxsplit=1)[0].rstrip()
    if ": " in plain or plain.endswith(":"):
        raise _unread(text)
    try:
        return json.loads(plain)
    except ValueError:
        return plain


def _words(text: str) -> list[Any]:
    """`[ro, nosuid]`"""
    match = re.fullmatch(r"\[([^\[\]{}\"'#]*)\](?:\s+#.*)?", text)
    if match is None:
        raise _unread(text)
    return [_scalar(word.strip()) for word in match[1].split(",") if word.strip()]


def _unread(text: str) -> ValueError:
    return ValueError(f"not read: {text[:40]!r}")
