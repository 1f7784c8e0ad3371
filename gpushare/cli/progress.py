"""How far a long command is, on stderr: on a terminal one line that changes, else a line for each quarter."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Self, TextIO, TypeVar

QUIET_SECONDS = 1.0
"""No progress is shown for work that takes less."""
_REDRAW_SECONDS = 0.1
_PARTS = 4
_LINE = "\r\x1b[K"

Item = TypeVar("Item")


class Progress:
    """`what`: is done now, of our own words. `out`: None is stderr. `quiet`: seconds before anything is said."""

    def __init__(self, what: str, out: TextIO | None = None, quiet: float = QUIET_SECONDS) -> None:
        self._what, self._out = what, out or sys.stderr
        self._live = self._out.isatty()
        self._next = time.monotonic() + quiet
        self._said = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the line away."""
        if self._live and self._said >= 0:
            self._write(_LINE)

    def at(self, done: int = 0, of: int = 0) -> None:
        """So many of so many; `of` 0: nobody knows yet. Cheap enough for each of a million."""
        now = time.monotonic()
        if now < self._next:
            return
        far = f": {done} of {of} ({100 * done // of} %)" if of else ""
        if self._live:
            self._next = now + _REDRAW_SECONDS
            self._said = 0
            self._write(f"{_LINE}{self._what}{far}")
        elif (part := _PARTS * done // of if of else 0) > self._said:
            self._said = part
            self._write(f"{self._what}{far}\n")

    def over(self, items: Sequence[Item]) -> Iterator[Item]:
        """The items, each counted when it is asked for."""
        for number, item in enumerate(items):
            self.at(number, len(items))
            yield item

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
