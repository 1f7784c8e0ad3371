"""The record of `make bench`: what a run writes to bench/results, and the stored run that it is compared with."""

import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BENCH = Path(__file__).resolve().parent
sys.path.append(str(BENCH / "gpu"))

from gpubench import machine  # noqa: E402 - of the checkout

RESULTS = BENCH / "results" / "simulated"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")


def facts() -> dict[str, str]:
    found = machine.facts(simulated=True)
    return {"device": "simulated", **{name: found[name] for name in ("machine", "date", "commit")}}


def stored(kind: str, results: Path = RESULTS) -> dict[str, Any]:
    """The stored run of this kind, which is the newest; empty if there is none."""
    path = results / "data" / f"{kind}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(kind: str, command: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the stored run of this kind."""
    document = {**facts(), "command": command, "rows": rows}
    lines = [f"# Simulated GPU, {document['date']}", "",
             f"{document['machine']}; `{command}` at {document['commit']}", "", *table(rows)]  # fmt: skip
    (RESULTS / "data").mkdir(parents=True, exist_ok=True)
    (RESULTS / "data" / f"{kind}.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / f"{kind}.md").write_text("\n".join(lines) + "\n")


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = ["| number | measured | baseline of the same run | target | |", "|---|---|---|---|---|"]
    for row in rows:
        verdict = "ok" if row["holds"] else "missed"
        lines.append(f"| {row['name']} | {row['measured']} | {row['baseline']} | {row['target']} | {verdict} |")
    return lines


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


def side_by_side(stored: dict[str, Any], rows: Sequence[Mapping[str, Any]], *, whole: bool = True) -> list[str]:
    """A line for each row of this run and, if it is `whole`, for each row that only the stored run has."""
    if not stored:
        return ["no run is stored to compare with"]
    old = {row["name"]: row["measured"] for row in stored.get("rows", [])}
    new = {row["name"]: row["measured"] for row in rows}
    lines = [f"against {stored['date']} at {stored.get('commit', '?')}, {stored.get('machine', '?')}:"]
    for name, measured in new.items():
        before = old.get(name)
        against = "not in the stored run" if before is None else f"stored {before}, ratio {ratio(measured, before)}"
        lines.append(f"  {name}: {measured} | {against}")
    lost = [name for name in old if name not in new] if whole else []
    return lines + [f"  {name}: not measured in this run | stored {old[name]}" for name in lost]
