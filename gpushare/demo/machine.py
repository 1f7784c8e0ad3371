"""How much of the processors other programs had while something was measured, and whether the measurement counts then.

That depends on the machine alone, never on what was measured.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

BUSY = 0.2
"""The part of the processors above which a measurement does not count: a waiting program then gets its turn late."""
TRIES = 3
"""How often a phase is measured at most."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of processor time: of all processors since some time in the past, without work, and of these programs."""

    all: float
    idle: float
    own: float


def family(parents: Mapping[int, int], roots: Iterable[int]) -> set[int]:
    """The roots and all their descendants. `parents`: of all processes, by pid."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, left = set[int](), list(roots)
    while left:
        if (pid := left.pop()) not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def usage(roots: Iterable[int]) -> Usage:
    """What has been used by now. `roots`: the programs that are measured are these and their descendants."""
    own = sum(map(_used_s, family(_parents(), roots)))
    total, *lines = Path("/proc/stat").read_text().splitlines()
    processors = sum(line.startswith("cpu") for line in lines)
    # What the host took away (steal) is not idle, so it counts as somebody's.
    return Usage(time.monotonic() * processors, _TICK_S * sum(map(int, total.split()[4:6])), own)


def others(before: Usage, after: Usage) -> float:
    """The part of the processors that other programs had in between, 0 to 1."""
    there = after.all - before.all
    used = there - (after.idle - before.idle) - (after.own - before.own)
    return min(1.0, max(0.0, used / there)) if there > 0 else 0.0


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = int(Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # it has ended
    return found


def _used_s(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:
        return 0.0
