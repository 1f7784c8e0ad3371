"""The simulated GPU's defaults beside what a device was measured to do: they follow it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpubench.rows import MissingRowError, Rows, value_of
from gpubench.stats import number
from gpubench.verdicts import FULL, POLICY, local_mib

_SIM = Path(__file__).resolve().parents[3] / "native" / "sim"
_MIB = 1 << 20
_FIELD = r"\.(\w+) = (\d+)(?: << (\d+))?(?=[,}])"
_CONSTANT = r"\b([A-Z][A-Z_]+) = (\d+)(?: \* (\d+))?(?=[,\s])"


def read(directory: Path = _SIM) -> dict[str, int]:
    """By the names they have in the simulator's source: fields of its options, and constants."""
    options = (directory / "engine" / "main.c").read_text()
    constants = "".join((directory / name).read_text() for name in ("memory/memory.h", "program/implicit.c"))
    initial = options[options.index("(struct options){") :].partition("};")[0]
    found = {match[1]: int(match[2]) << int(match[3] or 0) for match in re.finditer(_FIELD, initial)}
    return found | {match[1]: int(match[2]) * int(match[3] or 1) for match in re.finditer(_CONSTANT, constants)}


@dataclass(frozen=True)
class Default:
    """`name`: in the simulator's source."""

    what: str
    name: str
    simulated: Callable[[Mapping[str, int]], str]
    measured: Callable[[Rows], str]


def _mib(name: str) -> Callable[[Mapping[str, int]], str]:
    return lambda found: f"{number(found[name] / _MIB)} MiB"


def _smallest(found: Mapping[str, int]) -> str:
    step = found["SIM_ALLOC_ROUND"]
    return f"{number(-(-4096 // step) * step / 1024)} KiB, in steps of {step} bytes"


def _us(name: str) -> Callable[[Mapping[str, int]], str]:
    return lambda found: f"{number(found[name] / 1000)} us"


def _grown(step: str) -> Callable[[Rows], str]:
    def measured(rows: Rows) -> str:
        row = rows.one(("hidden",), step, step)
        return f"{number(row['value'])} MiB ({number(row['low'])} to {number(row['high'])}, n={row['n']})"

    return measured


def _spinning(rows: Rows, quantile: str) -> float:
    """us that a short kernel waits beside one that never ends: its turn comes when the other's slice is over."""
    name = f"a 20 us kernel beside a kernel that spins on every multiprocessor, {quantile}"
    row = rows.one(("stalls",), name, "a kernel beside one that spins")
    return float(row["value"]) - value_of(row, "alone_us")


def _slice(rows: Rows) -> str:
    return f"{number(_spinning(rows, 'p50'))} us (p99 {number(_spinning(rows, 'p99'))}), what a 20 us kernel waits more"


def _switch(rows: Rows) -> str:
    """From what two that fill the device lose when it slices them: a switch a slice."""
    pattern = r"(?P<first>\w+) \+ (?P<second>\w+): throughput of both, summed"
    found = rows.find(POLICY, pattern, "the pairs of programs")
    sums = [row["values"]["free"] for match, row in found if match["first"] in FULL and match["second"] in FULL]
    if not sums:
        raise MissingRowError("pairs that fill the device")
    kept = statistics.median(sums)
    if kept >= 100:
        return f"nothing: two that it slices do {number(kept)} % of one alone"
    lost = _spinning(rows, "p50") * (100 / kept - 1)
    return f"{number(lost)} us, from {number(kept)} % of alone that two do and the slice above"


def _copies(rows: Rows) -> str:
    row = rows.one(("copies",), "copies beside another's compute, bare", "copies")
    return f"{number(value_of(row, 'alone'))} GB/s, host to device, pinned"


def _launch(rows: Rows) -> str:
    row = rows.one(("overhead",), "2 us kernels, gpushare", "launches of 2 us kernels")
    return f"at most {number(value_of(row, 'bare_us'))} us: a 2 us kernel, back to back, bare"


def _local(rows: Rows) -> str:
    row = rows.one(("hidden",), "a kernel with 16 KiB of local memory", "local memory")
    threads = value_of(row, "processors") * value_of(row, "threads")
    return f"{number(threads)} threads; {number(row['value'] / local_mib(row))} of threads x bytes was taken"


def _resident(found: Mapping[str, int]) -> str:
    return f"{number(found['RESIDENT_THREADS'])} threads, 1 of threads x bytes is taken, less the stack's part"


DEFAULTS = (
    Default("a context", "context_bytes", _mib("context_bytes"), _grown("a bare context")),
    Default("slice when several have work", "slice_ns", _us("slice_ns"), _slice),
    Default("a switch between contexts", "switch_ns", _us("switch_ns"), _switch),
    Default("a launch, on the host", "launch_ns", _us("launch_ns"), _launch),
    Default(
        "copies over the bus",
        "copy_bytes_per_us",
        lambda found: f"{number(found['copy_bytes_per_us'] / 1000)} GB/s",
        _copies,
    ),
    Default("local memory", "RESIDENT_THREADS", _resident, _local),
    Default("a small module", "CHUNK", _mib("CHUNK"), _grown("loading a module")),
    Default("a pool's first growth", "SIM_POOL_STEP", _mib("SIM_POOL_STEP"), _grown("first pool allocation, 1 MiB")),
    Default("a first cuMemAlloc of 4 KiB", "SIM_ALLOC_ROUND", _smallest, _grown("first cuMemAlloc, 4 KiB")),
)
"""Only what a run measures: how long recording or asking an event takes is not among it."""


def beside(rows: Rows, found: Mapping[str, int]) -> list[dict[str, str]]:
    """Each default that was measured: what, its name, its value, and the device's."""
    lines = []
    for default in DEFAULTS:
        try:
            measured = default.measured(rows)
        except (MissingRowError, KeyError, TypeError, ZeroDivisionError):  # of a row that is not what it is meant to be
            continue
        lines.append(
            {"what": default.what, "name": default.name, "simulated": default.simulated(found), "device": measured}
        )
    return lines
