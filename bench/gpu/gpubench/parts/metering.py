"""gpushare's busy time against CUDA events around everything the program submits, and against the calibrated work."""

import time

from gpubench.context import Context
from gpubench.stats import spread
from gpubench.worker import Unit, Worker, WorkerError, window

WORK = {
    "5 us kernels back to back": Unit(200, 5),
    "100 us kernels back to back": Unit(20, 100),
    "20 ms kernels": Unit(1, 20_000),
    "a graph of 60 kernels, 9 ms": Unit(60, 150, graph=True),
    "45 us kernels, launch-bound, 30 % fill": Unit(66, 45, gap_us=105),
    "2 ms of work, then 20 ms of nothing": Unit(20, 100, pause_ms=20),
}
TARGET_PERCENT = 1.0
_SETTLE = 2.0


def busy_ns(context: Context, worker: Worker) -> int:
    """The grant's busy time once it no longer grows."""
    before, deadline = -1, time.monotonic() + _SETTLE
    while time.monotonic() < deadline:
        now = int(context.stage.grant_of(worker)["devices"][0]["busy_ns"])
        if now == before:
            return now
        before = now
        time.sleep(0.1)
    raise WorkerError(f"busy time of an idle grant still grows after {_SETTLE} s")


def measure(context: Context) -> None:
    for name, unit in context.some(list(WORK.items()), 2):
        with context.item(name):
            _metered(context, name, unit)


def _metered(context: Context, name: str, unit: Unit) -> None:
    by_events, by_work = [], []
    with context.stage.load("gpushare", time_milli=900) as worker:
        worker.set(unit)
        window(context.seconds(0.5), worker)
        for _ in range(context.repeats(5)):
            before = busy_ns(context, worker)
            report = window(context.seconds(3), worker)[0]
            busy = busy_ns(context, worker) - before
            by_events.append(100 * (busy / report["span_ns"]["sum"] - 1))
            by_work.append(100 * (busy / report["work_ns"] - 1))
    if not unit.gap_us:
        off = spread(by_events)
        context.row(
            f"{name}: busy time against CUDA events", off, "% off", limit=TARGET_PERCENT, judged=abs(off.median)
        )
    context.row(f"{name}: busy time against the calibrated work", spread(by_work), "% off")
