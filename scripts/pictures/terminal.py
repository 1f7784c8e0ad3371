"""A program's run in a terminal as SVG: every line as text, animated as it ran, or still where motion is unwanted.

    scripts/pictures/terminal.py --title "gpushare demo" --output demo.svg -- gpushare demo

The program runs in its own terminal, which is too high to scroll; the picture shows the rows above its last line.
"""

import argparse
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

HIGHEST = 400
"""Rows of the recorded terminal."""
STILL_SECONDS = 0.03
"""After this long without output, what has been drawn is a frame."""
HOLD_SECONDS = 6.0
"""How long the last frame stays before the animation starts again."""
TIMES = 3
WIDE, HIGH, SIZE = 8.4, 18, 14
MARGIN, HEAD = 16, 34

_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_PAPER = ("#f6f8fa", "#0d1117")
_INK = {
    "d": ("#24292f", "#d6dde4"),
    "h": ("#57606a", "#8b949e"),
    "green": ("#116329", "#56d364"),
    "red": ("#a40e26", "#ff7b72"),
    "cyan": ("#1b6f8a", "#56d4dd"),
    "brown": ("#8a5a00", "#e3b341"),
    "magenta": ("#8250df", "#d2a8ff"),
    "blue": ("#0550ae", "#79c0ff"),
}

Run = tuple[int, str, str]
"""First column, text, colour."""


@dataclass
class Shown:
    """What a row showed from `begins` to `ends`, in seconds; None: to the end."""

    row: int
    runs: tuple[Run, ...]
    begins: float
    ends: float | None = None

    def text(self) -> str:
        """The row's text."""
        line = ""
        for column, text, _ in self.runs:
            line = line.ljust(column) + text
        return line


@dataclass
class Recording:
    """A recorded run. `rows`: (seconds, number of rows in use) at each change."""

    columns: int
    status: int = 0
    seconds: float = 0.0
    shown: list[Shown] = field(default_factory=list)
    rows: list[tuple[float, int]] = field(default_factory=list)

    def last(self) -> list[Shown]:
        """The last frame."""
        return sorted((one for one in self.shown if one.ends is None), key=lambda one: one.row)

    def text(self) -> str:
        """All text that was ever shown."""
        return "\n".join(one.text() for one in self.shown)


