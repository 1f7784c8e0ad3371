"""A table that is redrawn in place on a terminal, with a bar in each line if there is room."""

import os
import shutil
import sys
from collections.abc import Sequence

GREEN, RED, YELLOW = 32, 31, 33
_COLOURS = (36, 33, 35, 34)
"""Colours of the bars, line by line: cyan, yellow, magenta, blue."""
_BAR, _LEAST = 30, 8

Row = tuple[Sequence[str], float]
"""Cells, and the filled fraction of the bar."""


def is_live() -> bool:
    """Whether stdout is a terminal on which lines can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: int) -> str:
    """Returns coloured text if stdout is a terminal that may show colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if is_live() and not os.environ.get("NO_COLOR") else text


class Table:
    """`columns`: titles and widths. The first column is left-aligned, the others right-aligned."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self._columns = columns
        self.live = is_live()
        self._drawn = 0

    def head(self) -> None:
        """Prints the title line of a new table."""
        self._drawn = 0
        print(self._line([title for title, _ in self._columns])[: self._room()], flush=True)

    def rows(self, rows: Sequence[Row]) -> None:
        """Prints the rows; on a terminal over the earlier ones."""
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
        """Maximum line width on a terminal: a line that wraps could not be redrawn in place. None: no limit."""
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
