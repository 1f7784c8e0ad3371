"""Each number is a ratio or a difference within one run; what was measured, when and on what goes to bench/results."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Daemon

os.environ["PYTHONSAFEPATH"] = "1"  # the installed package, not the tree
RESULTS = Path(__file__).parent / "results"
_rows: list[dict[str, Any]] = []


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


class Report:
    """Collects rows: what, measured, against what, target, and whether it holds."""

    def __call__(self, name: str, measured: str, baseline: str, target: str, holds: bool) -> None:
        row = {"name": name, "measured": measured, "baseline": baseline, "target": target, "holds": holds}
        _rows.append(row)
        print(
            f"\n{name}: {measured} (against {baseline}; target {target}) {'ok' if holds else 'MISSED'}", file=sys.stderr
        )


@pytest.fixture(scope="session")
def report() -> Report:
    return Report()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("bench") / "state")
    try:
        yield daemon.start()
    finally:
        daemon.stop()


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A run of some tests must not replace the record of all.
    if not _rows or session.testsfailed or session.config.getoption("keyword"):
        return
    day = time.strftime("%Y-%m-%d")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {
        "device": "simulated",
        "machine": f"{_cpu()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "date": day,
        "command": "make bench",
        "commit": commit,
        "rows": _rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"simulated-{day}.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [f"# Simulated GPU, {day}", "", f"{result['machine']}; `make bench` at {commit}", "",
             "| number | measured | baseline of the same run | target | |", "|---|---|---|---|---|"]  # fmt: skip
    for row in _rows:
        verdict = "ok" if row["holds"] else "missed"
        lines.append(f"| {row['name']} | {row['measured']} | {row['baseline']} | {row['target']} | {verdict} |")
    (RESULTS / f"simulated-{day}.md").write_text("\n".join(lines) + "\n")
