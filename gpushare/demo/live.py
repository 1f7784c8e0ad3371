"""A table that is drawn over itself on a terminal, with a bar in each line where there is room."""

import os
import shutil
import sys
from collections.abc import Sequence

GREEN, RED = 32, 31
_COLOURS = (36, 33, 35, 34)
"""Of the lines' bars, in turn: cyan, yellow, magenta, blue."""
_BAR, _LEAST = 30, 8

Row = tuple[Sequence[str], float]
"""Its cells, and the part of the bar that is full."""


def is_live() -> bool:
    """Whether what is printed can be drawn over."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: int) -> str:
    """In a terminal that may show colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if is_live() and not os.environ.get("NO_COLOR") else text


class Table:
    """`columns`: titles and widths; numbers are to the right, the first column to the left."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self._columns = columns
        self.live = is_live()
        self._drawn = 0

    def head(self) -> None:
        """A line of titles, and no row yet."""
        self._drawn = 0
        print(self._line([title for title, _ in self._columns])[: self._room()], flush=True)

    def rows(self, rows: Sequence[Row]) -> None:
        """The lines below the titles; on a terminal in the place of those before."""
        if self.live and self._drawn:
            print(f"\x1b[{self._drawn}A", end="")
        for number, (cells, part) in enumerate(rows):
            line = self._line(cells)[: self._room()]
            if self.live:
                line += self._bar(part, len(line), _COLOURS[number % len(_COLOURS)]) + "\x1b[K"
            print(line)
        print(end="", flush=True)
        self._drawn = len(rows)

    def _room(self) -> int | None:
        """A line that is broken could not be drawn over."""
        return max(1, shutil.get_terminal_size().columns - 1) if self.live else None

    def _bar(self, part: float, after: int, colour: int) -> str:
        wide = min(_BAR, (self._room() or 0) - after - 2)
        if wide < _LEAST:
            return ""
        full = round(wide * min(1.0, max(0.0, part)))
        return f"  {painted('█' * full, colour)}{'░' * (wide - full)}"

    def _line(self, cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, (_, width)) in enumerate(zip(cells, self._columns, strict=True))
        ]
        return "  " + "".join(padded)
