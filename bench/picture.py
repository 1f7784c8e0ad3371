"""Pictures of results: rows against their targets, the error of metering, and drawing functions for other
benchmarks."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpushare.charts import WIDTH, Canvas, Frame, Scale, shortened

MARGIN = 16
GREY, GOOD, BAD = 7, 0, 1
"""Fills: no target, target met, target missed."""
PATTERNS = {
    "b2b": "back to back",
    "host": "host-bound, 20 us between launches",
    "sync": "launch and wait each",
    "mix": "nine short, one 40 times as long",
    "mixhost": "the same, with gaps",
    "two": "two streams",
    "burst": "bursts of 400, 4 ms apart",
}
"""Names of the patterns of test_metering.py."""
_MISSED = {True: "", False: ": missed"}
_GOAL_AT = 2 / 3
"""Position of the target, as a part of a bar's width."""
_TARGET = re.compile(r"(?P<which>p\d+ )?(?P<sign><=|>=) (?P<number>[\d.]+) ?(?P<unit>[%a-zA-Z/]*)")
_TIMES = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {"KiB": 1, "MiB": 1 << 10, "GiB": 1 << 20}


@dataclass(frozen=True)
class Bar:
    """`part`: length, as a part of the whole width; None: text only."""

    name: str
    said: str
    part: float | None = None
    fill: int = GREY
    bold: bool = False


def bars(canvas: Canvas, top: float, rows: Sequence[Bar], goal: float, goal_name: str, beside: float = 0) -> float:
    """Draws horizontal bars with a line at `goal`; returns the y below them. `beside`: width of the names to the left
    of their bars; 0: the names are above."""
    left, wide = MARGIN + beside, (WIDTH - 2 * MARGIN - beside) * (1 if not beside else 0.72)
    height, at = (18, 0) if beside else (36, 18)
    canvas.text(left + wide * goal, top, goal_name, "dim", "middle")
    y = top + 10
    for row in rows:
        kind = "ink b" if row.bold else "ink"
        canvas.text(MARGIN, y + 11, shortened(row.name, beside - 12 if beside else WIDTH * 0.6), kind, hint=row.name)
        if beside:
            canvas.text(left + wide + 8, y + 11, row.said, f"{kind} n")
        else:
            canvas.text(WIDTH - MARGIN, y + 11, row.said, f"{kind} n", "end")
        if row.part is not None:
            canvas.box(left, y + at + 2, max(1.0, wide * min(1.0, row.part)), 10, row.fill)
            canvas.line(left + wide * goal, y + at - 1, left + wide * goal, y + at + 15, "s-ink", 1.5)
        y += height
    return y


class Axis(Protocol):
    """Maps values to heights, and draws the lines behind."""

    def y(self, frame: Frame, value: float) -> float: ...

    def draw(self, canvas: Canvas, frame: Frame, unit: str) -> None: ...


