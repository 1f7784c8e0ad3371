"""Plays the script with real processes on a simulated device, and measures by the simulator's books and the programs'
own clocks and comparisons."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpushare.demo.interrupts import uninterrupted
from gpushare.demo.node import Node
from gpushare.demo.notebooks.script import MORNING, NOTEBOOKS, ONE_BY_ONE, PARTS, TOGETHER, TRAINER, Device, Part
from gpushare.demo.notebooks.verdict import Check, Facts, Wake
from gpushare.demo.program import Program
from gpushare.errors import FailedError
from gpushare.paths import LIB_DIR
from gpushare.text.units import format_size, format_time

PROGRAM = Path(__file__).with_name("program.py")
CELL_NS = 200_000_000
STEP_NS = 10_000_000
TICK_SECONDS = 0.1
ANSWER_SECONDS = 60.0
MASKS = (0x5555555555555555, 0x123456789ABCDEF, 0xFEDCBA987654321)
"""What the cells of a notebook change, one after the other."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the simulator's books have of a program."""

    bytes: int
    busy_ns: int
    in_bytes: int
    out_bytes: int
    illegal_accesses: int


@dataclass(frozen=True, slots=True)
class Page:
    """The books at one instant: of each program that has begun, by name."""

    wall_ns: int
    peak_bytes: int
    rows: dict[str, Row]


@dataclass(frozen=True, slots=True)
class Tick:
    """What is shown of a program. `away_bytes`: of its variables, what is not on the device. `doing`: what it was last
    told, in words. `wait_ms`: of its last wake. `wrong`: of its last comparison. `steps_per_s`: of the trainer, in
    this scene. None: not known yet, or of no interest."""

    name: str
    bytes: int
    away_bytes: int
    doing: str
    wait_ms: float | None
    wrong: int | None
    steps_per_s: float | None


class View(Protocol):
    """Is notified of each scene when it begins, about ten times a second of what its programs do, and of its end."""

    def began(self, title: str) -> None: ...  # noqa: D102

    def watched(self, ticks: Sequence[Tick]) -> None: ...  # noqa: D102

    def ended(self, ticks: Sequence[Tick]) -> None: ...  # noqa: D102


class _Played:
    """One program while the scenario runs."""

    def __init__(self, part: Part, where: Path) -> None:
        self.part, self.name = part, part.name
        self.program = Program(part.name, where / f"{part.name}.err")
        self.pid = 0
        self.doing = "starts"
        self.full_bytes = 0
        """What it has on the device with all of its variables there; 0: not known yet."""
        self.cells = 0
        self.compared = 0
        self.wait_ms: float | None = None
        self.wrong: int | None = None


