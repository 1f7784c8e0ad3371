"""Each number is a ratio or a difference within one run. Results, with date and machine, go to bench/results, and are
printed next to the newest stored run."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run.running import Daemon

sys.path.insert(0, str(Path(__file__).parent))

import record

os.environ["PYTHONSAFEPATH"] = "1"  # the installed package, not the tree
Daemon.timing = {}  # daemons start a reader ahead, as installed ones do
_rows: list[dict[str, Any]] = []
_compared: list[str] = []


_STORED = {
    "bench": ("simulated", "make bench"),
    "bench/test_daemon.py": ("daemon-simulated", "pytest bench/test_daemon.py"),
    "bench/test_ledger.py": ("ledger-simulated", "pytest bench/test_ledger.py"),
    "bench/test_plan.py": ("plan-simulated", "pytest bench/test_plan.py"),
    "bench/test_engine_start.py": ("engines-simulated", "pytest bench/test_engine_start.py"),
    "bench/test_cluster.py": ("cluster-simulated", "pytest bench/test_cluster.py"),
    "bench/test_slots.py": ("slots-simulated", "pytest bench/test_slots.py"),
    "bench/test_metrics.py": ("metrics-simulated", "pytest bench/test_metrics.py"),
    "bench/test_audit.py": ("audit-simulated", "pytest bench/test_audit.py"),
    "bench/test_false_alarms.py": ("alarms-simulated", "pytest bench/test_false_alarms.py"),
    "bench/test_guard.py": ("guard-simulated", "pytest bench/test_guard.py"),
    "bench/test_front.py": ("front-simulated", "pytest bench/test_front.py"),
    "bench/test_notebooks.py": ("notebooks-simulated", "pytest bench/test_notebooks.py"),
    "bench/test_dashboard.py": ("dashboard-simulated", "pytest bench/test_dashboard.py"),
}
"""Runs whose results are stored: pytest's arguments -> (name of the results, command)."""


def _kind(config: pytest.Config) -> tuple[str, str] | None:
    """The entry of this run; None if it is only a part of one, which is not stored."""
    return _STORED.get(" ".join(config.args)) if not config.getoption("keyword") else None


class Report:
    """Collects rows: name, measured, baseline, target, and whether it holds. The first number in `measured` is compared
    with the stored run's."""

    def __call__(self, name: str, measured: str, baseline: str, target: str, holds: bool) -> None:
        row = {"name": name, "measured": measured, "baseline": baseline, "target": target, "holds": holds}
        _rows.append(row)
        verdict = "ok" if holds else "MISSED"
        print(f"\n{name}: {measured} (against {baseline}; target {target}) {verdict}", file=sys.stderr)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    kind = _kind(request.config)
    stored = record.newest(kind[0] if kind is not None else "simulated")
    yield Report()
    old, new = ({row["name"]: row["measured"] for row in rows} for rows in (stored.get("rows", []), _rows))
    _compared.extend(record.side_by_side(stored, old, new, whole=kind is not None))


@pytest.fixture(scope="session")
def compared() -> list[str]:
    """Lines to print at the end of the run; other benchmarks add theirs."""
    return _compared


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("bench") / "state")
    try:
        yield daemon.start()
    finally:
        daemon.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _compared:
        terminalreporter.section("compared with the stored run")
        for line in _compared:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    kind = _kind(session.config)
    if not _rows or session.testsfailed or kind is None:
        return
    facts = record.facts()
    name, command = kind
    lines = [f"# Simulated GPU, {facts['date']}", "", f"{facts['machine']}; `{command}` at {facts['commit']}", "",
             "| number | measured | baseline of the same run | target | |", "|---|---|---|---|---|"]  # fmt: skip
    for row in _rows:
        verdict = "ok" if row["holds"] else "missed"
        lines.append(f"| {row['name']} | {row['measured']} | {row['baseline']} | {row['target']} | {verdict} |")
    record.save(name, {**facts, "command": command, "rows": _rows}, lines)
