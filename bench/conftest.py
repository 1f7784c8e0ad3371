"""Each number is a ratio or a difference within one run. What was measured, when and on what goes to bench/results, and
is printed next to the newest stored run."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Daemon

sys.path.insert(0, str(Path(__file__).parent))

import record

os.environ["PYTHONSAFEPATH"] = "1"  # the installed package, not the tree
_rows: list[dict[str, Any]] = []
_compared: list[str] = []


def _whole(config: pytest.Config) -> bool:
    """`make bench` itself, not a run of some of its tests."""
    return config.args == ["bench"] and not config.getoption("keyword")


class Report:
    """Collects rows: what, measured, against what, target, and whether it holds. The first number in `measured` is the
    one that is compared with the stored run's."""

    def __call__(self, name: str, measured: str, baseline: str, target: str, holds: bool) -> None:
        row = {"name": name, "measured": measured, "baseline": baseline, "target": target, "holds": holds}
        _rows.append(row)
        verdict = "ok" if holds else "MISSED"
        print(f"\n{name}: {measured} (against {baseline}; target {target}) {verdict}", file=sys.stderr)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    stored = record.newest("simulated")
    yield Report()
    old, new = ({row["name"]: row["measured"] for row in rows} for rows in (stored.get("rows", []), _rows))
    _compared.extend(record.side_by_side(stored, old, new, whole=_whole(request.config)))


@pytest.fixture(scope="session")
def compared() -> list[str]:
    """Lines for the end of the run; other benchmarks add theirs."""
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
    if not _rows or session.testsfailed or not _whole(session.config):
        return
    facts = record.facts()
    lines = [f"# Simulated GPU, {facts['date']}", "", f"{facts['machine']}; `make bench` at {facts['commit']}", "",
             "| number | measured | baseline of the same run | target | |", "|---|---|---|---|---|"]  # fmt: skip
    for row in _rows:
        verdict = "ok" if row["holds"] else "missed"
        lines.append(f"| {row['name']} | {row['measured']} | {row['baseline']} | {row['target']} | {verdict} |")
    record.save("simulated", {**facts, "rows": _rows}, lines)
