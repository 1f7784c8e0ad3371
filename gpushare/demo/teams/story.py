"""Plays the script with real processes on simulated devices, and measures usage by the simulator's books."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from gpushare.demo import machine
from gpushare.demo.interrupts import uninterrupted
from gpushare.demo.node import Node
from gpushare.demo.program import Program
from gpushare.demo.teams.script import Act, Step, Team
from gpushare.errors import FailedError
from gpushare.paths import LIB_DIR
from gpushare.text.units import format_time

KERNEL_NS = 500_000
MEMORY = "512MiB"
SETTLE_SECONDS = 1.0  # excluded after each change: the guarantee is a share over whole seconds
DEVICE_MILLI = 1000
TICK_SECONDS = 0.5
REPORT_SECONDS = 1.0
AT_ONCE = 4
"""Processes that start together: with more, on a small machine, grants expire before they are bound."""
DEVICE_SECONDS = 10.0
"""Maximum time until the daemon notices that a device has failed or is back."""


_Books = tuple[int, dict[int, int]]
"""Wall time, and busy time by pid."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements of a step. `got`: milli of a device by team. `idle`: milli of the act's devices that nobody used.
    `served_ms`: how long each process that is guaranteed a whole device and began to work in this step waited for it.
    `alive`: how many of the act's `processes` still run. `tries`: how often the step was measured; all but the last one
    did not count. `others`: the part of the processors that other programs had in the last one, 0 to 1;
    `others_at_wake`: in the first second, to which `served_ms` belongs."""

    act: Act
    step: Step
    got: Mapping[str, int]
    idle: int
    served_ms: tuple[float, ...]
    alive: int
    processes: int
    tries: int = 1
    others: float = 0.0
    others_at_wake: float = 0.0


@dataclass(slots=True)
class _Worker:
    """One process of a team."""

    team: Team
    number: int
    program: Program
    pid: int = 0
    works: bool = False

    @property
    def device(self) -> int:
        """The device's index."""
        return self.team.grants[self.number][0]

    @property
    def milli(self) -> int:
        """The time that it asked for; 0: it only borrows."""
        return self.team.grants[self.number][1]


class View(Protocol):
    """Is notified of each step: when it begins, about twice a second of each team's usage since the last time, of a
    measurement that does not count, since other programs had that part of the processors, and of its outcome."""

    def began(self, step: Step) -> None: ...  # noqa: D102

    def watched(self, act: Act, step: Step, got: Mapping[str, int]) -> None: ...  # noqa: D102

    def again(self, others: float) -> None: ...  # noqa: D102

    def ended(self, found: Outcome) -> None: ...  # noqa: D102


