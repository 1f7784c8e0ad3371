"""The record of `make bench`: what a run writes to bench/results, and the stored run that it is compared with."""

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import picture

RESULTS = Path(__file__).parent / "results"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def facts() -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "device": "simulated",
        "machine": f"{_cpu()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "date": time.strftime("%Y-%m-%d"),
        "command": "make bench",
        "commit": commit,
    }


def newest(kind: str, results: Path = RESULTS) -> dict[str, Any]:
    """The stored run of this kind with the latest date; empty if there is none. `kind`: the file name up to the
    date."""
    files = sorted(results.glob(f"{kind}-[0-9]*.json"))
    return json.loads(files[-1].read_text()) if files else {}


def save(kind: str, document: dict[str, Any], table: Iterable[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{kind}-{document['date']}"
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    stem.with_suffix(".md").write_text("\n".join(table) + "\n")
    stem.with_suffix(".svg").write_text(picture.of(document))


def ratio(measured: str, stored: str) -> str:
    """The ratio of the first numbers in two texts; "-" if one has none or the stored one is zero."""
    numbers = [_NUMBER.search(text) for text in (measured, stored)]
    if not all(numbers):
        return "-"
    now, then = (float(found[0]) for found in numbers if found)
    return f"{now / then:.2f}" if then else "-"


class Row(NamedTuple):
    """One run's row for a number. `target`: such as `<= 5 ms`, or without a sign."""

    measured: str
    target: str


WORSE_PART = 0.05
"""Medians that differ by no more than this part are the same."""


def verdict(before: Sequence[Row], now: Sequence[Row]) -> str:
    """`better`, `worse` or `same`, by the first number of each row: `same` if the two sets of runs overlap. `-`: they
    cannot be compared."""
    sign = 1 if now and now[0].target.startswith(">=") else -1 if now and now[0].target.startswith("<=") else 0
    found = [[_NUMBER.search(row.measured.replace(",", "")) for row in rows] for rows in (before, now)]
    if not sign or not before or not all(number for rows in found for number in rows):
        return "-"
    old, new = ([sign * float(number[0]) for number in rows if number] for rows in found)
    if abs(statistics.median(new) - statistics.median(old)) <= WORSE_PART * abs(statistics.median(old)):
        return "same"
    return "worse" if max(new) < min(old) else "better" if min(new) > max(old) else "same"


def side_by_side(stored: dict[str, Any], old: dict[str, str], new: dict[str, str], *, whole: bool = True) -> list[str]:
    """A line for each row of this run and, if it is `whole`, for each row that only the stored run has. `old` and
    `new`: name of a row -> what was measured."""
    if not stored:
        return ["no run is stored to compare with"]
    lines = [f"against {stored['date']} at {stored.get('commit', '?')}, {stored.get('machine', '?')}:"]
    for name, measured in new.items():
        before = old.get(name)
        against = "not in the stored run" if before is None else f"stored {before}, ratio {ratio(measured, before)}"
        lines.append(f"  {name}: {measured} | {against}")
    lost = [name for name in old if name not in new] if whole else []
    return lines + [f"  {name}: not measured in this run | stored {old[name]}" for name in lost]