class Story:
    """`seconds`: how long the quiet scenes take, and the rests between wakes. `view`: None: nothing is shown."""

    def __init__(self, node: Node, where: Path, device: Device, seconds: float, view: View | None) -> None:
        self._node, self._where, self._device, self._seconds, self._view = node, where, device, seconds, view
        self._played: dict[str, _Played] = {}
        self._began = Page(0, 0, {})
        """When the scene began."""
        self.facts = Facts(
            capacity_bytes=device.size,
            link_bytes_per_s=device.link,
            variables={part.name: device.variables(part) for part in PARTS},
        )

    def play(self) -> Facts:
        """Plays all scenes and returns the measurements. Always ends its programs. Raises GpushareError."""
        self._needs_room()
        try:
            self._scene("three notebooks start, one after the other, and rest", self._notebooks_start)
            self._scene("ada and ben work again: eva has borrowed, and makes room", lambda: self._wakes(MORNING))
            self._scene("a trainer comes: who has rested longest makes room", self._trainer_starts)
            self._scene("all rest: the trainer has the device", self._alone)
            self._scene("one notebook after the other wakes; the trainer goes on", self._one_by_one)
            self._scene("ada and ben wake at once: the trainer makes room, and is back", self._together)
            self._scene("the end: all compare their variables", self._sum_up)
        finally:
            self._end()
        return self.facts

    def _needs_room(self) -> None:
        pool, needed = self._node.client.node()["host_pool"], sum(self.facts.variables.values())
        if pool["size"] < needed:
            raise FailedError(
                f"up to {format_size(needed)} are moved to host memory, and the host pool, half of what is free, has"
                f" {format_size(pool['size'])}: end other programs first"
            )

    # The scenes.

    def _scene(self, title: str, scene: Callable[[], None]) -> None:
        if self._view is not None:
            self._view.began(title)
        self._began = self._tick()
        scene()
        ended = self._tick()
        if self._view is not None:
            self._view.ended(self._ticks(ended))

    def _notebooks_start(self) -> None:
        for part in NOTEBOOKS:
            if part.borrows:
                self._rest()
                self._all_idle()  # then there is room for it
            self._start(part)
            self._cells([part])
        self._rest()

    def _trainer_starts(self) -> None:
        self._start(TRAINER)
        self._ask({TRAINER: (f"train {STEP_NS}", "trains")})

    def _alone(self) -> None:
        self._paced("alone", self._rest)

    def _one_by_one(self) -> None:
        self._paced("one", lambda: self._wakes(ONE_BY_ONE))

    def _together(self) -> None:
        self._wakes(TOGETHER)
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._away(TRAINER.name, self._tick()) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)
        self._paced("after", self._rest)
        self.facts.returned = not self._away(TRAINER.name, self._tick())

    def _sum_up(self) -> None:
        [answer] = self._ask({TRAINER: ("rest", "rests")})
        self.facts.steps = answer["steps"]
        for part in PARTS:
            self._check([part])
        page, facts = self._tick(), self.facts
        for name, row in page.rows.items():
            played, size = self._played[name], facts.variables[name]
            # What the programs themselves copied is not counted.
            facts.moved_in_bytes += row.in_bytes - size
            facts.moved_out_bytes += row.out_bytes - played.compared * size
            facts.illegal_accesses += row.illegal_accesses
        facts.peak_bytes = page.peak_bytes
        facts.killed = tuple(name for name, played in self._played.items() if not played.program.running())

    # What happens in them.

    def _start(self, part: Part) -> None:
        self._node.client.set_tenant(part.name, {"time": part.time})
        played = self._played[part.name] = _Played(part, self._where)
        played.program.begin(self._command(part))
        [ready] = self._answers([played])
        if ready.get("event") != "ready":
            raise FailedError(f"{part.name}: {ready}")
        played.pid = ready["pid"]
        seed = 1 + list(self._played).index(part.name)
        self._ask({part: (f"fill {self.facts.variables[part.name]} {seed}", "fills")})
        played.full_bytes = self._tick().rows[part.name].bytes

    def _command(self, part: Part) -> list[str]:
        asked = {
            "tenant": part.name,
            "memory": f"{part.share}%",
            "time": format_time(part.time),
            "class": part.class_,
            "idle-memory": "lend",
            "idle-after": f"{self._device.idle_after:g}s",
            "wait": f"{ANSWER_SECONDS:.0f}",
        }
        words = [f"--{name}={value}" for name, value in asked.items()]
        loan = ["--borrow-memory"] if part.borrows else []
        gpushare = [sys.executable, "-P", "-m", "gpushare", "run", "--socket", str(self._node.socket)]
        return [*gpushare, *words, *loan, "--", sys.executable, "-P", str(PROGRAM), str(LIB_DIR)]

    def _wakes(self, wakes: Sequence[Sequence[Part]]) -> None:
        for parts in wakes:
            before = self._tick()
            away = [self._away(part.name, before) > 0 for part in parts]
            for part, was_away, wait_ms in zip(parts, away, self._cells(parts), strict=True):
                self.facts.wakes.append(Wake(part.name, was_away, len(parts), wait_ms))
            self._check(parts)
            self._rest()

    def _cells(self, parts: Sequence[Part]) -> list[float]:
        """Has each compute a cell, together; returns for each the ms that it waited for its first kernel."""
        waits = []
        cells = {part: (f"cell {self._mask(part)} {CELL_NS}", "computes") for part in parts}
        for part, answer in zip(parts, self._ask(cells), strict=True):
            played = self._played[part.name]
            played.wait_ms, played.doing = answer["wait_ns"] / 1e6, "rests"
            waits.append(played.wait_ms)
        return waits

    def _mask(self, part: Part) -> int:
        played = self._played[part.name]
        played.cells += 1
        return MASKS[played.cells % len(MASKS)]

    def _check(self, parts: Sequence[Part]) -> None:
        """Has each compare all of its variables."""
        for part, answer in zip(parts, self._ask(dict.fromkeys(parts, ("check", "compares"))), strict=True):
            played = self._played[part.name]
            played.compared += 1
            played.wrong, played.doing = answer["wrong"], "rests"
            size = self.facts.variables[part.name]
            self.facts.checks.append(Check(part.name, answer["wrong"], answer["of"], size))

    def _all_idle(self) -> None:
        """Until the variables of all that were started are idle, which is later on a busy machine."""
        variables = sum(self.facts.variables[name] for name in self._played)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            [device] = self._node.client.devices()
            if device["memory_idle_bytes"] >= variables:
                return
            self._pass(TICK_SECONDS)

    def _rest(self) -> None:
        self._pass(self._seconds)

    def _paced(self, phase: str, scene: Callable[[], None]) -> None:
        """Measures the trainer's part of the device during a scene."""
        before = self._tick()
        scene()
        self.facts.pace[phase] = _pace(TRAINER.name, before, self._tick())

    def _ask(self, commands: dict[Part, tuple[str, str]]) -> list[dict[str, Any]]:
        """Sends each its command, and returns the answers. `commands`: the command, and what it means in words."""
        asked = [self._played[part.name] for part in commands]
        for played, (command, doing) in zip(asked, commands.values(), strict=True):
            played.doing = doing
            played.program.send(command)
        return self._answers(asked)

    def _answers(self, asked: Sequence[_Played]) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(found) < len(asked):
            for played in asked:
                if played.name not in found and (answer := played.program.answered(TICK_SECONDS)) is not None:
                    found[played.name] = answer
            self._tick()
            if time.monotonic() > deadline:
                silent = ", ".join(played.name for played in asked if played.name not in found)
                raise FailedError(f"{silent} did not answer within {ANSWER_SECONDS:.0f} s")
        return [found[played.name] for played in asked]

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
            self._tick()

    # The books.

    def _tick(self) -> Page:
        """Reads the books, remembers whose variables are away, and shows it."""
        page = self._read()
        self.facts.away |= {name for name in page.rows if self._away(name, page)}
        if self._view is not None:
            self._view.watched(self._ticks(page))
        return page

    def _read(self) -> Page:
        device = self._node.client.sim_stats()["devices"][0]
        by_pid = {row["pid"]: row for row in device["processes"]}
        rows = {}
        for name, played in self._played.items():
            if (row := by_pid.get(played.pid)) is not None:
                rows[name] = Row(
                    row["bytes"],
                    row["busy_ns"],
                    row["copied_in_bytes"],
                    row["copied_out_bytes"],
                    row["illegal_accesses"],
                )
        return Page(device["wall_ns"], device["peak_bytes"], rows)

    def _ticks(self, now: Page) -> list[Tick]:
        found = []
        for name, played in self._played.items():
            size = now.rows[name].bytes if name in now.rows else 0
            away = self._away(name, now)
            doing = "waits" if away and played.doing != "rests" else played.doing
            trains = played.part is TRAINER and name in self._began.rows
            steps_per_s = _pace(name, self._began, now) * 10**6 / STEP_NS if trains else None
            found.append(Tick(name, size, away, doing, played.wait_ms, played.wrong, steps_per_s))
        return found

    def _away(self, name: str, page: Page) -> int:
        """Returns how many bytes of a program's variables are not on the device."""
        return max(0, self._played[name].full_bytes - page.rows[name].bytes) if name in page.rows else 0

    @uninterrupted()
    def _end(self) -> None:
        for played in self._played.values():
            played.program.leave()
        with contextlib.ExitStack() as each:  # even if an earlier one failed
            for played in self._played.values():
                each.callback(played.program.end)
        if self._played:
            self._node.wait_released([grant["id"] for grant in self._node.client.grants()])


def _pace(name: str, before: Page, after: Page) -> int:
    """Milli of the device that a program had between two readings. 0: it was not there at the first."""
    if name not in before.rows or name not in after.rows or after.wall_ns <= before.wall_ns:
        return 0
    busy = after.rows[name].busy_ns - before.rows[name].busy_ns
    return round(1000 * busy / (after.wall_ns - before.wall_ns))
