"""Adds members to an administrator's JSON file and removes them again, leaving every other byte unchanged.

JSON has no comments, so the file does not record a member's earlier value: removing a member needs the text from
before, the backup.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.errors import FailedError

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    """Offsets of one member of an object in the text: of its key, its value and the end of the value."""

    name: str
    key: int
    value: int
    end: int


def parse(text: str, name: str) -> dict[str, Any]:
    """Returns the file's object; an empty file counts as an empty object, as for engines. Raises FailedError with the
    line."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise FailedError(f"{name} is left alone: {twice!r} comes twice in one object; remove one of them")
        return found

    if not text.strip(" \t\r\n"):
        return {}
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} (at line {error.lineno}, column {error.colno})"
        raise FailedError(f"{name} is not JSON and is left alone: {reason}; mend that line") from None
    except RecursionError:
        raise FailedError(f"{name} is left alone: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise FailedError(f"{name} is left alone: line 1 does not begin an object")
    return value


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _members(text: str, start: int) -> Iterator[_Member]:
    """Yields the members of the object whose bracket is at `start`, in a well-formed text."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key = at
        name, at = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield _Member(name, key, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _find(text: str, path: Path) -> tuple[int, list[_Member], int] | None:
    """Finds the object that the path's last name is in; returns the offset of its bracket, its members, and the index
    of the one named (-1: none). None if there is no such object."""
    start = _skip(text, 0)
    while True:
        members = list(_members(text, start))
        index = next((i for i, member in enumerate(members) if member.name == path[0]), -1)
        if len(path) == 1:
            return start, members, index
        if index < 0 or text[members[index].value] != "{":
            return None
        start, path = members[index].value, path[1:]


def get(text: str, path: Path) -> str | None:
    """Returns the text of a member's value; None if there is no such member."""
    found = _find(text, path) if text.strip(" \t\r\n") else None
    if found is None or found[2] < 0:
        return None
    member = found[1][found[2]]
    return text[member.value : member.end]


def put(text: str, path: Path, value: Any, name: str) -> str:
    """Returns the text with this member added or replaced, and with missing parent objects added. Raises
    FailedError."""
    for depth in range(1, len(path)):
        if get(text, path[:depth]) is None:
            nested = value
            for key in reversed(path[depth:]):
                nested = {key: nested}
            return put(text, path[:depth], nested, name)
    found = _find(text, path)
    if found is None:
        raise FailedError(f"{name} is left alone: what {path[0]!r} is set to there is not an object")
    start, members, index = found
    if index >= 0:
        member = members[index]
        if json.loads(text[member.value : member.end]) == value:
            return text
        return text[: member.value] + json.dumps(value) + text[member.end :]
    # Formatted like the last member, with the same separator.
    if members:
        between = text[members[-2].end if len(members) > 1 else start : members[-1].key]
        lead, at, comma = between[re.match(r"\s*[,{]", between).end() :], members[-1].end, ","  # type: ignore[union-attr]
    else:
        lead, at, comma = "\n    " if len(path) == 1 else "", start + 1, ""
    body = json.dumps(value)
    if "\n" in lead:
        newline, indent = ("\r\n" if "\r\n" in text else "\n"), lead.rpartition("\n")[2]
        step = "\t" if "\t" in indent else " " * max(2, len(indent) // len(path))
        body = json.dumps(value, indent=step).replace("\n", newline + indent)
    return f"{text[:at]}{comma}{lead}{json.dumps(path[-1])}: {body}{text[at:]}"


def remove(text: str, path: Path) -> str:
    """Returns the text without this member."""
    found = _find(text, path)
    if found is None or found[2] < 0:
        return text
    start, members, index = found
    member = members[index]
    if index:
        return text[: members[index - 1].end] + text[member.end :]
    if len(members) > 1:
        return text[: member.key] + text[members[1].key :]
    return text[: start + 1] + text[member.end :]


def put_back(text: str, path: Path, before: str) -> str:
    """Returns the text with this member as it was in the text `before`, and without parent objects that were added for
    it."""
    old = get(before, path)
    found = _find(text, path)
    if found is None or found[2] < 0:
        return text
    if old is not None:
        member = found[1][found[2]]
        return text[: member.value] + old + text[member.end :]
    text = remove(text, path)
    parent = path[:-1]
    if parent and get(before, parent) is None and json.loads(get(text, parent) or "0") == {}:
        return put_back(text, parent, before)
    return text
