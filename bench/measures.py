"""What benchmarks have in common: quantiles of times, and what a process takes of processors and memory."""

import time
from collections.abc import Sequence
from pathlib import Path


def quantile(found: Sequence[float], part: float) -> float:
    ordered = sorted(found)
    return ordered[int(part * (len(ordered) - 1))]


def p99(found: Sequence[float]) -> float:
    return quantile(found, 0.99)


def spread(ms: Sequence[float], digits: int = 2) -> str:
    p50, p99, longest = (quantile(ms, part) for part in (0.5, 0.99, 1))
    return f"p99 {p99:.{digits}f} ms, p50 {p50:.{digits}f} ms, max {longest:.{digits}f} ms of {len(ms)}"


def cpu_ns(pid: int) -> int:
    """Processor time of all threads that a process has and had, by its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def percent_of_a_core(seconds: float, *pids: int) -> list[float]:
    """What each process takes during that time."""
    before, began = [cpu_ns(pid) for pid in pids], time.monotonic_ns()
    time.sleep(seconds)
    passed = time.monotonic_ns() - began
    return [100 * (cpu_ns(pid) - was) / passed for pid, was in zip(pids, before, strict=True)]


def pss_mib(pid: int) -> float:
    """A process's proportional set size."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
