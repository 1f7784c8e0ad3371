"""How much of the machine other programs had while a test ran, and whether what a test measured then counts.

Such a test has one try. Whether its result counts depends on the machine alone, never on the result.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MARK = "TESTED_BY"
"""In the environment of all that the tests start: the pid of the process that runs them. The simulator of a daemon that
was killed is no descendant of that process any more."""


class Process(NamedTuple):
    parent: int
    waited_s: float
    """Processor time of the children that it has waited for."""
    marked: bool


def family(processes: Mapping[int, Process], root: int) -> set[int]:
    """`root`, the marked processes, and the descendants of both."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: set[int] = set()
    left = [root, *(pid for pid, process in processes.items() if process.marked)]
    while left:
        if (pid := left.pop()) not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def running(mark: bytes) -> dict[int, Process]:
    """All processes of the machine by pid."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                marked = mark in Path(entry.path, "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            found[int(entry.name)] = Process(int(fields[1]), TICK_S * sum(map(int, fields[13:15])), marked)
    return found


def used_s(pid: int) -> float:
    """Processor time of a process, to the nanosecond; /proc rounds it down to a tick, twice."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:
        return 0.0  # it has ended since it was found


def idle_s(stat: str) -> tuple[int, float]:
    """The number of processors, and the time that they had nothing to do, from /proc/stat. The kernel measures that
    time, but only samples who had the rest: a program that timers start for less than a tick each time is missed
    there. What the host took away (steal) was not idle, so it counts as somebody's."""
    total, *lines = stat.splitlines()
    return sum(line.startswith("cpu") for line in lines), TICK_S * sum(map(int, total.split()[4:6]))


class Usage(NamedTuple):
    """Seconds of processor time."""

    all: float
    """Of all processors, since some time in the past."""
    idle: float
    """Of these, without work."""
    own: float
    """Of these, for the processes of this test."""

    @classmethod
    def now(cls) -> Self:
        processes = running(f"{MARK}={os.getpid()}".encode())
        own = sum(used_s(pid) + processes[pid].waited_s for pid in family(processes, os.getpid()) & processes.keys())
        processors, idle = idle_s(Path("/proc/stat").read_text())
        return cls(time.monotonic() * processors, idle, own)

    def others(self, before: Self) -> tuple[float, float]:
        """What others had since `before`, and what there was."""
        there = self.all - before.all
        return there - (self.idle - before.idle) - (self.own - before.own), there


ALLOWED = 0.15
"""The part of the processors that others may have. In 800 runs of timing/charges/test_meter.py beside busy
loops, the meter's error against the simulator's books was at most 0.7 % where they had less than a tenth, 1.3 % up to
here, 2.7 % up to six tenths (the first tests failed at a fifth), and 4.7 % beyond; 2 to 5 % are allowed."""
BLUR_S = 2 * TICK_S
"""How far off a reading may be: /proc counts in ticks."""


def why_not(others_s: float, there_s: float) -> str | None:
    """Why the result of a test does not count, or None if it does. `others_s`: the processor time that others had of
    `there_s`."""
    if others_s - BLUR_S <= ALLOWED * there_s:
        return None
    return f"other programs had {100 * others_s / there_s:.0f} % of the processors"
