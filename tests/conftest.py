"""Fixtures for all tests: a real daemon with its simulator, in its own state directory."""

import functools
import gc
import os
import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from run.running import Daemon
from timing import quiet, timed
from values import drawn

# The installed package is tested: programs started here must not import from their working directory.
os.environ["PYTHONSAFEPATH"] = "1"
# We fork only to execute: gRPC's handlers would start a thread in between, which aborts the child when Python has
# closed that thread's descriptors (https://github.com/grpc/grpc/issues/43055).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# pytest-xdist sets them in its processes; programs in a test's terminal would trust them.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)

# jsonschema imports it if installed: it spends a second compiling a grammar for a format that no schema here uses.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# The same examples in every run here, and different ones in every run of make test-slow. Examples have no deadline,
# because the machine may be busy.
calm = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("few", max_examples=15, derandomize=True, **calm)
settings.register_profile("many", max_examples=60, **calm)
settings.load_profile("few")

# These tests use names that are global on the machine: engines, control groups.
MACHINE_WIDE = ("containers", "unit/enforce")
# What the tests in each of these directories share is expensive to start, so one process runs them all.
TOGETHER = ("dra",)
TIMING = Path(__file__).parent / "interposer/timing"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    timed.pytest_addoption(parser)
    pluginmanager.register(drawn)


def pytest_configure(config: pytest.Config) -> None:
    os.environ[quiet.MARK] = str(os.getpid())
    config.pluginmanager.register(timed.Timed(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Turns the garbage collector off: almost nothing is garbage yet, and scanning takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # thousands of test items that no later collection need scan
        gc.enable()


@functools.cache
def group_of(file: Path) -> str | None:
    """The group whose tests one process runs one after the other; None if any process may run them."""
    here = Path(__file__).parent
    if any(file.is_relative_to(here / part) for part in MACHINE_WIDE):
        return "machine"
    return next((part for part in TOGETHER if file.is_relative_to(here / part)), None)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for number, item in enumerate(items):
        if name := group_of(item.path):
            item.add_marker(pytest.mark.xdist_group(name))
        group = item.get_closest_marker("xdist_group")
        if group and "timing" in group.args and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timing)
            # The shared group is for runs of all tests. Few tests that measure time run at once, so each gets its own.
            item.add_marker(pytest.mark.xdist_group(f"timing-{number}"))
        # `make test` looks for them only in that directory.
        if (
            item.get_closest_marker("timing")
            and not item.get_closest_marker("slow")
            and TIMING not in item.path.parents
        ):
            raise pytest.UsageError(f"{item.nodeid} measures time and is not slow: it belongs to {TIMING}")
    items.sort(key=may_take_s, reverse=True)


def may_take_s(item: pytest.Item) -> float:
    """What takes minutes begins first, so that nothing waits for it alone at the end."""
    limit = item.get_closest_marker("timeout")
    return 0.0 if limit is None or item.get_closest_marker("timing") else max(float(limit.args[0]), 120.0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Fails without groups, which some versions of pytest and pytest-xdist lack: tests would disturb each other."""
    alone = [name for name in ids if name.startswith(tuple(f"tests/{part}" for part in MACHINE_WIDE))]
    if node.config.getoption("dist") == "loadgroup" and any("@machine" not in name for name in alone):
        raise pytest.UsageError("this pytest-xdist makes no groups with this pytest: see pyproject.toml")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Removes the group that pytest-xdist appends to a test's name: --last-failed and --not-run would not find that."""
    if hasattr(report, "node"):  # from a worker; inside the worker pytest-xdist compares the names
        report.nodeid = re.sub(r"@[a-z0-9_-]+$", "", report.nodeid)


@pytest.fixture(
    params=[False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timing])], ids=["rough", "exact"]
)
def exact(request: pytest.FixtureRequest) -> bool:
    """Runs the test twice: with bounds that hold on any machine and, only in make test-slow, with those of a quiet
    machine."""
    return bool(request.param)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Daemon]:
    """A running daemon with one simulated 16 GiB device."""
    daemon = Daemon(tmp_path / "state")
    try:
        yield daemon.start()
    finally:
        daemon.stop()
