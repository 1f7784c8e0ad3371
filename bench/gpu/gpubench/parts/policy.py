"""Experiment A: how two programs should share a device. No interposer: a gate inside the programs (native/gate.h)."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpubench.config import MissingError
from gpubench.context import Context
from gpubench.worker import Json, Unit, Worker, rate, window

POLICIES = ("free", "drain", "overlap", "together")


@dataclass(frozen=True)
class Kind:
    name: str
    kernel: str
    unit: Unit


KINDS = (
    Kind("decode", "stream", Unit(60, 150, graph=True)),
    Kind("eager", "burn", Unit(66, 45, gap_us=105)),
    Kind("gemm", "gemm", Unit(1, 20_000)),
    Kind("long", "gemm", Unit(100, 2_000, graph=True)),
)
WAKE = Unit(20, 100, graph=True, pause_ms=30, wake=True)
PAIRS = tuple(itertools.combinations_with_replacement(KINDS, 2))


@contextmanager
def token(context: Context, page: Path, policy: str) -> Iterator[None]:
    with context.stage.start("bare", [context.stage.program("token"), str(page), policy]):
        yield


def _page(context: Context, name: str) -> Path:
    path = context.stage.work / f"gate-{name}"
    path.unlink(missing_ok=True)
    return path


def _alone(context: Context, kinds: Sequence[Kind]) -> dict[str, tuple[float, float]]:
    """Units a second and the median event span of each kind by itself."""
    found: dict[str, tuple[float, float]] = {}
    for kind in kinds:
        with context.item(f"{kind.name} alone"):
            found[kind.name] = _lone(context, kind)
    return found


def _lone(context: Context, kind: Kind) -> tuple[float, float]:
    page = _page(context, kind.name)
    with context.stage.load("bare", kind.kernel, gate=(page, 0)) as worker, token(context, page, "free"):
        worker.set(kind.unit)
        window(context.seconds(1), worker)
        report = window(context.seconds(5), worker)[0]
    context.row(
        f"{kind.name} alone",
        rate(report),
        "units/s",
        against=f"asked for {kind.unit.work_ns / 1e6:.3g} ms of device time a unit",
    )
    return rate(report), report["span_ns"]["p50"]


def _summed(both: Sequence[Json], alone: Sequence[float]) -> float:
    """Percent of alone, by the time until both have ended: what the one with longer units does at the end, when it has
    the device to itself, would else count as if it had done as much all the time."""
    wall = max(report["wall_ns"] for report in both)
    return sum(100 * 1e9 * report["units"] / wall / rate for report, rate in zip(both, alone, strict=True))


def _pair(context: Context, first: Kind, second: Kind, alone: dict[str, tuple[float, float]]) -> None:
    page = _page(context, f"{first.name}-{second.name}")
    reports: dict[str, list[Json]] = {}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(context.stage.load("bare", kind.kernel, gate=(page, side)))
            for side, kind in enumerate((first, second))
        ]
        for worker, kind in zip(workers, (first, second), strict=True):
            worker.set(kind.unit)
        for policy in POLICIES:
            with token(context, page, policy):
                reports[policy] = window(context.seconds(8), *workers)
    name = f"{first.name} + {second.name}"
    kinds = (first, second)
    part = {
        policy: [100 * rate(report) / alone[kind.name][0] for report, kind in zip(both, kinds, strict=True)]
        for policy, both in reports.items()
    }
    sums = {policy: _summed(both, [alone[kind.name][0] for kind in kinds]) for policy, both in reports.items()}
    context.compare(f"{name}: throughput of both, summed", "% of alone", sums)
    for side, kind in enumerate(kinds):
        label = f"{name}: {kind.name}{'' if first is not second else f' #{side + 1}'}"
        context.compare(f"{label} throughput", "% of alone", {key: both[side] for key, both in part.items()})
        inflation = {
            policy: both[side]["span_ns"]["p50"] / alone[kind.name][1]
            for policy, both in reports.items()
            if both[side]["span_ns"]
        }
        context.compare(f"{label} event spans", "times alone (median)", inflation)


def _wake(context: Context, busy: Kind) -> None:
    """How long a program that has slept waits for its first kernel beside a busy one."""
    page = _page(context, f"wake-{busy.name}")
    reports: dict[str, Json] = {}
    with ExitStack() as stack:
        worker = stack.enter_context(context.stage.load("bare", busy.kernel, gate=(page, 0)))
        waker: Worker = stack.enter_context(context.stage.load("bare", "burn", gate=(page, 1)))
        worker.set(busy.unit)
        waker.set(WAKE)
        with token(context, page, "free"):
            reports["alone"] = window(context.seconds(3), waker)[0]
        for policy in POLICIES:
            with token(context, page, policy):
                reports[policy] = window(context.seconds(10), worker, waker)[1]
    for quantile in ("p50", "p99"):
        values = {name: report["wake_ns"][quantile] / 1e6 for name, report in reports.items() if report["wake_ns"]}
        alone = values.pop("alone")
        context.compare(
            f"wake to the end of the first kernel beside {busy.name}, {quantile}",
            "ms",
            values,
            against=f"alone {alone:.3g} ms",
        )


def _half(context: Context, pairs: Sequence[tuple[Kind, Kind]], wakes: Sequence[Kind]) -> None:
    pairs, wakes = context.some(pairs), context.some(wakes)
    alone = _alone(context, list(dict.fromkeys(kind for pair in pairs for kind in pair)))
    for first, second in pairs:
        with context.item(f"{first.name} + {second.name}"):
            if first.name not in alone or second.name not in alone:
                raise MissingError("nothing to compare with: not measured alone")
            _pair(context, first, second, alone)
    for kind in wakes:
        with context.item(f"wake beside {kind.name}"):
            _wake(context, kind)


def first(context: Context) -> None:
    _half(context, PAIRS[:5], KINDS[:2])


def second(context: Context) -> None:
    _half(context, PAIRS[5:], KINDS[2:])
