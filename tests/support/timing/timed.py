"""Judges the tests that measure time (marker `timing`), each by its one try.

The try counts only if the machine was quiet during the test's call (quiet.py). If it was not, the test is reported as
not run, whatever its result was: neither passed nor failed. `--not-run` then runs only those tests, for a second time
alone, and fails if too many of all remain without a result: a run that measured nothing proves nothing.
"""

from collections.abc import Generator
from typing import Any

import pytest
from timing import quiet

NOT_RUN = "not run"
KEPT = "timing/not-run"
"""The last run in pytest's cache: how many tests measured time, and the names of those that were not run."""
MOST = 0.2
"""The part of all tests that may remain without a result."""

BUSY = pytest.mark.xdist_group("busy")
"""For what keeps a processor busy most of the time: of such tests one runs at a time, after those that mostly wait."""

_busy = pytest.StashKey[str]()


def busy(*values: Any) -> list[Any]:
    """Values of a parameter that keep a processor busy."""
    return [pytest.param(value, marks=BUSY) for value in values]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--not-run", action="store_true", help="only what the last run did not run because the machine was busy"
    )


class Timed:
    def __init__(self, config: pytest.Config) -> None:
        self._cache = getattr(config, "cache", None)
        self._worker = hasattr(config, "workerinput")  # of pytest-xdist
        self._again = bool(config.getoption("not_run"))
        if self._again and not self._cache:
            raise pytest.UsageError("--not-run needs pytest's cache")
        nothing = {"of": 0, "names": []}
        self._before = self._cache.get(KEPT, nothing) if self._again and self._cache else nothing
        self._run: list[str] = []
        self._not_run: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool | None:
        """Collects nothing if nothing is left: that alone would take seconds."""
        return True if self._again and not self._before["names"] else None

    @pytest.hookimpl(tryfirst=True)  # before pytest-xdist writes groups into names
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: BUSY.mark in item.iter_markers(BUSY.name))
        if self._again:
            names = set(self._before["names"])
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
            items[:] = [item for item in items if item.nodeid in names]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if item.get_closest_marker("timing") is None:
            return (yield)
        before = quiet.Usage.now()
        try:
            return (yield)
        finally:
            others, there = quiet.Usage.now().others(before)
            item.user_properties.append(("others", f"{others:.3f} of {there:.3f} s"))
            if why := quiet.why_not(others, there):
                item.stash[_busy] = why

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Replaces passed and failed alike."""
        report = yield
        if report.when == "call" and not report.skipped and (why := item.stash.get(_busy, None)):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), (item.location[1] or 0) + 1, f"Skipped: {NOT_RUN}: {why}")
            report.user_properties.append((NOT_RUN, why))
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        if isinstance(report, pytest.TestReport) and NOT_RUN in dict(report.user_properties):
            return NOT_RUN, "n", "NOT RUN"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = dict(report.user_properties)
        if report.when == "call" and NOT_RUN in known:
            self._not_run[report.nodeid] = str(known[NOT_RUN])
        elif report.when == "call" and "others" in known and not report.skipped:
            self._run.append(report.nodeid)

    @property
    def _all(self) -> int:
        return self._before["of"] or len(self._run) + len(self._not_run)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._worker or not self._all:
            return
        if self._cache:
            self._cache.set(KEPT, {"of": self._all, "names": sorted(self._not_run)})
        if self._again and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            too_many = len(self._not_run) > MOST * self._all
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if too_many else pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._all:
            return
        for name, why in sorted(self._not_run.items()):
            terminalreporter.write_line(f"{NOT_RUN}: {name}: {why}")
        left = len(self._not_run)
        answer = f"timing: {self._all - left} run, {left} not run because the machine was busy"
        if self._again and left > MOST * self._all:
            answer += f": more than {MOST:.0%} of them without a result, so this run proves nothing"
        terminalreporter.write_line(answer)
