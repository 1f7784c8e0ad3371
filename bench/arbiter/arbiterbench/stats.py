"""Plain arithmetic on samples."""

from collections.abc import Sequence


def percentile(values: Sequence[float], part: float) -> float | None:
    """The smallest value that at least `part` of all are not above."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1)]


def spread(values: Sequence[float], scale: float) -> dict[str, float | int | None]:
    """p50, p99 and the largest, divided by `scale`."""
    scaled = [value / scale for value in values]
    return {
        "p50": percentile(scaled, 0.5),
        "p99": percentile(scaled, 0.99),
        "max": max(scaled, default=None),
        "n": len(scaled),
    }


def share_errors(
    times: Sequence[int], busy: Sequence[Sequence[int]], shares: Sequence[float], window_ns: int
) -> list[float]:
    """The largest error of any tenant, in points, in each window of that length that ends at a sample. `busy`: for each
    time, the device time of each tenant so far. `shares` sum up to 1."""
    found = []
    first = 0
    for last, end in enumerate(times):
        while end - times[first] > window_ns and end - times[first + 1] >= window_ns:
            first += 1
        # Half a sample short is still that window; more is another one.
        if end - times[first] < 0.95 * window_ns:
            continue
        got = [after - before for before, after in zip(busy[first], busy[last], strict=True)]
        total = max(1, sum(got))
        found.append(max(100 * abs(one / total - share) for one, share in zip(got, shares, strict=True)))
    return found
