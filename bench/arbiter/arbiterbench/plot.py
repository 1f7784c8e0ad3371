"""The plot: share errors, request latencies, and what D costs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import picture

from arbiterbench.judge import Cases, exclusive, one
from arbiterbench.systems import SYSTEMS
from arbiterbench.workloads import MS, WORKLOADS
from gpushare.charts import WIDTH, Canvas, Frame

_FILLS = {"none": picture.GREY, "tokens": 1, "lock": 6, "slices": 3, "gpushare": 0}
_LEFT, _PANEL, _HIGH = 72, 300, 200
_TOTAL, _LATENCY = 0, 6


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


def _bars(canvas: Canvas, top: float, title: str, unit: str, found: Mapping[str, Mapping[str, float]]) -> None:
    values = [value for group in found.values() for value in group.values() if value > 0]
    canvas.text(picture.MARGIN, top + 20, title, "ink b")
    if values:
        frame = Frame(_LEFT, top + 40, WIDTH - _LEFT - picture.MARGIN, _HIGH)
        picture.groups(canvas, frame, picture.Logarithmic(values), f" {unit}", found, _FILLS)
    else:
        canvas.text(WIDTH / 2, top + _PANEL / 2, "not measured", "dim", "middle")


def _points(cases: Cases) -> list[tuple[float, float, float]]:
    """(D in ms, total against exclusive, request p99 in ms)"""
    found = []
    for workload in WORKLOADS:
        numbers = one(cases, workload.name, "gpushare")
        if workload.of_curve and numbers and numbers["latency_ms"]["p99"] is not None:
            total = numbers["busy"] / (exclusive(cases) or 1)
            found.append((workload.bound_ns / MS, total, numbers["latency_ms"]["p99"]))
    return found


def _curve(canvas: Canvas, cases: Cases, top: float) -> None:
    """Total throughput and request p99 over D."""
    title = "Bound D on work in flight: total against exclusive (left), request p99 (right)"
    canvas.text(picture.MARGIN, top + 20, title, "ink b")
    points = _points(cases)
    if len(points) < 2:
        canvas.text(WIDTH / 2, top + _PANEL / 2, "not measured", "dim", "middle")
        return
    frame = Frame(_LEFT, top + 40, WIDTH - 2 * _LEFT, _HIGH)
    ds, totals, latencies = zip(*points, strict=True)
    span = math.log10(max(ds) / min(ds))
    at = [frame.left + 20 + (frame.width - 40) * math.log10(d / min(ds)) / span for d in ds]
    floor = 1 - 0.04 * math.ceil((1 - min(totals)) / 0.04 + 0.01)  # whole percents at the lines
    most = 1.25 * max(latencies)
    for part in range(5):
        y, right = frame.bottom - frame.height * part / 4, frame.left + frame.width
        canvas.line(frame.left, y, right, y)
        canvas.text(frame.left - 6, y + 4, f"{100 * (floor + (1 - floor) * part / 4):.0f} %", f"c{_TOTAL} n", "end")
        canvas.text(right + 6, y + 4, f"{most * part / 4:.1f} ms", f"c{_LATENCY} n")
    for x, d in zip(at, ds, strict=True):
        canvas.text(x, frame.bottom + 16, f"{d:g} ms", "dim", "middle")
    for colour, parts in (
        (_TOTAL, [(total - floor) / (1 - floor) for total in totals]),
        (_LATENCY, [p99 / most for p99 in latencies]),
    ):
        canvas.curve([(x, frame.bottom - frame.height * part) for x, part in zip(at, parts, strict=True)], colour)


def svg(cases: Cases, facts: Mapping[str, Any]) -> str:
    shared = [workload.name for workload in WORKLOADS if workload.shares and not workload.systems]
    served = [workload.name for workload in WORKLOADS if workload.alone and not workload.systems]
    errors, latencies = _by_system(cases, shared, "share_error_1s"), _by_system(cases, served, "latency_ms", "p99")
    told = [
        f"{workload}: {', '.join(f'{system} {value:.3g} {unit}' for system, value in group.items())}"
        for unit, found in (("points of share error", errors), ("ms request p99", latencies))
        for workload, group in found.items()
    ]
    told += [f"D {d:g} ms: total {100 * total:.1f} %, p99 {p99:.1f} ms" for d, total, p99 in _points(cases)]
    canvas = picture.headline(facts, "Arbiters side by side", "; ".join(told))
    picture.legend(canvas, 72, {system.title: _FILLS[system.name] for system in SYSTEMS})
    _bars(canvas, 86, "Share error over 1 s, worst window", "pt", errors)
    _bars(canvas, 86 + _PANEL, "Request p99", "ms", latencies)
    _curve(canvas, cases, 86 + 2 * _PANEL)
    return canvas.svg(86 + 3 * _PANEL)
