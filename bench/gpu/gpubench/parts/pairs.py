"""Two programs on one device under gpushare, each with half of its time, against the driver's own slicing. `decode` is
a graph of 9 ms, `eager` fills 30 % of its time, `gemm` is kernels of 20 ms, `long` a graph of 200 ms."""

import itertools
from collections.abc import Sequence

from gpubench.config import MissingError
from gpubench.context import Context
from gpubench.worker import Json, Unit, rate, window

KINDS = {
    "decode": ("stream", Unit(60, 150, graph=True)),
    "eager": ("burn", Unit(66, 45, gap_us=105)),
    "gemm": ("gemm", Unit(1, 20_000)),
    "long": ("gemm", Unit(100, 2_000, graph=True)),
}
PAIRS = tuple(itertools.combinations_with_replacement(KINDS, 2))


def _alone(context: Context, kind: str) -> float:
    """Units a second."""
    kernel, unit = KINDS[kind]
    with context.stage.load("bare", kernel) as worker:
        window(context.seconds(1), worker.set(unit))
        found = rate(window(context.seconds(5), worker)[0])
    context.row(f"{kind} alone", found, "units/s", against=f"{unit.work_ns / 1e6:.3g} ms of kernels a unit")
    return found


def summed(both: Sequence[Json], alone: Sequence[float]) -> float:
    """Percent of alone, by the time until both have ended: what the one with longer units does at the end, when it has
    the device to itself, would otherwise count as if it had done as much all the time."""
    wall = max(report["wall_ns"] for report in both)
    return sum(100 * 1e9 * report["units"] / wall / lone for report, lone in zip(both, alone, strict=True))


def _pair(context: Context, pair: tuple[str, str], alone: Sequence[float]) -> None:
    reports: dict[str, list[Json]] = {}
    (kernels, units) = zip(*(KINDS[kind] for kind in pair), strict=True)
    for arm in ("bare", "gpushare"):
        with context.stage.load(arm, kernels[0]) as first, context.stage.load(arm, kernels[1]) as second:
            reports[arm] = window(context.seconds(8), first.set(units[0]), second.set(units[1]))
    name = " + ".join(pair)
    context.compare(f"{name}: work of both", "% of alone", {arm: summed(both, alone) for arm, both in reports.items()})
    for side, kind in enumerate(pair):
        own = {arm: 100 * rate(both[side]) / alone[side] for arm, both in reports.items()}
        context.compare(f"{name}: {kind} ({'first' if side == 0 else 'second'})", "% of alone", own)


def measure(context: Context) -> None:
    pairs = context.some(PAIRS, 2)
    alone: dict[str, float] = {}
    for kind in dict.fromkeys(itertools.chain(*pairs)):
        with context.item(f"{kind} alone"):
            alone[kind] = _alone(context, kind)
    for pair in pairs:
        with context.item(" + ".join(pair)):
            if not set(pair) <= set(alone):
                raise MissingError("nothing to compare with: not measured alone")
            _pair(context, pair, [alone[kind] for kind in pair])
