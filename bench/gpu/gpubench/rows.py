"""The newest good rows of a result, by part and by what their names say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


class MissingRowError(Exception):
    """What is not measured, and by which parts it would be."""

    def __init__(self, what: str, parts: Sequence[str] = ()) -> None:
        names = ", ".join(f"`{part}`" for part in parts)
        super().__init__(f"{what} ({'parts' if len(parts) > 1 else 'part'} {names})" if parts else what)


class Rows:
    def __init__(self, parts: Mapping[str, Sequence[Row]]) -> None:
        self._parts = parts

    def find(self, parts: Sequence[str], pattern: str, what: str) -> list[tuple[re.Match[str], Row]]:
        """All whose whole name matches; `what` is said where there is none."""
        found = [
            (match, row)
            for part in parts
            for row in self._parts.get(part, ())
            if (match := re.fullmatch(pattern, row["name"]))
        ]
        if not found:
            raise MissingRowError(what, parts)
        return found

    def one(self, parts: Sequence[str], name: str, what: str) -> Row:
        return self.find(parts, re.escape(name), what)[0][1]


def value_of(row: Row, key: str) -> float:
    """A number that stands behind the row's own. Rows of older programs may lack it."""
    if key not in row["values"]:
        raise MissingRowError(f'`{key}` of "{row["name"]}"')
    return float(row["values"][key])
