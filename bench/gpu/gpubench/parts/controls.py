"""The end of part 8: what one process can do to the channel groups of another, through that one's own open file
(programs/controls.py). Both are the benchmark's; everything is put back."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpubench.context import Context
from gpubench.stats import Spread, shares
from gpubench.worker import Json, Unit, Worker, window

DEVICE = "/dev/nvidiactl"
BUSY = Unit(20, 50, depth=4)
REPEATS = 30
_BUCKET_NS = 100_000_000  # of native/load.c
_LEAST_SECONDS = 0.4  # of a phase: some whole buckets
_STUCK_SECONDS = 15.0  # a program whose channels stay disabled does not answer
_TIMESLICES = (0.1, 10)  # times the driver's own
_LEAST_US = 50


def _said(status: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({times} times)" if times > 1 else name for name, times in status.items()) or "not called"


def _fine(status: Mapping[str, int]) -> bool:
    return set(status) == {"NV_OK"}


def _spread_us(nanoseconds: Iterable[int]) -> Spread:
    ordered = sorted(nanoseconds)
    return Spread(ordered[len(ordered) // 2] / 1e3, ordered[0] / 1e3, ordered[-1] / 1e3, len(ordered))


def _put_back(context: Context, controls: Worker) -> None:
    controls.send("undo")
    while (answer := controls.read(_STUCK_SECONDS))["event"] != "undo":
        continue  # of a command that nobody waited for
    for control, status in answer["status"].items():
        if not _fine(status):
            context.row(f"putting back what was changed: {control}", None, text=_said(status))


@contextmanager
def _undone(context: Context, controls: Worker) -> Iterator[None]:
    """Not where the part is being ended: then there may be no time to wait, and the program undoes it at its end."""
    try:
        yield
    except Exception:
        _put_back(context, controls)
        raise
    _put_back(context, controls)


def _start(context: Context, log: Path) -> Worker:
    stage = context.stage
    return stage.load(environment={"LD_PRELOAD": stage.program("iolog.so"), "IOLOG": str(log)})


def measure(context: Context) -> None:
    stage = context.stage
    first_log, second_log = (stage.work / f"iolog-controls-{side}" for side in ("first", "second"))
    with (
        _start(context, first_log) as first,
        _start(context, second_log) as second,
        stage.start("bare", stage.python("controls.py", DEVICE)) as controls,
    ):
        window(context.seconds(0.5), first.set(BUSY), second.set(BUSY))
        found = controls.ask(f"groups {first.pid} {first_log}")
        other = controls.ask(f"groups {second.pid} {second_log}")
        if not found["made"]:
            context.skip("no program was seen to make a channel group: controls on them are not tried")
            return
        context.row(
            "channel groups of a process that compute, reached by another",
            found["groups"],
            against=f"groups of all engines: {found['made']}; channels in those that compute: {found['channels']}; "
            f"asked for the timeslice by another process: {_said(found['status'])}",
        )
        if not (found["groups"] and other["groups"]):
            context.skip("no channel group of another process could be reached: controls on them are not tried")
            return
        _measure(context, controls, first, second, found)


def _measure(context: Context, controls: Worker, first: Worker, second: Worker, found: Json) -> None:
    with context.item("a control through a foreign file"):
        said = _said(controls.ask(f"foreign {first.pid}")["status"])
        context.row("the same through a file that the other opened itself", None, text=said)
    borrowed: list[int] = list(found["borrow_ns"])
    for control in ("timeslice", "schedule", "preempt"):
        with context.item(f"latency of {control}"), _undone(context, controls):
            borrowed += _latency(context, controls, first, control)
    context.row("taking a file of another process (pidfd_getfd)", _spread_us(borrowed), "us")
    with context.item("the effect of GPFIFO_SCHEDULE"), _undone(context, controls):
        _stopped(context, controls, first, "GPFIFO_SCHEDULE", f"schedule {first.pid}", 1.5)
    with context.item("the effect of SET_TIMESLICE"), _undone(context, controls):
        _split(context, controls, first, second, found["timeslice_us"][0])
    with context.item("FIFO_DISABLE_CHANNELS by another client"), _undone(context, controls):
        name = "FIFO_DISABLE_CHANNELS by another client"
        _stopped(context, controls, first, name, f"channels {first.pid} {second.pid}", _LEAST_SECONDS)


def _units_a_second(report: Json, begin_ns: int, end_ns: int) -> float:
    """In the buckets that lie wholly between two points of time."""
    begin = math.ceil(begin_ns / _BUCKET_NS) - report["first_bucket"]
    counts: list[int] = report["buckets"][max(0, begin) : max(0, end_ns // _BUCKET_NS - report["first_bucket"])]
    if not counts:
        raise ValueError("no whole tenth of a second lies in what was to be counted")
    return 1e9 * sum(counts) / (len(counts) * _BUCKET_NS)


def _latency(context: Context, controls: Worker, busy: Worker, control: str) -> list[int]:
    """What taking the file took, each time."""
    count = REPEATS // 2 if context.simulated else REPEATS
    began = int(busy.ask("run")["t_ns"])
    time.sleep(_LEAST_SECONDS)
    first_ns = time.monotonic_ns()
    samples = controls.ask(f"repeat {control} {busy.pid} {count}")["samples"]
    last_ns = time.monotonic_ns()
    busy.send("idle")
    report = busy.read(_STUCK_SECONDS)
    kept = 100 * _units_a_second(report, first_ns, last_ns) / _units_a_second(report, began, first_ns)
    borrowed: list[int] = []
    for name, one in samples.items():
        borrowed += one["borrow_ns"]
        said = _said(one["status"])
        if _fine(one["status"]):
            against = f"{said}; its work in this time {kept:.3g} % of before"
            context.row(f"{name} on a busy process", _spread_us(one["call_ns"]), "us", against=against)
        else:
            context.row(f"{name} on a busy process", None, text=said)
    return borrowed


def _stopped(context: Context, controls: Worker, busy: Worker, name: str, command: str, seconds: float) -> None:
    """Units done before, while and after `command` 0 and 1."""
    seconds = max(_LEAST_SECONDS, context.seconds(seconds))
    began = int(busy.ask("run")["t_ns"])
    time.sleep(seconds)
    stop = controls.ask(f"{command} 0")
    fine = _fine(stop["status"])
    if fine:
        time.sleep(seconds)
    back = controls.ask(f"{command} 1") if fine else stop
    time.sleep(seconds)
    ended = time.monotonic_ns()
    busy.send("idle")
    report = busy.read(_STUCK_SECONDS)
    if not fine:
        context.row(f"{name}, off", None, text=_said(stop["status"]))
        return
    before = _units_a_second(report, began, stop["before_ns"])
    during = _units_a_second(report, stop["after_ns"], back["before_ns"])
    after = _units_a_second(report, back["after_ns"], ended)
    context.row(
        f"work of a busy process behind {name}, off",
        100 * during / before,
        "%",
        against=f"of what it did before; on again ({_said(back['status'])}): {100 * after / before:.3g} %",
    )


def _split(context: Context, controls: Worker, first: Worker, second: Worker, usual_us: int) -> None:
    def row(name: str) -> None:
        reports = window(context.seconds(2), first, second)
        share = shares([report["units"] for report in reports])[0]
        context.row(f"share of the first of two busy processes, {name}", share, "%", against="of the work of both")

    row(f"both with the driver's timeslice of {usual_us} us")
    for factor in _TIMESLICES:
        us = max(_LEAST_US, int(usual_us * factor))
        status = controls.ask(f"timeslice {first.pid} {us}")["status"]
        if not _fine(status):
            context.row(f"SET_TIMESLICE to {us} us", None, text=_said(status))
            return
        row(f"its timeslice {us} us")
    controls.ask("undo")
    row("its timeslice put back")
