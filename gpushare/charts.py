"""Charts as SVG: self-contained documents, legible in light and dark, described for screen readers, and byte-identical
for the same numbers. Pure.

Parts differ in colour, pattern and label, so that nobody has to see colours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 920
FILLS = 8
"""Number of distinct fills. The last one is grey, for what has no name: others, or idle."""

_INK = {"ink": ("#24292f", "#e6edf3"), "dim": ("#57606a", "#9aa4af"), "grid": ("#d0d7de", "#343b44")}
_PAPER = ("#ffffff", "#0d1117")
_COLOURS = (
    ("#0072b2", "#56b4e9"),
    ("#c25500", "#e69f00"),
    ("#00805d", "#2fbf93"),
    ("#a4487f", "#dd8fbc"),
    ("#8a6d00", "#f0e442"),
    ("#4b5bc4", "#9aa5ff"),
    ("#b02a37", "#ff8579"),
    ("#6e7781", "#8b949e"),
)
"""Each fill on a light and on a dark background, with a contrast of at least 3:1."""
_PATTERNS = (
    "",
    "M-1 1L1 -1M0 6L6 0M5 7L7 5",
    "M1 1h2v2h-2zM4 4h2v2h-2z",
    "M0 3H6",
    "M-1 5L1 7M0 0L6 6M5 -1L7 1",
    "M3 0V6",
    "M0 3H6M3 0V6",
    "",
)
_SHORTENED = "\N{HORIZONTAL ELLIPSIS}"
_COLUMN_MAX = 80
_CHARACTER = 0.56
"""Average width of a character, as a fraction of the text size."""


def plain(text: str) -> str:
    """Untrusted text with each unprintable character, such as one that changes the direction of all that follows,
    replaced. XML does not allow most of these either."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def shortened(text: str, width: float, size: int = 12) -> str:
    """`plain`, cut to about `width` pixels at text size `size`."""
    most = max(1, int(width / (_CHARACTER * size)))
    known = plain(text)
    return known if len(known) <= most else known[: most - 1] + _SHORTENED


def _rules(shade: int) -> str:
    found = [f".paper{{fill:{_PAPER[shade]}}}.over{{stroke:{_PAPER[shade]}}}"]
    found += [f".{name}{{fill:{colours[shade]}}}.s-{name}{{stroke:{colours[shade]}}}" for name, colours in _INK.items()]
    found += [f".c{i}{{fill:{colours[shade]}}}.s-c{i}{{stroke:{colours[shade]}}}" for i, colours in enumerate(_COLOURS)]
    return "".join(found)


def _definitions() -> list[str]:
    style = (
        "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
        ".h{font-size:15px;font-weight:600}.b{font-weight:600}.n{font-variant-numeric:tabular-nums}path,line,polyline{fill:none}"
    )
    patterns = [
        f'<pattern id="f{i}" width="6" height="6" patternUnits="userSpaceOnUse">'
        + f'<rect class="c{i}" width="6" height="6"/>'
        + (f'<path class="over" stroke-width="1.2" d="{drawn}"/>' if drawn else "")
        + "</pattern>"
        for i, drawn in enumerate(_PATTERNS)
    ]
    dark = f"@media (prefers-color-scheme:dark){{{_rules(1)}}}"
    return [f"<style>{style}{_rules(0)}{dark}</style>", "<defs>", *patterns, "</defs>"]