class Story:
    """`say`: called with progress between the steps. `view`: None: nothing is shown."""

    def __init__(self, node: Node, where: Path, seconds: float, say: Callable[[str], None], view: View | None) -> None:
        self._node, self._where, self._seconds, self._say, self._view = node, where, seconds, say, view
        self._workers: list[_Worker] = []
        self._tenants: list[str] = []

    def play(self, acts: tuple[Act, ...]) -> list[Outcome]:
        """Plays all steps and returns their outcomes. Always ends its processes. Raises GpushareError."""
        outcomes = []
        try:
            for act in acts:
                self._begin(act)
                for step in act.steps:
                    outcome = self._play(act, step)
                    if self._view is not None:
                        self._view.ended(outcome)
                    outcomes.append(outcome)
                self._end()
        finally:
            self._end()
        return outcomes

    def _begin(self, act: Act) -> None:
        count = sum(len(team.grants) for team in act.teams)
        self._say(f"{len(act.teams)} tenants with {count} processes start")
        for name in self._tenants:
            self._node.client.remove_tenant(name)
        self._tenants = [team.name for team in act.teams]
        for team in act.teams:
            self._node.client.set_tenant(team.name, team.policy)
            for number in range(len(team.grants)):
                name = f"{team.name}-{number}"
                worker = _Worker(team, number, Program(name, self._where / f"{name}.err"))
                self._workers.append(worker)
        self._start_workers()

    def _start_workers(self) -> None:
        """Starts the processes, reporting progress."""
        count, reported_at = len(self._workers), time.monotonic()
        for first in range(0, count, AT_ONCE):
            if time.monotonic() > reported_at + REPORT_SECONDS:
                self._say(f"{first} of {count} have their devices")
                reported_at = time.monotonic()
            some = self._workers[first : first + AT_ONCE]
            for worker in some:
                worker.program.begin(self._command(worker))
            for worker in some:
                worker.pid = worker.program.ready()["pid"]

    def _command(self, worker: _Worker) -> list[str]:
        share = ["--memory", MEMORY, "--time", format_time(worker.milli), "--gpu", str(worker.device)]
        gpushare = [sys.executable, "-P", "-m", "gpushare", "run", "--socket", str(self._node.socket)]
        return [*gpushare, "--tenant", worker.team.name, *share, "--", str(LIB_DIR / "gpushare-spin")]

    @uninterrupted()
    def _end(self) -> None:
        for worker in self._workers:
            worker.program.leave()
        with contextlib.ExitStack() as each:  # even if an earlier one failed
            for worker in self._workers:
                each.callback(worker.program.end)
        ended = bool(self._workers)
        self._workers = []
        if ended:
            self._node.wait_released([grant["id"] for grant in self._node.client.grants()])

    def _play(self, act: Act, step: Step) -> Outcome:
        if self._view is not None:
            self._view.began(step)
        seen = self._node.client.call("GET", "/v1/events?limit=1")["newest"]
        began = self._usage()
        woken = self._set(step)
        with self._lost(step.lost):
            for tries in range(1, machine.TRIES + 1):
                before = self._pass(act, step, SETTLE_SECONDS)
                settled = self._usage()
                if tries == 1:
                    at_wake = machine.others(began, settled)
                after = self._pass(act, step, self._seconds)
                others = machine.others(settled, self._usage())
                # Whatever was measured: a result must not choose whether it counts.
                if others <= machine.BUSY:
                    break
                if self._view is not None and tries < machine.TRIES:
                    self._view.again(others)
        return Outcome(
            act=act,
            step=step,
            got=(got := self._got(act, before, after)),
            idle=max(0, 1000 * act.devices - sum(got.values())),
            served_ms=self._served(seen, woken),
            alive=sum(worker.program.running() for worker in self._workers),
            processes=len(self._workers),
            tries=tries,
            others=others,
            others_at_wake=at_wake,
        )

    def _usage(self) -> machine.Usage:
        """The processor time of the demo, its processes and the simulator, which outlives the daemon that starts it."""
        return machine.usage(filter(None, (os.getpid(), self._node.simulator_pid)))

    def _pass(self, act: Act, step: Step, seconds: float) -> _Books:
        """Waits, updating the view meanwhile; returns the books at the end."""
        end, last = time.monotonic() + seconds, self._read()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
            books = self._read()
            if self._view is not None:
                self._view.watched(act, step, self._got(act, last, books))
            last = books
        return last

    def _set(self, step: Step) -> list[_Worker]:
        """Has the step's processes work and the others rest. Returns those that began to work and own their device."""
        due = [worker for worker in self._workers if worker.number in step.work.get(worker.team.name, ())]
        working = [worker for worker in self._workers if worker.works]
        if any(worker not in due for worker in working):
            # A borrower that waits in a launch reads no command before the owner of its device rests too.
            self._send(working, "idle")
        self._send([worker for worker in due if not worker.works and worker in working], f"run {KERNEL_NS}")
        woken = [worker for worker in due if not worker.works]
        self._send(woken, f"run {KERNEL_NS}")
        return [worker for worker in woken if worker.milli == DEVICE_MILLI]

    def _send(self, workers: list[_Worker], command: str) -> None:
        for worker in workers:
            worker.program.send(command)
        for worker in workers:
            worker.program.answer()
            worker.works = command != "idle"

    @contextlib.contextmanager
    def _lost(self, device: int | None):  # type: ignore[no-untyped-def]
        if device is None:
            yield
            return
        self._fail(device, lost=True)
        try:
            yield
        finally:
            self._fail(device, lost=False)

    def _fail(self, device: int, *, lost: bool) -> None:
        client = self._node.client
        client.set_sim_lost(device, lost=lost)
        whole = client.node()["devices"]
        deadline = time.monotonic() + DEVICE_SECONDS
        while client.node()["devices_working"] != whole - lost:
            if time.monotonic() > deadline:
                raise FailedError(f"the daemon did not notice device {device} within {DEVICE_SECONDS:.0f} s")
            time.sleep(0.05)

    def _read(self) -> _Books:
        """Reads the simulator's books."""
        devices = self._node.client.sim_stats()["devices"]
        busy: dict[int, int] = {}
        for device in devices:
            for process in device["processes"]:
                busy[process["pid"]] = busy.get(process["pid"], 0) + process["busy_ns"]
        return devices[0]["wall_ns"], busy

    def _got(self, act: Act, before: _Books, after: _Books) -> dict[str, int]:
        """Returns the usage between two readings by team, in milli of a device."""
        grown = dict.fromkeys((team.name for team in act.teams), 0)
        for worker in self._workers:
            grown[worker.team.name] += after[1].get(worker.pid, 0) - before[1].get(worker.pid, 0)
        return {name: round(1000 * ns / (after[0] - before[0])) for name, ns in grown.items()}

    def _served(self, seen: int, woken: list[_Worker]) -> tuple[float, ...]:
        """Returns the ms from each wake to the first lease after it, as recorded by the arbiter."""
        grants = {grant["pid"]: grant["id"] for grant in self._node.client.grants()}
        first: dict[str, float] = {}
        for tenant in {worker.team.name for worker in woken}:
            for event in self._node.events(seen, f"&kind=lease&tenant={quote(tenant)}")[0]:
                first.setdefault(event["grant"], event["value_ns"] / 1e6)
        return tuple(first[grants[worker.pid]] for worker in woken if grants[worker.pid] in first)
