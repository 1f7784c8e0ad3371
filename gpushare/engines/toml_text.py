"""Adds settings to an administrator's TOML file and removes them again, leaving every other byte unchanged.

Added lines are in blocks between two comment lines, `BEGIN` and `END`. An administrator's setting that is overridden is
kept in the block as a comment. So the file itself contains what undoing needs, whatever else changes in it.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.errors import FailedError

BEGIN = "# gpushare runtime configure: begin"
END = "# gpushare runtime configure: end"
REPLACED = "# replaced: "

Path = tuple[str, ...]
Settings = Mapping[Path, Mapping[str, Any]]
"""The keys to set in each table, by the table's path."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# Strings and comments, in which quotes, brackets and # are not syntax (longest quotes first); then brackets, newline.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]', re.DOTALL
)


def parse(text: str, name: str) -> dict[str, Any]:
    """Returns the file's value. `name`: the file's, for messages. Raises FailedError with the line of the fault."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("at end of document", f"at line {len(_lines(text))}, the end")
        raise FailedError(f"{name} is not TOML and is left alone: {reason}; mend that line") from None
    except RecursionError:
        raise FailedError(f"{name} is left alone: it is nested too deeply") from None


def deep(into: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merges `other` into `into` and returns it: tables are merged, other values replaced."""
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(into.get(key), dict)
        into[key] = deep(dict(into[key]), value) if both else value
    return into


def _lines(text: str) -> list[str]:
    """Like splitlines(keepends=True), but splits only at newlines."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _statements(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Returns (first line, line after the last, value parsed alone) of each header and key of a well-formed file."""
    found, depth, line, start = [], 0, 0, 0
    lines = _lines(text)
    for token in _TOKEN.finditer(text + "\n"):
        symbol = token[0]
        if symbol in ("[", "{"):
            depth += 1
        elif symbol in ("]", "}"):
            depth -= 1
        elif symbol == "\n":
            line += 1
            if not depth:
                value = tomllib.loads("".join(lines[start:line]))
                if value:
                    found.append((start, line, value))
                start = line
        else:
            line += symbol.count("\n")
    return found


def _chain(value: dict[str, Any]) -> tuple[Path, Any]:
    """Returns the path that a single header or key names, and the value at its end."""
    path: Path = ()
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        path += (name,)
    return path, value


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + "}"
    return str(value)  # dates have the same form in TOML and Python


def strip(text: str, name: str) -> str:
    """Returns the text without our blocks, restoring what they replaced. Raises FailedError if a block lacks an end."""
    kept: list[str] = []
    begun = 0
    unended = False
    for number, line in enumerate(_lines(text), 1):
        bare = line.strip()
        if bare in (BEGIN, END):
            if (bare == BEGIN) == bool(begun):
                raise FailedError(f"{name} is left alone: line {begun or number} has no counterpart: {bare}")
            begun = number if bare == BEGIN else 0
            unended = not line.endswith("\n")
        elif not begun:
            kept.append(line)
        elif bare.startswith(REPLACED):
            kept.append(line.lstrip(" \t").removeprefix(REPLACED))
    if begun:
        raise FailedError(f"{name} is left alone: line {begun} has no counterpart: {BEGIN}")
    if unended and kept:  # the file did not end with a newline, so the block took that newline along
        kept[-1] = kept[-1].removesuffix("\n").removesuffix("\r")
    return "".join(kept)


def at(document: Any, path: Path) -> Any:
    """Returns the document's value at the path; None if there is none."""
    for name in path:
        if not isinstance(document, dict) or name not in document:
            return None
        document = document[name]
    return document


def table(document: Any, *path: str) -> dict[str, Any]:
    """Returns the document's table at the path; empty if there is none."""
    found = at(document, path)
    return found if isinstance(found, dict) else {}


def listed(document: Any, path: Path, name: str) -> list[Any]:
    """Returns the document's list at the path; empty if there is none. `name`: the file's, for messages. Raises
    FailedError if it is something else, such as a string, whose letters would be taken for its items."""
    found = at(document, path)
    if found is not None and not isinstance(found, list):
        raise FailedError(f"{name} is left alone: {path[-1]} has to be a list: write {path[-1]} = [{_value(found)}]")
    return found or []


