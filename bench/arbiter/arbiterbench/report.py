"""The result files: numbers as JSON, a table of them as Markdown, a plot as SVG."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arbiterbench import judge, load, plot
from arbiterbench.judge import Cases, Verdict
from arbiterbench.systems import SYSTEMS
from arbiterbench.workloads import MS, WORKLOADS, Workload

Json = dict[str, Any]
NONE = "-"


def _number(value: float | None, digits: int = 2, scale: float = 1, unit: str = "") -> str:
    return NONE if value is None else f"{value * scale:.{digits}f}{unit}"


def _spread(found: Json, *parts: str) -> str:
    return NONE if found["n"] == 0 else " / ".join(_number(found[part]) for part in parts)


def _machine(numbers: Json) -> str:
    crowded = " (crowded)" if load.crowded(numbers["load"]) else ""
    return f"{100 * numbers['load']['busy']:.0f} %{crowded}"


Cell = Callable[[Cases, Workload, Json], str]
COLUMNS: dict[str, Cell] = {
    "share error 1 s": lambda _c, _w, n: _number(n["share_error_1s"]),
    "10 s": lambda _c, _w, n: _number(n["share_error_10s"]),
    "total": lambda c, w, n: _number(judge.total(c, w, n), 1, 100, " %"),
    "idle with waiters": lambda _c, _w, n: _number(n["idle_with_waiters"], 2, 100, " %"),
    "kept": lambda c, w, n: _number(judge.kept(c, w, n), 1, 100, " %"),
    "wake to lease p50 / p99 / max": lambda _c, _w, n: _spread(n["wake_to_lease_ms"], "p50", "p99", "max"),
    "first launch held p50 / p99 / max": lambda _c, _w, n: _spread(n["first_launch_held_ms"], "p50", "p99", "max"),
    "request p50 / p99": lambda _c, _w, n: _spread(n["latency_ms"], "p50", "p99"),
    "p99 alone": lambda c, w, n: _number(judge.alone_p99(c, w)),
    "reclaim p50 / p99": lambda _c, _w, n: _spread(n["reclaim_ms"], "p50", "p99"),
    "switches/s": lambda _c, _w, n: _number(n["switches_s"], 0),
    "arbiter CPU": lambda _c, _w, n: _number(n["arbiter_cpu"], 2, 100, " %"),
    "machine CPU": lambda _c, _w, n: _machine(n),
}

LEGEND = """\
Times in ms. **share error**: the largest difference between any tenant's part of the work and the part it asked for,
in points, in the worst window of that length (sliding by 0.1 s). **total**: device time worked against one tenant
alone on the bare device. **idle with waiters**: time the device neither worked nor switched while a tenant had had
something for it for 50 us, sampled each ms. **kept**: the least that a tenant keeps of what the bare device gives it
next to the same neighbour. **wake to lease**: the arbiter's own events. **first launch held**: how long the first
launch of a request took the tenant. **request**: due to done, open loop. **reclaim**: from the revoke of a tenant
that still ran to the next lease. **switches/s**: of the device from one process to another, its own slicing included.
**arbiter CPU**: the thread or threads that decide, of one core. Shares, work, idle time and switches are the
simulator's books; latencies the tenants' clocks."""


def _table(cases: Cases, workload: Workload) -> list[str]:
    lines = [f"| system | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for system in SYSTEMS:
        numbers = judge.one(cases, workload.name, system.name)
        if numbers is not None:
            cells = [cell(cases, workload, numbers) for cell in COLUMNS.values()]
            lines.append(f"| {system.title} | {' | '.join(cells)} |")
    return lines


def _curve(cases: Cases) -> list[str]:
    """What the bound on work in flight costs in throughput and gains in latency."""
    rows = []
    for workload in WORKLOADS:
        numbers = judge.one(cases, workload.name, "gpushare")
        if workload.of_curve and numbers is not None:
            cells = [cell(cases, workload, numbers) for cell in COLUMNS.values()]
            rows.append(f"| {workload.bound_ns / MS:g} ms | {' | '.join(cells)} |")
    if not rows:
        return []
    head = [f"| D | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    title = "### What D costs: gpushare, 100 requests a second of 2 x 1 ms next to 0.1 ms kernels"
    return ["", title, "", *head, *rows]


def verdicts(cases: Cases) -> list[Verdict]:
    """Of gpushare's cases."""
    found = []
    for workload in WORKLOADS:
        numbers = judge.one(cases, workload.name, "gpushare")
        if numbers is not None and not workload.of_curve:
            found += judge.judge(cases, workload, numbers)
    over = judge.overhead(cases)
    return [*found, *([over] if over else [])]


def markdown(facts: Json, cases: Cases, failed: Sequence[str], picture: str) -> str:
    lines = [f"# Arbiters side by side, simulated GPU, {facts['date']}", "",
             f"{facts['machine']}; `{facts['command']}` at {facts['commit']}, {facts['minutes']:.0f} minutes.", "",
             f"![share errors, latencies, and what D costs]({picture})", "", "## gpushare against its targets", "",
             "| workload | target | measured | bound | |", "|---|---|---|---|---|"]  # fmt: skip
    for verdict in verdicts(cases):
        state = "reported, not judged: the machine was full" if verdict.state == "reported" else verdict.state
        lines.append(f"| {verdict.workload} | {verdict.target} | {verdict.measured} | {verdict.bound} | {state} |")
    lines += ["", "## The systems", "", *(f"- **{system.title}**: {system.note}." for system in SYSTEMS)]
    lines += ["", "## All numbers", "", LEGEND]
    for workload in WORKLOADS:
        table = _table(cases, workload)
        if len(table) > 2 and not workload.of_curve:
            lines += ["", f"### {workload.name}: {workload.title}", "", *table]
    lines += _curve(cases)
    if failed:
        lines += ["", "## Not measured", "", *(f"- {text}" for text in failed)]
    return "\n".join(lines) + "\n"


def stored(document: Json) -> Cases:
    """The cases of a result file."""
    found: dict[tuple[str, str], list[Json]] = {}
    for row in document["cases"]:
        found.setdefault((row["workload"], row["system"]), []).append(row)
    return found


def write(directory: Path, name: str, facts: Json, cases: Cases, failed: Sequence[str]) -> Path:
    """The table's path."""
    rows = [
        {"workload": workload, "system": system, "repetition": number, **numbers}
        for (workload, system), repetitions in cases.items()
        for number, numbers in enumerate(repetitions)
    ]
    document = {"device": "simulated", **facts, "cases": rows, "failed": list(failed),
                "targets": [verdict.row() for verdict in verdicts(cases)]}  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    table = directory / f"{name}.md"
    (directory / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (directory / f"{name}.svg").write_text(plot.svg(cases, facts))
    table.write_text(markdown(facts, cases, failed, f"{name}.svg"))
    return table
