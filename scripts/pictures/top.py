"""A picture of `gpushare top` for docs/guides/top.md, as SVG on stdout: its own simulated node, on which real processes
share two devices. Run as `.venv/bin/python scripts/pictures/top.py`."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from html import escape
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import dashboard  # which makes what tests share importable
import pyte
import pyte.graphics
from run.running import GPUSHARE, Daemon
from terminal import HEAD, HIGH, MARGIN, SIZE, WIDE, rules

COLUMNS, ROWS = 124, 20
SETTLE_SECONDS = 25
"""Long enough for histories, and for order by what grants got lately."""
KEYS_SECONDS = 6
_FAINT = 2
pyte.graphics.TEXT[_FAINT] = "+italics"  # which Textual does not use here, and pyte has no name for faint


def screen(command: Sequence[str], keys: bytes) -> pyte.Screen:
    """What a terminal shows some time after the keys were pressed."""
    shown = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(shown)
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment = {**plain, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        os.execvpe(command[0], [*command], environment)  # noqa: S606
    for seconds, pressed in ((SETTLE_SECONDS, b""), (KEYS_SECONDS, keys)):
        os.write(terminal, pressed)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                stream.feed(os.read(terminal, 65536))
    os.kill(pid, signal.SIGKILL)  # not TERM: it would clear the screen
    os.waitpid(pid, 0)
    with suppress(OSError):
        os.close(terminal)
    return shown


def _pieces(shown: pyte.Screen, row: int) -> Iterator[tuple[int, str, pyte.screens.Char]]:
    """A line as pieces of one style, and of block elements or text: few fonts have both."""
    cells = [(column, shown.buffer[row][column]) for column in range(shown.columns)]
    kind = lambda cell: (cell[1]._replace(data=""), "▀" <= cell[1].data <= "▟")  # noqa: E731
    for _, group in groupby(cells, kind):
        piece = list(group)
        yield piece[0][0], "".join(char.data for _, char in piece), piece[0][1]


def _drawn(row: int, column: int, text: str, char: pyte.screens.Char) -> str:
    x, y, wide = f"{MARGIN + column * WIDE:.1f}", HEAD + row * HIGH, f"{len(text) * WIDE:.1f}"
    back = f'<rect class="d" x="{x}" y="{y}" width="{wide}" height="{HIGH}"/>' if char.reverse else ""
    if not text.strip():
        return back
    name = "b" if char.reverse else "h" if char.italics else "d"
    look = "font-weight:bold;" * char.bold + "text-decoration:underline;" * char.underscore
    look += f"fill:#{char.fg}" * (len(char.fg) == len("rrggbb") and not char.reverse)
    style = f' style="{look}"' if look else ""
    blocks = ' lengthAdjust="spacingAndGlyphs"' if "▀" <= text[0] <= "▟" else ""
    place = f'x="{x}" y="{y + SIZE}" textLength="{wide}"{blocks}'
    return f'{back}<text class="{name}" {place}{style}>{escape(text, quote=False)}</text>'


def svg(shown: pyte.Screen, title: str) -> str:
    """The screen as SVG, light or dark as its reader's page is."""
    width, high = round(2 * MARGIN + shown.columns * WIDE), HEAD + shown.lines * HIGH + MARGIN
    lines = ["".join(_drawn(row, *piece) for piece in _pieces(shown, row)) for row in range(shown.lines)]
    words = "\n".join(line.rstrip() for line in shown.display)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{high}" viewBox="0 0 {width} {high}"'
        ' role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title, quote=False)}</title><desc id="desc">{escape(words, quote=False)}</desc>',
        f"<style>{rules()}</style>",
        f'<rect class="p" x=".5" y=".5" width="{width - 1}" height="{high - 1}" rx="8"/>',
        f'<text class="h" x="{MARGIN}" y="22">{escape(title, quote=False)}</text>',
        *lines, "</svg>",
    ]) + "\n"  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gsp-") as short, ExitStack() as stack:
        daemon = Daemon(Path(short, "d"), "2x16GiB")
        stack.callback(daemon.stop)
        daemon.start()
        dashboard.work(daemon, stack)
        # In a picture the node has a name that tells nothing of where it was made.
        named = ["unshare", "--uts", "sh", "-c", 'hostname gpu-node && exec "$@"', "sh"]
        command = [*named, *GPUSHARE, "top", "--socket", str(daemon.layout.socket)]
        shown = screen(command, b"p")
    sys.stdout.write(svg(shown, f"$ gpushare top    (simulated devices, {time.strftime('%Y-%m-%d')})"))


if __name__ == "__main__":
    main()
