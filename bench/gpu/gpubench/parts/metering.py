"""gpushare's busy time against CUDA events around everything the program submits, the calibrated amount of
work, and NVML's utilisation."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
_EVERY = 0.05
_BEFORE = 1.0  # NVML averages over up to a second, so its first samples are of the time before
_SETTLE = 2.0


@contextmanager
def utilisation(context: Context) -> Iterator[list[int]]:
    """Samples of NVML's utilisation in percent, taken by a thread."""
    samples: list[int] = []
    if context.simulated:
        yield samples
        return
    nvml, stop = context.stage.nvml, threading.Event()

    def sample() -> None:
        if stop.wait(_BEFORE):
            return
        while not stop.wait(_EVERY):
            samples.append(nvml.utilisation())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def busy_ns(context: Context, worker: Worker) -> int:
    """The grant's busy time once it stands still."""
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
    by_events, by_work, by_nvml = [], [], []
    with context.stage.load("gpushare", time_milli=900) as worker:
        worker.set(unit)
        window(context.seconds(0.5), worker)
        for _ in range(context.repeats(5)):
            before = busy_ns(context, worker)
            with utilisation(context) as samples:
                report = window(context.seconds(3), worker)[0]
            busy = busy_ns(context, worker) - before
            by_events.append(100 * (busy / report["span_ns"]["sum"] - 1))
            by_work.append(100 * (busy / report["work_ns"] - 1))
            by_nvml += [sum(samples) / len(samples) - 100 * busy / report["wall_ns"]] if samples else []
    if not unit.gap_us:
        off = spread(by_events)
        context.row(
            f"{name}: busy time against CUDA events", off, "% off", limit=TARGET_PERCENT, judged=abs(off.median)
        )
    context.row(f"{name}: busy time against the calibrated work", spread(by_work), "% off")
    if by_nvml:
        context.row(f"{name}: NVML's utilisation beyond busy time", spread(by_nvml), "points")
