"""TOML that an administrator wrote: its values, and the line of each."""

import codecs
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.errors import UsageError

_PARSER_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_MAY_BEGIN = re.compile(r"\s*(\[|[^#\s].*=)")
"""A line that may begin a statement; the others are inside one, or between two."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's text and values from one read, so that lines belong to these values."""

    path: Path
    text: str
    values: dict[str, Any]

    def place(self, *keys: str) -> str:
        """The file and the line where the statement begins that sets the innermost of `keys` that is there, however it
        is written: as a table, inline, dotted or quoted."""
        known = next((keys[:n] for n in range(len(keys), 0, -1) if _has(self.values, keys[:n])), None)
        return f"{self.path}:{self._line(known)}" if known else str(self.path)

    def _line(self, keys: tuple[str, ...]) -> int:
        """The line of the innermost key, found by parsing prefixes of the file: the parser reports no positions."""
        lines = self.text.split("\n")
        begins = [number for number, line in enumerate(lines) if _MAY_BEGIN.match(line)]

        def before(index: int) -> dict[str, Any] | None:
            """The values set before this statement, None where the line is not the start of a statement."""
            try:
                return tomllib.loads("\n".join(lines[: begins[index]]))
            except ValueError:
                return None

        low, high = 0, len(begins)  # `keys` is not set before statement `low`, but is before `high`
        while True:
            middle = (low + high) // 2
            # Those below the middle are tried first: lines between two statements belong to the first.
            for index in (*range(middle, low, -1), *range(middle + 1, high)):
                if (values := before(index)) is not None:
                    low, high = (low, index) if _has(values, keys) else (index, high)
                    break
            else:
                return begins[low] + 1


def read(path: Path, parse_float: Callable[[str], Any] = float) -> File:
    """Reads a file. `parse_float`: as tomllib takes it. Raises FileNotFoundError, and UsageError with the file, the
    line and the reason. A pipe or a device, which may never end, is not read."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: it is not a file")
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(path, data, parse_float)


def parse(path: Path, data: bytes, parse_float: Callable[[str], Any] = float) -> File:
    """What a file says that has been read. Raises UsageError with the file, the line and the reason."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8: save it as UTF-8") from None
    try:
        return File(path, text, tomllib.loads(text, parse_float=parse_float))
    except (ValueError, RecursionError) as error:
        line, reason = _mistake(text, error)
        raise UsageError(f"{path}:{line}: {reason}") from None


def _mistake(text: str, error: Exception) -> tuple[int, str]:
    reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    place = _PARSER_PLACE.search(reason)
    if place is not None:
        return int(place[1] or text.rstrip().count("\n") + 1), _PARSER_PLACE.sub("", reason)
    lines = text.split("\n")
    return _first(len(lines), lambda number: _fails_alike("\n".join(lines[:number]), error)), reason


def _fails_alike(text: str, error: Exception) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as found:
        return type(found) is type(error) and (isinstance(found, RecursionError) or str(found) == str(error))
    return False


def _first(last: int, holds: Callable[[int], bool]) -> int:
    """The first number from 1 to `last` for which `holds` is true, as it is for all after it."""
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _has(values: object, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True
