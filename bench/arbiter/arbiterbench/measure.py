"""One case: a workload under a system, from start to numbers. The sources are the simulator's books, the tenants' own
clocks and, for gpushare, the arbiter's events."""

import json
import struct
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arbiterbench import load, stats
from arbiterbench.systems import Stage, System, cpu_ns
from arbiterbench.workloads import MS, Workload

EVENTS_SECONDS = 2  # the daemon's ring holds a few thousand
_END_SECONDS = 20
_STARTING = 8  # tenants at a time
# page.h
_TENANTS, _ENTRY, _HEAD = 256, 128, 64
_GO, _STOP, _NTENANTS, _SHARE = 0, 4, 12, 16

Json = dict[str, Any]


class CaseError(Exception):
    """A case that could not be measured."""


@dataclass
class Record:
    """The raw data of a case. Times are CLOCK_MONOTONIC ns."""

    start_ns: int = 0
    end_ns: int = 0
    pids: list[int] = field(default_factory=list)
    lines: list[Json] = field(default_factory=list)  # of the monitor, within the window
    tenants: list[Json] = field(default_factory=list)  # what each tenant printed
    events: list[Json] = field(default_factory=list)  # the arbiter's, within the window
    grants: list[str | None] = field(default_factory=list)
    controller: Json = field(default_factory=dict)
    controller_ns: int = 0
    load: Json = field(default_factory=dict)


class _Lines(threading.Thread):
    """Collects what a program prints."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(daemon=True)
        self._process = process
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(self._process.stdout)


def _write(page: Path, offset: int, value: int) -> None:
    with open(page, "r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<I", value))


def _make_page(stage: Stage, workload: Workload) -> None:
    stage.page.write_bytes(bytes(_HEAD + _TENANTS * _ENTRY))
    _write(stage.page, _NTENANTS, len(workload.tenants))
    for index, tenant in enumerate(workload.tenants):
        _write(stage.page, _HEAD + index * _ENTRY + _SHARE, tenant.share_milli)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def _ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line or json.loads(line).get("event") != "ready":
        raise CaseError(f"a tenant did not start: {line!r}")


class _Run:
    def __init__(self, stage: Stage, workload: Workload, seconds: float, warm: float, cleanup: ExitStack) -> None:
        self.stage, self.workload, self.seconds, self._warm = stage, workload, seconds, warm
        self.record = Record()
        self._cleanup = cleanup
        self._seen = 0

    def start(self) -> None:
        _make_page(self.stage, self.workload)
        self._tenants: list[subprocess.Popen[str]] = []
        for index, tenant in enumerate(self.workload.tenants):
            process = self.stage.start(tenant, index)
            self._cleanup.callback(_end, process)
            self._tenants.append(process)
            if len(self._tenants) > _STARTING:
                _ready(self._tenants[-1 - _STARTING])
        for process in self._tenants[-_STARTING:]:
            _ready(process)
        self.record.pids = [process.pid for process in self._tenants]
        found = self.stage.grants()
        self.record.grants = [found.get(pid) for pid in self.record.pids]
        self.stage.start_controller()
        books_ms = "100" if self.workload.devices == 1 else "250"
        command = [self.stage.programs / "monitor", self.stage.socket, self.stage.page, books_ms]
        self._monitor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._cleanup.callback(_end, self._monitor)
        self._printed = _Lines(self._monitor)
        _write(self.stage.page, _GO, 1)

    def _take_events(self) -> None:
        found, self._seen = self.stage.events(self._seen)
        self.record.events += found

    def measure(self) -> None:
        time.sleep(self._warm)
        self._take_events()
        self.record.events.clear()
        before = load.snapshot()
        deciders = {task: cpu_ns(task) for task in self.stage.deciders(self.record.pids)}
        self.record.start_ns = time.monotonic_ns()
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, EVENTS_SECONDS))
            if left > EVENTS_SECONDS:
                self._take_events()
        self.record.end_ns = time.monotonic_ns()
        self.record.controller_ns = sum(cpu_ns(task) - then for task, then in deciders.items())
        self.record.load = load.between(before, load.snapshot())
        self._take_events()

    def stop(self) -> None:
        _write(self.stage.page, _STOP, 1)
        for process in self._tenants:
            text, _ = process.communicate(timeout=_END_SECONDS)
            if process.returncode != 0:
                raise CaseError(f"a tenant ended with {process.returncode}: {text[-300:]}")
            self.record.tenants.append(json.loads(text.splitlines()[-1]))
        if answer := self.stage.controller_answer():
            self.record.controller = json.loads(answer)
        self._monitor.wait(_END_SECONDS)
        self._printed.join(_END_SECONDS)
        lines = [json.loads(line) for line in self._printed.lines]
        # One line before the window is its left edge.
        inside = [at for at, line in enumerate(lines) if self.record.start_ns <= line["t_ns"] <= self.record.end_ns]
        if len(inside) < 3:
            raise CaseError("the monitor printed too few lines")
        self.record.lines = lines[max(0, inside[0] - 1) : inside[-1] + 1]


def run(system: System, workload: Workload, seconds: float, programs: Path, warm: float) -> Record:
    """Raises CaseError, or what a program's failure raises."""
    with ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gsa-", dir="/tmp")))
        stage = cleanup.enter_context(Stage(system, workload, programs, scratch))
        case = _Run(stage, workload, seconds, warm, cleanup)
        case.start()
        case.measure()
        case.stop()
        return case.record


