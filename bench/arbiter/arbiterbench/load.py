"""How busy the machine itself was: latencies mean nothing while no core is free."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BURNING = 0.5  # of a core: from here on a process counts as burning CPU


@dataclass(frozen=True)
class Snapshot:
    total: int
    idle: int
    processes: dict[int, tuple[str, int]]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def snapshot() -> Snapshot:
    """Ticks of the whole machine and of every process."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(word) for word in first]
    processes = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
        processes[int(entry.name)] = name, int(fields[11]) + int(fields[12])
    return Snapshot(sum(ticks), ticks[3] + ticks[4], processes)


def between(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """`busy`: part of all cores. `burning`: processes that took half a core or more."""
    total = max(1, after.total - before.total)
    wall = total / (os.cpu_count() or 1)  # ticks of one core
    burning = []
    for pid, (name, ticks) in after.processes.items():
        used = ticks - before.processes.get(pid, (name, 0))[1]
        if used / wall >= BURNING:
            burning.append(name)
    return {
        "busy": 1 - (after.idle - before.idle) / total,
        "burning": sorted(burning),
        "cores": cores(),
    }


def crowded(found: dict[str, Any]) -> bool:
    """Whether the machine, and not the measured system, decided how long wakes took."""
    return len(found["burning"]) >= found["cores"] or found["busy"] >= 0.9
