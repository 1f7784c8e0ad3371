"""Progress of a long command, on stderr: on a terminal one line that is redrawn, else a line for each quarter."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Self, TextIO, TypeVar

QUIET_SECONDS = 1.0
"""Shorter work shows no progress."""
_REDRAW_SECONDS = 0.1
_PARTS = 4
_LINE = "\r\x1b[K"

Item = TypeVar("Item")


class Progress:
    """`what`: the work, named in trusted text. `out`: None is stderr. `quiet`: seconds before anything is shown."""

    def __init__(self, what: str, out: TextIO | None = None, quiet: float = QUIET_SECONDS) -> None:
        self._what, self._out = what, out or sys.stderr
        self._live = self._out.isatty()
        self._next = time.monotonic() + quiet
        self._shown = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clears the line."""
        if self._live and self._shown >= 0:
            self._write(_LINE)

    def at(self, done: int = 0, of: int = 0) -> None:
        """Shows that `done` of `of` items are done; `of` 0: total unknown. Cheap enough to call a million times."""
        now = time.monotonic()
        if now < self._next:
            return
        far = f": {done} of {of} ({100 * done // of} %)" if of else ""
        if self._live:
            self._next = now + _REDRAW_SECONDS
            self._shown = 0
            self._write(f"{_LINE}{self._what}{far}")
        elif (part := _PARTS * done // of if of else 0) > self._shown:
            self._shown = part
            self._write(f"{self._what}{far}\n")

    def over(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yields the items and counts each when it is requested."""
        for number, item in enumerate(items):
            self.at(number, len(items))
            yield item

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
