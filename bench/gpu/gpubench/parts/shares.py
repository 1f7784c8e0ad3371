"""Two programs that always want the device. Shares are of work done, counted by the programs themselves."""

from collections.abc import Sequence

from gpubench.context import Context
from gpubench.stats import shares, spread, windows
from gpubench.worker import Json, Unit, rate, window

SPLITS = ((500, 500), (250, 750), (100, 900))
# The second program has longer kernels: it would get more by number of launches or slices.
WORK = {
    "equal kernels, 1 ms": (Unit(5, 1000), Unit(5, 1000)),
    "kernels of 0.1 ms and 10 ms": (Unit(50, 100), Unit(1, 10_000)),
}
_WHOLE_SECONDS = 24.0
TARGET_POINTS = 2.0
"""Over 10 s, in the worst window."""


def _windows(reports: Sequence[Json], units: Sequence[Unit], tenths: int) -> list[list[float]]:
    """Shares in percent in each window of so many tenths of a second; the first second is left out."""
    first = [report["first_bucket"] + (10 if tenths >= 10 else 0) for report in reports]
    counts = [report["buckets"][10 if tenths >= 10 else 0 :] for report in reports]
    return [
        shares([count * unit.work_ns for count, unit in zip(row, units, strict=True)])
        for row in windows(first, counts, tenths)
        if sum(row)
    ]


def _alone(context: Context, units: Sequence[Unit]) -> list[float]:
    rates = []
    for unit in units:
        with context.stage.load() as worker:
            worker.set(unit)
            window(context.seconds(1), worker)
            rates.append(rate(window(context.seconds(3), worker)[0]))
    return rates


def _total(reports: Sequence[Json], alone: Sequence[float]) -> float:
    return sum(100 * rate(report) / lone for report, lone in zip(reports, alone, strict=True))


def _together(context: Context, arm: str, units: Sequence[Unit], split: Sequence[int], seconds: float) -> list[Json]:
    stage = context.stage
    with stage.load(arm, time_milli=split[0]) as first, stage.load(arm, time_milli=split[1]) as second:
        first.set(units[0])
        second.set(units[1])
        return window(context.seconds(seconds), first, second)


def _split(
    context: Context,
    name: str,
    units: Sequence[Unit],
    split: Sequence[int],
    baseline: str,
    alone: Sequence[float],
) -> None:
    reports = _together(context, "gpushare", units, split, _WHOLE_SECONDS)
    target = split[0] / 10
    label = f"{name}, {split[0] // 10}/{split[1] // 10}"
    for tenths, length in ((10, "1 s"), (100, "10 s")) if not context.simulated else ((1, "0.1 s"),):
        found = _windows(reports, units, tenths)
        if not found:
            context.skip(f"{label}: no whole window of {length}")
            continue
        errors = [abs(one[0] - target) for one in found]
        got = spread([one[0] for one in found]).median
        context.row(
            f"{label}: share error over {length}",
            spread(errors),
            "points",
            against=f"first got {got:.2f} %; {baseline}",
            limit=TARGET_POINTS if tenths == 100 else None,
            judged=max(errors),
        )
    context.row(f"{label}: work of both", _total(reports, alone), "% of exclusive", against=baseline)


def measure(context: Context) -> None:
    for name, units in context.some(list(WORK.items())):
        with context.item(name):
            _work(context, name, units)


def _work(context: Context, name: str, units: Sequence[Unit]) -> None:
    alone = _alone(context, units)
    bare = _together(context, "bare", units, (500, 500), 12)
    done = shares([report["work_ns"] for report in bare])
    baseline = f"the driver's own slicing: {done[0]:.1f} : {done[1]:.1f}, {_total(bare, alone):.1f} % of exclusive"
    context.row(
        f"{name}: the driver's own time slicing, first of two", done[0], "%", against="50 % if it were fair by time"
    )
    for split in context.some(SPLITS):
        with context.item(f"{name}, {split[0] // 10}/{split[1] // 10}"):
            _split(context, name, units, split, baseline, alone)
