"""Medians and their spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def loss(baseline: Sequence[float], measured: Sequence[float]) -> Spread:
    """Of alternating pairs of rates: the loss in percent of the baseline."""
    return spread([100 * (1 - got / alone) for alone, got in zip(baseline, measured, strict=True)])


def shares(work: Sequence[float]) -> list[float]:
    """Percent of the sum."""
    total = sum(work)
    return [100 * one / total for one in work] if total else [0.0 for _ in work]


def windows(first: Sequence[int], buckets: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Counts per bucket of several programs, each with the number of its first bucket -> sums over windows of `size`
    buckets in which all of them ran. The first and the last bucket of each are incomplete and left out."""
    begin = max(start + 1 for start in first)
    end = min(start + len(counts) - 1 for start, counts in zip(first, buckets, strict=True))
    found = []
    for at in range(begin, end - size + 1, size):
        found.append(
            [sum(counts[at - start : at - start + size]) for start, counts in zip(first, buckets, strict=True)]
        )
    return found


def number(value: float) -> str:
    """Three significant digits; numbers of four and more digits stay whole."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