class Canvas:
    """A drawing, in pixels from the top left. `title`, `description`: all that screen readers get."""

    def __init__(self, title: str, description: str, width: int = WIDTH) -> None:
        self.width = width
        self._named = [f'<title id="title">{_text(title)}</title>', f'<desc id="desc">{_text(description)}</desc>']
        self._drawn: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "ink", anchor: str = "start", hint: str = "") -> None:
        """`kind`: ink, dim, c0 ...; also h (headline), b (bold), n (figures of one width). `hint`: tooltip."""
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        more = f"<title>{_text(hint)}</title>" if hint and hint != text else ""
        self._drawn.append(f'<text x="{_n(x)}" y="{_n(y)}"{at} class="{kind}">{more}{_text(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, fill: int | None, hint: str = "") -> None:
        """`fill`: a number below FILLS; None: an empty part. `hint`: tooltip."""
        look = f'fill="url(#f{fill})"' if fill is not None else 'fill-opacity=".5" class="grid"'
        inner = f"><title>{_text(hint)}</title></rect>" if hint else "/>"
        self._drawn.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(max(0.0, height))}" {look}{inner}'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "s-grid", width: float = 1) -> None:
        """`kind`: s-ink, s-dim, s-grid, s-c0 ..."""
        thick = "" if width == 1 else f' stroke-width="{_n(width)}"'
        self._drawn.append(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{kind}"{thick}/>')

    def svg(self, height: float) -> str:
        """The document."""
        size = f'width="{self.width}" height="{_n(height)}" viewBox="0 0 {self.width} {_n(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">'
        paper = f'<rect class="paper" width="{self.width}" height="{_n(height)}"/>'
        return "\n".join([head, *self._named, *_definitions(), paper, *self._drawn, "</svg>"]) + "\n"


def _text(text: str) -> str:
    return escape(plain(text), quote=False)


def _n(value: float) -> str:
    """The number with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a chart's values are drawn, without labels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """Where a value of 0 is."""
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from 0 to `most`, with a line at each `step`."""

    most: float
    step: float

    @classmethod
    def of(cls, largest: float, lines: int = 4) -> "Scale":
        """A scale up to `largest`, with a step of 1, 2 or 5 times a power of ten, and at most `lines` steps."""
        if largest <= 0:
            return cls(1, 1)
        power = 10.0 ** math.floor(math.log10(largest / lines))
        step = next(power * one for one in (1, 2, 5, 10) if power * one * lines >= largest * (1 - 1e-9))
        return cls(step * math.ceil(largest / step - 1e-9), step)

    def y(self, frame: Frame, value: float) -> float:
        """Where a value is drawn."""
        return frame.bottom - frame.height * min(value, self.most) / self.most

    def draw(self, canvas: Canvas, frame: Frame, unit: str) -> None:
        """Draws the lines, and the value of each."""
        for i in range(round(self.most / self.step) + 1):
            y = self.y(frame, i * self.step)
            canvas.line(frame.left, y, frame.left + frame.width, y)
            canvas.text(frame.left - 6, y + 4, f"{i * self.step:g}{unit}", "dim n", "end")


@dataclass(frozen=True, slots=True)
class Column:
    """A stacked bar. `place`: its place among the columns. `parts`: (value, fill, tooltip) each, from the bottom.
    `rest`: the empty part above them, and its tooltip."""

    place: int
    parts: Sequence[tuple[float, int, str]]
    rest: tuple[float, str] = (0.0, "")

    @property
    def whole(self) -> float:
        """Its total value."""
        return sum(value for value, _, _ in self.parts) + self.rest[0]


def stacked(canvas: Canvas, frame: Frame, count: int, columns: Sequence[Column], unit: str) -> None:
    """Draws columns on a common scale in `count` places. A place without a column has no data."""
    scale = Scale.of(max((column.whole for column in columns), default=0))
    scale.draw(canvas, frame, unit)
    step = frame.width / count
    wide = min(_COLUMN_MAX, max(1.0, step - (2 if step >= 8 else 0.5)))
    for column in columns:
        x, below = frame.left + column.place * step + (step - wide) / 2, 0.0
        for value, fill, hint in column.parts:
            if value > 0:
                top = scale.y(frame, below + value)
                canvas.box(x, top, wide, scale.y(frame, below) - top, fill, hint)
                below += value
        rest, hint = column.rest
        if rest > 0:
            top = scale.y(frame, below + rest)
            canvas.box(x, top, wide, scale.y(frame, below) - top, None, hint)
            canvas.line(x, top, x + wide, top, "s-dim")
