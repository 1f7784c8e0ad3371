"""Metered time against the simulator's books: seven launch patterns at four kernel lengths, alone, and the cost of
metering in wall time. Writes bench/results/metering-simulated-<date>.json, .md and .svg."""

import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import record
from pages.handmade import Grant, Simulator, Tenant
from picture import PATTERNS
from run import built

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "interposer" / "timing" / "tenant.c"
KERNELS_US = (2, 5, 20, 100)
# Kernels as short as the host's calls, in two streams in turn: a bracket includes launches of the other stream.
BOUNDS = {("two", 2000): 0.3}
ROUNDS = 5


def launches(pattern: str, ns: int) -> int:
    """Number of launches for about a third of a second."""
    each = {"mix": 5 * ns, "mixhost": 5 * ns, "host": 24_000 + ns, "sync": 2500 + ns}.get(pattern, ns + 3000)
    return min(150_000, max(400, 300_000_000 // each))


@pytest.fixture(scope="module")
def program() -> Path:
    return built.program("tenant")


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    simulator = Simulator(tmp_path_factory.mktemp("metering") / "sim")
    yield simulator
    simulator.stop()


def cell(program: Path, sim: Simulator, directory: Path, pattern: str, ns: int) -> dict[str, Any]:
    """Medians over rounds; bare and metered runs in turns."""
    errors, walls = [], []
    grant = Grant(directory, sim)
    grant.lease()
    grant.set_bound(50_000_000)
    n = launches(pattern, ns)
    for attempt in range(ROUNDS):
        wall = {}
        for given in (None, grant) if attempt % 2 else (grant, None):
            tenant = Tenant(program, given, sim, "pattern", pattern, n, ns, env={})
            wall[given] = tenant.line()["wall_ns"]
            if given:
                errors.append(grant.slot(attempt).busy_ns / sim.busy_ns(tenant.pid) - 1)
            tenant.end()
        walls.append(wall[grant] / wall[None] - 1)
    grant.close()
    median = statistics.median(errors)
    return {
        "pattern": pattern,
        "kernel_ns": ns,
        "launches": n,
        "error": round(median, 5),
        "errors": [round(error, 5) for error in sorted(errors)],
        "wall_overhead": round(statistics.median(walls), 5),
        "bound": BOUNDS.get((pattern, ns), 0.01),
    }


def table(facts: dict[str, str], cells: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"# Metered time against the simulator's books, {facts['date']}",
        "",
        f"{facts['machine']}; `{facts['command']}` at {facts['commit']}.",
        f"Error of the metered time, median of {ROUNDS}; in brackets by how much the program took longer.",
        "",
        "| pattern | " + " | ".join(f"{us} us" for us in KERNELS_US) + " |",
        "|---" * (len(KERNELS_US) + 1) + "|",
    ]
    for pattern, meaning in PATTERNS.items():
        row = [c for c in cells if c["pattern"] == pattern]
        lines.append(
            f"| {meaning} | " + " | ".join(f"{c['error']:+.2%} ({c['wall_overhead']:+.2%})" for c in row) + " |"
        )
    return [
        *lines,
        "",
        "Two streams that get kernels of 2 us in turn are at the pace of the host: a measured launch may have one of",
        "the other stream in it, and is charged as if it had taken both.",
    ]


def figures(cells: list[dict[str, Any]]) -> dict[str, str]:
    return {
        f"metered time, {PATTERNS.get(c['pattern'], c['pattern'])}, {c['kernel_ns'] // 1000} us kernels":
        f"{c['error']:+.2%} off, {c['wall_overhead']:+.2%} wall time"
        for c in cells
    }  # fmt: skip


@pytest.mark.timeout(900)
def test_metering(
    program: Path, sim: Simulator, tmp_path: Path, compared: list[str], pytestconfig: pytest.Config
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    cells = []
    for pattern in PATTERNS:
        for us in KERNELS_US:
            cells.append(cell(program, sim, tmp_path / f"{pattern}{us}", pattern, us * 1000))
            print(f"{pattern} {us} us: {cells[-1]}", file=sys.stderr)
    missed = [c for c in cells if not -0.01 <= c["error"] <= c["bound"]]
    stored, facts = record.newest("metering-simulated"), record.facts()
    compared.extend(record.side_by_side(stored, figures(stored.get("cells", [])), figures(cells)))
    assert not missed
    if not pytestconfig.getoption("keyword"):  # a part of a run is not stored, as in conftest.py
        record.save("metering-simulated", {**facts, "cells": cells}, table(facts, cells))
