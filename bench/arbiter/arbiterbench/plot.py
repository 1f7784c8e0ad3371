"""The plot, written by hand as SVG: share errors, request latencies, and what D costs."""

import math
from collections.abc import Sequence
from html import escape

from arbiterbench.judge import Cases, exclusive, one
from arbiterbench.systems import SYSTEMS
from arbiterbench.workloads import MS, WORKLOADS

WIDTH, PANEL, MARGIN = 920, 300, 64
_COLOURS = {"none": "#9a9a9a", "tokens": "#c8963e", "lock": "#b0524a", "slices": "#7b6fb0", "gpushare": "#1f77b4"}
_INK = "#333"


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "middle", colour: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


def _line(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


class _Axis:
    """A logarithmic vertical axis of a panel."""

    def __init__(self, top: float, values: Sequence[float], unit: str) -> None:
        self.bottom, self.height = top + PANEL - 56, PANEL - 96
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self.unit = unit

    def y(self, value: float) -> float:
        part = (math.log10(max(value, 10**self.low)) - self.low) / (self.high - self.low)
        return self.bottom - part * self.height

    def draw(self) -> list[str]:
        found = []
        for power in range(self.low, self.high + 1):
            y = self.y(10**power)
            found.append(f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{WIDTH - 16}" y2="{y:.1f}" stroke="#ddd"/>')
            found.append(_text(MARGIN - 6, y + 4, f"{10.0**power:g} {self.unit}", 11, "end"))
        return found


def _bars(top: float, title: str, unit: str, groups: dict[str, dict[str, float]]) -> list[str]:
    """groups: label -> system -> value."""
    values = [value for group in groups.values() for value in group.values() if value > 0]
    found = [_text(MARGIN, top + 20, title, 14, "start")]
    if not values:
        return [*found, _text(WIDTH / 2, top + PANEL / 2, "not measured")]
    axis = _Axis(top, values, unit)
    found += axis.draw()
    step = (WIDTH - MARGIN - 16) / len(groups)
    for number, (label, group) in enumerate(groups.items()):
        left = MARGIN + number * step
        wide = 0.8 * step / len(SYSTEMS)
        for place, system in enumerate(SYSTEMS):
            if system.name not in group:
                continue
            y = axis.y(group[system.name])
            x = left + 0.1 * step + place * wide
            found.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{max(1.0, axis.bottom - y):.1f}" '
                f'fill="{_COLOURS[system.name]}"/>'
            )
        found.append(_text(left + step / 2, axis.bottom + 16, label))
    return found


def _legend(y: float) -> list[str]:
    found = []
    for place, system in enumerate(SYSTEMS):
        x = MARGIN + place * 160
        found.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_COLOURS[system.name]}"/>')
        found.append(_text(x + 18, y, system.title, 12, "start"))
    return found


def _by_system(cases: Cases, names: Sequence[str], word: str, part: str = "") -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for name in names:
        for system in SYSTEMS:
            numbers = one(cases, name, system.name)
            value = numbers[word] if numbers else None
            value = value[part] if part and value else value
            if value is not None:
                groups.setdefault(name, {})[system.name] = value
    return groups


def _curve(cases: Cases, top: float) -> list[str]:
    """Total throughput and request p99 over D."""
    found = [
        _text(
            MARGIN,
            top + 20,
            "Bound D on work in flight: total against exclusive (left), request p99 (right)",
            14,
            "start",
        )
    ]
    points = []
    for workload in WORKLOADS:
        numbers = one(cases, workload.name, "gpushare")
        if workload.of_curve and numbers and numbers["latency_ms"]["p99"] is not None:
            points.append(
                (workload.bound_ns / MS, numbers["busy"] / (exclusive(cases) or 1), numbers["latency_ms"]["p99"])
            )
    if len(points) < 2:
        return [*found, _text(WIDTH / 2, top + PANEL / 2, "not measured")]
    bottom, height = top + PANEL - 56, PANEL - 96
    ds = [d for d, _, _ in points]
    span = math.log10(max(ds) / min(ds))

    def x(d: float) -> float:
        return MARGIN + 20 + (WIDTH - 2 * MARGIN - 40) * math.log10(d / min(ds)) / span

    floor = 1 - 0.04 * math.ceil(
        (1 - min(total for _, total, _ in points)) / 0.04 + 0.01
    )  # whole percents at the lines
    most = 1.25 * max(p99 for _, _, p99 in points)
    for part in range(5):
        y = bottom - height * part / 4
        found.append(f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{WIDTH - MARGIN}" y2="{y:.1f}" stroke="#ddd"/>')
        found.append(_text(MARGIN - 6, y + 4, f"{100 * (floor + (1 - floor) * part / 4):.0f} %", 11, "end", "#1f77b4"))
        found.append(_text(WIDTH - MARGIN + 6, y + 4, f"{most * part / 4:.1f} ms", 11, "start", "#b0524a"))
    found += [_text(x(d), bottom + 16, f"{d:g} ms") for d in ds]
    found += _line([(x(d), bottom - height * (total - floor) / (1 - floor)) for d, total, _ in points], "#1f77b4")
    found += _line([(x(d), bottom - height * p99 / most) for d, _, p99 in points], "#b0524a")
    return found


def svg(cases: Cases, subtitle: str) -> str:
    shared = [workload.name for workload in WORKLOADS if workload.shares and not workload.systems]
    served = [workload.name for workload in WORKLOADS if workload.alone and not workload.systems]
    height = 60 + 3 * PANEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(MARGIN, 22, subtitle, 12, "start"),
        *_legend(46),
        *_bars(60, "Share error over 1 s, worst window", "pt", _by_system(cases, shared, "share_error_1s")),
        *_bars(60 + PANEL, "Request p99", "ms", _by_system(cases, served, "latency_ms", "p99")),
        *_curve(cases, 60 + 2 * PANEL),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
