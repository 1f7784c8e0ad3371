"""Each number is a ratio or a difference within one run. Results, with date and machine, go to bench/results, and are
printed next to the stored run's."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run.running import Daemon
from timing import quiet

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), *(str(path) for path in sorted(BENCH.iterdir()) if path.is_dir())]

import record  # noqa: E402

os.environ["PYTHONSAFEPATH"] = "1"  # the installed package, not the tree
os.environ[quiet.MARK] = str(os.getpid())  # tells what is started here from other programs
Daemon.timing = {}  # daemons start a reader ahead, as installed ones do
_rows: list[dict[str, Any]] = []


def _kind(config: pytest.Config) -> str:
    """The name of the result that this run is of: of one file, without `test_`; else `bench`."""
    given = Path(config.args[0])
    return given.stem.removeprefix("test_") if len(config.args) == 1 and given.suffix == ".py" else "bench"


def _whole(config: pytest.Config) -> bool:
    """Whether the run is all of it: a part is not stored."""
    given = Path(config.args[0])
    whole = given.suffix == ".py" or given.resolve() == BENCH
    return whole and len(config.args) == 1 and not config.getoption("keyword")


class Report:
    """Collects rows: name, measured, baseline, target, and whether it holds. The first number in `measured` is compared
    with the stored run's."""

    def __call__(self, name: str, measured: str, baseline: str, target: str, holds: bool) -> None:
        row = {"name": name, "measured": measured, "baseline": baseline, "target": target, "holds": holds}
        _rows.append(row)
        verdict = "ok" if holds else "MISSED"
        print(f"\n{name}: {measured} (against {baseline}; target {target}) {verdict}", file=sys.stderr)


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _rows:
        terminalreporter.section("compared with the stored run")
        stored = record.stored(_kind(config))
        whole = _whole(config) and bool(stored)
        for line in record.side_by_side(stored or record.stored("bench"), _rows, whole=whole):
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Stores the result after the terminal's summary has compared it with the stored one."""
    yield
    if _rows and not session.testsfailed and _whole(session.config):
        kind = _kind(session.config)
        record.save(kind, "make bench" if kind == "bench" else f"pytest {session.config.args[0]}", _rows)