# Arithmetic.


def _busy(record: Record, line: Json) -> list[int]:
    """Device time of each tenant so far."""
    found: dict[int, int] = {}
    for device in line["books"]["devices"]:
        for process in device["processes"]:
            found[process["pid"]] = found.get(process["pid"], 0) + process["busy_ns"]
    return [found.get(pid, 0) for pid in record.pids]


def _devices(line: Json, word: str) -> int:
    return sum(device[word] for device in line["books"]["devices"])


def _share_errors(record: Record, workload: Workload, seconds: float) -> list[float]:
    times = [line["t_ns"] for line in record.lines]
    busy = [_busy(record, line) for line in record.lines]
    errors: list[float] = []
    for device in range(workload.devices):
        here = [at for at, tenant in enumerate(workload.tenants) if tenant.device == device]
        asked = [workload.tenants[at].share_milli for at in here]
        shares = [milli / sum(asked) for milli in asked]
        errors += stats.share_errors(times, [[row[at] for at in here] for row in busy], shares, int(seconds * 1e9))
    return errors


def _requests(record: Record, workload: Workload) -> tuple[list[int], list[int]]:
    """Latencies and how long first launches were held, of all tenants with requests, within the window."""
    latencies, held = [], []
    for tenant, printed in zip(workload.tenants, record.tenants, strict=True):
        if tenant.work.pattern != "requests":
            continue
        for due, latency, first in printed["samples"]:
            if record.start_ns <= due and due + latency <= record.end_ns:
                latencies.append(latency)
                held.append(first)
    return latencies, held


def _wakes(record: Record, workload: Workload) -> list[int]:
    """From the wake of a tenant with requests to its lease, as the arbiter recorded it."""
    waking = {grant for grant, tenant in zip(record.grants, workload.tenants, strict=True)
              if tenant.work.pattern == "requests"}  # fmt: skip
    return [event["value_ns"] for event in record.events
            if event["kind"] == "lease" and event["grant"] in waking and event["woke"]]  # fmt: skip


def _reclaims(record: Record) -> list[float]:
    """From each revoke of a tenant that still had work to the next lease."""
    if record.controller:
        return [1000 * us for us in record.controller["reclaim_us"]]
    return [event["value_ns"] for event in record.events if event["kind"] == "handover" and event["value_ns"] > 0]


def numbers(system: System, workload: Workload, record: Record) -> Json:
    """Fractions are of 1, times in ms, errors in points. What does not apply to a case is None or empty."""
    first, last = record.lines[0], record.lines[-1]
    wall = _devices(last, "wall_ns") - _devices(first, "wall_ns")
    span = (last["t_ns"] - first["t_ns"]) / 1e9
    busy = [after - before for before, after in zip(_busy(record, first), _busy(record, last), strict=True)]
    kernels = [after - before for before, after in zip(first["kernels"], last["kernels"], strict=True)]
    latencies, held = _requests(record, workload)
    errors = {seconds: _share_errors(record, workload, seconds) if workload.shares else [] for seconds in (1, 10)}
    switch = _devices(last, "switch_ns") - _devices(first, "switch_ns")
    idle_waiting = last["idle_waiting_ns"] - first["idle_waiting_ns"]
    return {
        "seconds": span,
        "busy": sum(busy) / wall,
        "switching": switch / wall,
        "tenant_busy": [one / (wall / workload.devices) for one in busy],
        "tenant_kernels_s": [one / span for one in kernels],
        "share_error_1s": max(errors[1], default=None),
        "share_error_1s_median": stats.percentile(errors[1], 0.5),
        "share_error_10s": max(errors[10], default=None),
        "idle_with_waiters": idle_waiting / 1e9 / span if workload.devices == 1 and len(busy) > 1 else None,
        "wake_to_lease_ms": stats.spread(_wakes(record, workload), MS),
        "first_launch_held_ms": stats.spread(held, MS) if system.name != "none" else stats.spread([], 1),
        "latency_ms": stats.spread(latencies, MS),
        "reclaim_ms": stats.spread(_reclaims(record), MS),
        "switches_s": (_devices(last, "switches") - _devices(first, "switches")) / span,
        "arbiter_cpu": record.controller_ns / (record.end_ns - record.start_ns),
        "load": record.load,
    }
