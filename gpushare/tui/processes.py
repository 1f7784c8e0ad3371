"""Processes of this node, as /proc shows them to any user."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpushare.processes.users import user_name

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROGRAM_MAX = 400
"""Bytes read of a command line: no terminal shows more in a row."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process. `program`: its command line, or its name where it has none. `cpu_milli`: processor time since the last
    look, 1000 is one core; None at the first look. `memory_bytes`: resident in host memory."""

    pid: int
    parent: int
    user: str
    program: str
    age_seconds: float
    memory_bytes: int
    cpu_milli: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """This machine. `cpu_milli`: part of the time of all its processors since the last look; None at the first."""

    cpu_milli: int | None
    load: float
    memory_used_bytes: int
    memory_bytes: int


class Processes:
    """Keeps the processor time of the last look."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, int], tuple[int, float]] = {}
        self._worked: tuple[int, int] | None = None

    def look(self, pids: Iterable[int]) -> dict[int, Process]:
        """Returns those of these processes that live, by pid."""
        now, since_boot = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        found, ticks = {}, {}
        for pid in pids:
            try:
                words = _read(pid, "stat", 1024)
                name, _, rest = words.partition("(")[2].rpartition(")")
                fields = rest.split()
                program, uid = _program(pid) or name, Path(f"/proc/{pid}").stat().st_uid
            except OSError:
                continue  # it has ended
            # Numbers as in proc_pid_stat(5), from the state, which is the third.
            used, began = int(fields[11]) + int(fields[12]), int(fields[19])
            before = self._ticks.get((pid, began))
            ticks[pid, began] = used, now
            found[pid] = Process(
                pid=pid,
                parent=int(fields[1]),
                user=user_name(uid),
                program=program,
                age_seconds=max(0.0, since_boot - began / _TICKS),
                memory_bytes=int(fields[21]) * _PAGE,
                cpu_milli=_milli(used - before[0], now - before[1]) if before is not None else None,
            )
        self._ticks = ticks
        return found

    def host(self) -> Host | None:
        """Returns how busy this machine is; None where /proc does not say so."""
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
            lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
            memory = {words[0]: int(words[1]) << 10 for words in lines}
            total, free = memory["MemTotal:"], memory["MemAvailable:"]
        except (OSError, LookupError, ValueError):
            return None
        whole, idle = sum(ticks), ticks[3] + ticks[4]
        before, self._worked = self._worked, (whole - idle, whole)
        spent = whole - before[1] if before is not None else 0
        cpu = round(1000 * (whole - idle - before[0]) / spent) if before is not None and spent > 0 else None
        return Host(cpu, os.getloadavg()[0], total - free, total)


def _milli(ticks: int, seconds: float) -> int | None:
    return round(1000 * ticks / _TICKS / seconds) if seconds > 0 else None


def _read(pid: int, name: str, most: int) -> str:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return (file.read(most) or b"").decode(errors="replace")


def _program(pid: int) -> str:
    words = [word for word in _read(pid, "cmdline", _PROGRAM_MAX).split("\0") if word]
    # Of the program alone the directory is left out: it is long, and its name says enough.
    return " ".join([os.path.basename(words[0]), *words[1:]]) if words else ""  # noqa: PTH119


def tree(pids: Iterable[int], parents: dict[int, int]) -> list[tuple[int, str]]:
    """Returns the processes in the order of a tree, each with the branch that is drawn before it. `parents`: of those
    that are known; one whose parent is not among the processes is at the top."""
    own = set(pids)
    below: dict[int, list[int]] = {}
    for pid in sorted(own):
        parent = parents.get(pid, 0)
        below.setdefault(parent if parent in own and parent != pid else 0, []).append(pid)
    found: list[tuple[int, str]] = []
    waiting = [(pid, "") for pid in reversed(below.get(0, []))]
    last = {children[-1] for children in below.values()}
    while waiting:
        pid, before = waiting.pop()
        found.append((pid, before + ("└─" if pid in last else "├─")))
        deeper = before + ("  " if pid in last else "│ ")
        waiting += [(child, deeper) for child in reversed(below.get(pid, []))]
    return found