class Logarithmic:
    """An axis from one power of ten to another."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))

    def y(self, frame: Frame, value: float) -> float:
        part = (math.log10(max(value, 10**self.low)) - self.low) / (self.high - self.low)
        return frame.bottom - part * frame.height

    def draw(self, canvas: Canvas, frame: Frame, unit: str) -> None:
        for power in range(self.low, self.high + 1):
            y = self.y(frame, 10**power)
            canvas.line(frame.left, y, frame.left + frame.width, y)
            canvas.text(frame.left - 6, y + 4, f"{10.0**power:g}{unit}", "dim n", "end")


Groups = Mapping[str, Mapping[str, float]]


def groups(canvas: Canvas, frame: Frame, axis: Axis, unit: str, found: Groups, fills: Mapping[str, int]) -> None:
    """Draws groups of vertical bars. `found`: values by group, then by a name in `fills`."""
    axis.draw(canvas, frame, unit)
    step = frame.width / len(found)
    wide = 0.8 * step / len(fills)
    for number, (label, group) in enumerate(found.items()):
        left = frame.left + number * step
        for place, (name, fill) in enumerate(fills.items()):
            if name in group:
                y = axis.y(frame, group[name])
                hint = f"{label}, {name}: {group[name]:.4g}{unit}"
                box = (left + 0.1 * step + place * wide, y, max(1.0, wide - 1), max(1.0, frame.bottom - y))
                canvas.box(*box, fill, hint)
        for line, text in enumerate(textwrap.wrap(label, max(8, int(step / 6.5)))):
            canvas.text(left + step / 2, frame.bottom + 16 + 14 * line, text, "dim", "middle")


def legend(canvas: Canvas, y: float, fills: Mapping[str, int], apart: float = 160) -> None:
    for place, (name, fill) in enumerate(fills.items()):
        x = MARGIN + place * apart
        canvas.box(x, y - 11, 14, 14, fill)
        canvas.text(x + 20, y, name)


def headline(document: Mapping[str, Any], title: str, told: str) -> Canvas:
    """A canvas with the title, and under it date, machine and command."""
    under = (
        f"simulated device, {document['date']}, {document['machine']}; {document['command']} at {document['commit']}"
    )
    canvas = Canvas(f"{title}: {under}", told)
    canvas.text(MARGIN, 26, title, "ink h")
    canvas.text(MARGIN, 46, under, "dim")
    return canvas


def _number(text: str, unit: str) -> float | None:
    """The first number of a text, converted to `unit`; None if that is impossible."""
    match = re.search(r"(?<![\w.])([-+]?\d+(?:\.\d+)?) ?([%a-zA-Z/]*)", text)
    if match is None:
        return None
    if match[2] == unit:
        return float(match[1])
    for kind in (_TIMES, _SIZES):
        if match[2] in kind and unit in kind:
            return float(match[1]) * kind[match[2]] / kind[unit]
    return None


def ratio(row: Mapping[str, Any]) -> float | None:
    """What was measured, as a multiple of the target. None if these are not comparable numbers, or if they do not
    explain the verdict."""
    target = _TARGET.search(row["target"])
    if target is None or not float(target["number"]):
        return None
    measured, which = row["measured"], target["which"] or ""
    if which not in measured:
        return None
    value, most = _number(measured[measured.index(which) :], target["unit"]), float(target["number"])
    if value is None or (value <= most if target["sign"] == "<=" else value >= most) != row["holds"]:
        return None
    return max(0.0, value / most)


def targets(document: Mapping[str, Any]) -> str:
    """The picture of a run's rows, each against its target."""
    rows = document["rows"]
    missed = sum(not row["holds"] for row in rows)
    told = [f"{row['name']}: {row['measured']}, target {row['target']}{_MISSED[row['holds']]}" for row in rows]
    canvas = headline(document, f"{len(rows)} numbers against their targets, {missed} missed", "; ".join(told))
    legend(canvas, 72, {"holds": GOOD, "missed": BAD}, 80)
    canvas.text(190, 72, "a bar that ends at the right is half as long again as its target, or longer", "dim")
    found = []
    for row in rows:
        part = ratio(row)
        said = (
            f"{row['measured'].partition(' (')[0].partition(';')[0]}   (target {row['target']}){_MISSED[row['holds']]}"
        )
        fill = GOOD if row["holds"] else BAD
        found.append(Bar(row["name"], said, None if part is None else part * _GOAL_AT, fill, not row["holds"]))
    return canvas.svg(bars(canvas, 94, found, _GOAL_AT, "target") + MARGIN)


def metering(document: Mapping[str, Any]) -> str:
    """The picture of metering, by pattern and kernel length: the error of the metered time, and the added wall time."""
    cells = document["cells"]
    told = [
        f"{PATTERNS[c['pattern']]}, {_kernels(c)}: {c['error']:+.2%} off, {c['wall_overhead']:+.2%} wall time"
        for c in cells
    ]
    canvas = headline(document, "Metered time against the simulator's books", "; ".join(told))
    fills = {name: i for i, name in enumerate(dict.fromkeys(map(_kernels, cells)))}
    legend(canvas, 72, fills, 130)
    for top, title, word in (
        (112, "How far off, either way", "error"),
        (360, "How much longer the program takes", "wall_overhead"),
    ):
        canvas.text(MARGIN, top - 12, title, "ink b")
        found: dict[str, dict[str, float]] = {}
        for c in cells:
            value = abs(c[word]) if word == "error" else max(0.0, c[word])
            found.setdefault(PATTERNS[c["pattern"]], {})[_kernels(c)] = 100 * value
        most = max(value for group in found.values() for value in group.values())
        groups(canvas, Frame(64, top, WIDTH - 80, 150), Scale.of(most), " %", found, fills)
    return canvas.svg(570)


def _kernels(cell: Mapping[str, Any]) -> str:
    return f"{cell['kernel_ns'] // 1000} us kernels"


def of(document: Mapping[str, Any]) -> str:
    """The picture of a document that record.py stores."""
    return targets(document) if "rows" in document else metering(document)