def _expected(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    for path, keys in settings.items():
        table = document
        for name in path:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise TypeError(name)
        table.update(keys)
    return document


def apply(text: str, settings: Settings, name: str) -> str:
    """Returns the text with these settings added; `text` has no block of ours. Raises FailedError if that would need
    rewriting what the administrator wrote."""
    document = parse(text, name)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = _lines(text)
    headers: dict[Path, int] = {}
    keys: dict[Path, tuple[int, int]] = {}
    table: Path = ()
    for first, after, value in _statements(text):
        if lines[first].lstrip().startswith("["):
            table, _ = _chain(value)
            headers[table] = after
        else:
            path, _ = _chain(value)
            keys[table + path[:1]] = (first, after)

    # By line number: lines to insert before it, and the line after those that they replace.
    blocks: dict[int, list[str]] = {}
    replaced: dict[int, int] = {}
    for path, wanted in settings.items():
        present = at(document, path)
        missing = {key: value for key, value in wanted.items() if (present or {}).get(key) != value}
        if not missing and present is not None:
            continue
        fresh = []
        for key, value in missing.items():
            if (*path, key) in keys:
                first, after = keys[(*path, key)]
                indent = re.match(r"[ \t]*", lines[first])[0]  # type: ignore[index]
                blocks[first] = [f"{indent}{_key(key)} = {_value(value)}"]
                replaced[first] = after
            else:
                fresh.append(f"{_key(key)} = {_value(value)}")
        if path in headers:
            indent = re.match(r"[ \t]*", lines[headers[path] - 1])[0]  # type: ignore[index]
            blocks.setdefault(headers[path], []).extend(indent + line for line in fresh)
        elif not path and fresh:
            blocks.setdefault(0, []).extend(fresh)
        elif fresh or not missing:
            blocks.setdefault(len(lines), []).extend([f"[{'.'.join(map(_key, path))}]", *fresh])
    result = _merge(lines, blocks, replaced, newline)
    try:
        fits = tomllib.loads(result) == _expected(document, settings)
    except (tomllib.TOMLDecodeError, TypeError):
        fits = False
    if not fits:
        tables = ", ".join(f"[{'.'.join(map(_key, path))}]" for path in settings if path)
        raise FailedError(f"{name} is left alone: it has a part of {tables} inline; write that as tables of their own")
    if strip(result, name) != text:
        raise FailedError(f"{name} is left alone: what would be added could not be taken out again")
    return result


def headers(text: str) -> set[Path]:
    """Returns the paths of the tables that a well-formed text opens by a header."""
    lines = _lines(text)
    return {_chain(value)[0] for first, _, value in _statements(text) if lines[first].lstrip().startswith("[")}


def append(text: str, settings: Settings) -> str:
    """Returns the text, which need not be TOML, with the settings in a block of ours at its end. The text must not have
    their tables."""
    newline = "\r\n" if "\r\n" in text else "\n"
    block: list[str] = []
    for path, keys in settings.items():
        block += [f"[{'.'.join(map(_key, path))}]", *(f"{_key(key)} = {_value(value)}" for key, value in keys.items())]
    old = _lines(text)
    return _merge(old, {len(old): block}, {}, newline)


def without(text: str, gone: Sequence[Path], keys: Mapping[Path, Any], name: str) -> str:
    """Returns the text without the tables `gone` and with `keys` restored to these values; None: removed. For a file
    that another program has rewritten without comments, and so without our blocks. Raises FailedError if that would
    need rewriting more."""
    expected = parse(text, name)
    for path, value in {**dict.fromkeys(gone), **keys}.items():
        _set(expected, path, value)
    lines: list[str | None] = [*_lines(text)]
    table: Path = ()
    for first, after, value in _statements(text):
        is_header = str(lines[first]).lstrip().startswith("[")
        table, path = (_chain(value)[0], ()) if is_header else (table, _chain(value)[0][:1])
        here = table + path
        if any(here[: len(one)] == one for one in gone):
            # Include the blank lines before the header.
            while is_header and first and lines[first - 1] is not None and not str(lines[first - 1]).strip():
                first -= 1
            lines[first:after] = [None] * (after - first)
        elif not is_header and here in keys:
            indent, end = re.match(r"[ \t]*", str(lines[first])), str(lines[after - 1]).partition("\n")[1]
            lines[first:after] = [None] * (after - first)
            if keys[here] is not None and indent:
                lines[first] = f"{indent[0]}{_key(here[-1])} = {_value(keys[here])}{end}"
    result = "".join(line for line in lines if line is not None)
    if _filled(parse(result, name)) != _filled(expected):
        raise FailedError(
            f"{name} is left alone: it has a part of [{'.'.join(map(_key, gone[0]))}] inline: take it out"
        )
    return result


def _set(document: Any, path: Path, value: Any) -> None:
    """Sets the value at the path if its parent table exists; None: removes it."""
    table = at(document, path[:-1])
    if isinstance(table, dict):
        table.pop(path[-1], None)
        if value is not None:
            table[path[-1]] = value


def emptied(document: Any, table: Path, keys: Mapping[Path, Any]) -> bool:
    """Whether the table exists and would be empty without those of `keys` that are removed."""
    value = at(document, table)
    return isinstance(value, dict) and all(
        emptied(document, (*table, key), keys) if isinstance(item, dict) else keys.get((*table, key), item) is None
        for key, item in value.items()
    )


def _filled(value: Any) -> Any:
    """Returns the value without empty tables."""
    if not isinstance(value, dict):
        return value
    found = {key: _filled(item) for key, item in value.items()}
    return {key: item for key, item in found.items() if item != {}}


def _merge(lines: list[str], blocks: dict[int, list[str]], replaced: dict[int, int], newline: str) -> str:
    out: list[str] = []
    number = 0
    while number <= len(lines):
        after = replaced.get(number, number)
        if added := blocks.get(number):
            old = [REPLACED + line for line in lines[number:after]]
            ends = bool(old or out) and not (old or out)[-1].endswith("\n")
            if ends and not old:
                out[-1] += newline
            body = [BEGIN + newline, *old]
            if ends and old:
                body[-1] += newline
            body += [line + newline for line in added] + [END + newline]
            if ends:
                body[-1] = END
            out += body
        if after == number:
            out += lines[number : number + 1]
            number += 1
        else:
            number = after
    return "".join(out)