def _pieces(command: Sequence[str], columns: int, environment: dict[str, str]) -> Iterator[bytes | int]:
    """The command's output, in pieces with a pause after each; then its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", HIGHEST, columns, 0, 0))
        os.execvpe(command[0], [*command], environment)  # noqa: S606
    piece = b""
    while True:
        if piece and not select.select([terminal], [], [], STILL_SECONDS)[0]:
            yield piece
            piece = b""
        try:
            read = os.read(terminal, 65536)
        except OSError:  # the command has closed the terminal
            break
        if not read:
            break
        piece += read
    if piece:
        yield piece
    os.close(terminal)
    yield os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _runs(line: object, columns: int) -> tuple[Run, ...]:
    """Splits a line into runs of one colour and of either block elements or text: few fonts have both."""
    chars = [line[column] for column in range(columns)]  # type: ignore[index]
    found, column = [], 0
    for (colour, _), group in groupby(chars, lambda one: (one.fg, "\u2580" <= one.data <= "\u259f")):
        text = "".join(one.data for one in group)
        if text.strip():
            start = column + len(text) - len(text.lstrip())
            found.append((start, text.strip(), colour))
        column += len(text)
    return tuple(found)


def record(command: Sequence[str], columns: int = 98, environment: dict[str, str] | None = None) -> Recording:
    """Runs the command to its end. Raises RuntimeError if it writes more than HIGHEST rows."""
    screen = pyte.Screen(columns, HIGHEST)
    stream = pyte.ByteStream(screen)
    made, now = Recording(columns), {}
    # Programs would believe these two rather than the terminal's size.
    outer = {name: value for name, value in (environment or os.environ).items() if name not in ("COLUMNS", "LINES")}
    began, given = time.monotonic(), {**outer, "TERM": "xterm-256color"}
    for piece in _pieces(command, columns, given):
        made.seconds = time.monotonic() - began
        if isinstance(piece, int):
            made.status = piece
            break
        stream.feed(piece)
        for row in sorted(screen.dirty):
            runs = _runs(screen.buffer[row], columns)
            before = now.get(row)
            if before is not None and before.runs == runs:
                continue
            if before is not None:
                before.ends = made.seconds
                del now[row]
            if runs:
                now[row] = Shown(row, runs, made.seconds)
                made.shown.append(now[row])
        screen.dirty.clear()
        if screen.cursor.y >= HIGHEST - 1:
            raise RuntimeError(f"{command[0]} wrote more than {HIGHEST} rows")
        high = max(now, default=0) + 1
        if not made.rows or made.rows[-1][1] != high:
            made.rows.append((made.seconds, high))
    return made


def _rules(shade: int) -> str:
    found = [f".p{{fill:{_PAPER[shade]};stroke:{_INK['h'][shade]}}}"]
    return "".join(found + [f".{name}{{fill:{colours[shade]}}}" for name, colours in _INK.items()])


def rules() -> str:
    """The CSS rules of a still picture: its font, and the colours by name, of light and of dark pages. `b`: text on
    what is drawn in the colour of text."""
    font = f"text{{font:{SIZE}px {_FONTS};white-space:pre}}"
    light, dark = (f"{_rules(shade)}.b{{fill:{_PAPER[shade]}}}" for shade in (0, 1))
    return f"{font}{light}@media (prefers-color-scheme:dark){{{dark}}}"


class _Moves:
    """The animations, as CSS keyframes on one time line; equal ones are shared."""

    def __init__(self, whole: float, speed: float) -> None:
        self._whole, self._speed, self._names = whole, speed, dict[str, str]()

    def _at(self, seconds: float) -> str:
        return f"{100 * seconds / self._speed / self._whole:.2f}%"

    def _named(self, steps: str) -> str:
        return self._names.setdefault(steps, f"k{len(self._names)}")

    def line(self, one: Shown) -> str:
        """The CSS class of a line, which shows it while it was there."""
        begins = f"0%{{visibility:hidden}}{self._at(one.begins)}{{visibility:visible}}"
        ends = f"{self._at(one.ends)},100%{{visibility:hidden}}" if one.ends is not None else "100%{visibility:visible}"
        return self._named(begins + ends)

    def camera(self, tops: Sequence[tuple[float, int]]) -> str:
        """The CSS class of all lines, which moves them up when there is no room below."""
        steps = [f"{self._at(seconds)}{{transform:translateY({-top * HIGH}px)}}" for seconds, top in tops]
        return self._named(
            "0%{transform:none}" + "".join(steps) + f"100%{{transform:translateY({-tops[-1][1] * HIGH}px)}}"
        )

    def rules(self) -> str:
        """The CSS rules: no motion for viewers who prefer none; the animation runs TIMES times."""
        frames = "".join(f"@keyframes {name}{{{steps}}}" for steps, name in self._names.items())
        uses = "".join(f".{name}{{animation-name:{name}}}" for name in self._names.values())
        moving = f".m{{animation:{self._whole:.2f}s step-end {TIMES}}}{uses}"
        return f"{frames}@media (prefers-reduced-motion:no-preference){{{moving}}}"


def svg(made: Recording, title: str, rows: int, speed: float = 1) -> str:
    """The recording as SVG. `rows`: of the window. `speed`: how much faster than the recorded run."""
    moves = _Moves(made.seconds / speed + HOLD_SECONDS, speed)
    tops = [(seconds, max(0, high - rows)) for seconds, high in made.rows]
    width, high = round(2 * MARGIN + made.columns * WIDE), HEAD + rows * HIGH + MARGIN
    camera = moves.camera(tops) if tops and tops[-1][1] else ""
    lines = []
    for one in sorted(made.shown, key=lambda one: (one.row, one.begins)):
        gone = "" if one.ends is None else ' visibility="hidden"'
        lines.append(f'<g class="m {moves.line(one)}"{gone}>{"".join(_text(one.row, run) for run in one.runs)}</g>')
    words = "\n".join(one.text() for one in made.last()[-rows:])
    style = f"text{{font:{SIZE}px {_FONTS};white-space:pre}}"
    dark = f"@media (prefers-color-scheme:dark){{{_rules(1)}}}"
    shift = f' transform="translate(0 {-tops[-1][1] * HIGH})"' if camera else ""
    size = f'width="{width}" height="{high}" viewBox="0 0 {width} {high}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title, quote=False)}</title><desc id="desc">{escape(words, quote=False)}</desc>',
        f"<style>{style}{_rules(0)}{dark}{moves.rules()}</style>",
        f'<clipPath id="window"><rect y="{HEAD}" width="{width}" height="{high - HEAD - 2}"/></clipPath>',
        f'<rect class="p" x=".5" y=".5" width="{width - 1}" height="{high - 1}" rx="8"/>',
        f'<text class="h" x="{MARGIN}" y="22">{escape(title, quote=False)}</text>',
        f'<g clip-path="url(#window)"><g class="m {camera}"{shift}>', *lines, "</g></g>", "</svg>",
    ]) + "\n"  # fmt: skip


def _text(row: int, run: Run) -> str:
    column, text, colour = run
    kind = colour if colour in _INK else "d"
    x, y = f"{MARGIN + column * WIDE:.1f}".removesuffix(".0"), HEAD + row * HIGH + SIZE
    long = f"{len(text) * WIDE:.1f}".removesuffix(".0")
    blocks = ' lengthAdjust="spacingAndGlyphs"' if "\u2580" <= text[0] <= "\u259f" else ""
    return f'<text class="{kind}" x="{x}" y="{y}" textLength="{long}"{blocks}>{escape(text, quote=False)}</text>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--title", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=98)
    parser.add_argument("--rows", type=int, default=28, help="of the window (default 28)")
    parser.add_argument("--speed", type=float, default=1, help="how much faster than it was (default 1)")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    made = record(args.command, args.columns)
    if made.status == 0:
        args.output.write_text(svg(made, args.title, args.rows, args.speed))
    return made.status


if __name__ == "__main__":
    sys.exit(main())
