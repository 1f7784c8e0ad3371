"""Real Ray on one machine: its workers run in grants of their num_gpus fractions. Run by `make test-ray`."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run.running import SPIN, Daemon
from run.waiting import until

PYTHON = os.environ.get("GPUSHARE_RAY_PYTHON", "")
PLUGINS = [{"class": "gpushare.adapters.ray.plugin.Plugin"}]
GIB = 1 << 30

pytestmark = pytest.mark.skipif(not PYTHON, reason="make test-ray sets GPUSHARE_RAY_PYTHON")


class Driver:
    def __init__(self, daemon: Daemon, directory: Path) -> None:
        env = {**daemon.env, "RAY_RUNTIME_ENV_PLUGINS": json.dumps(PLUGINS), "RAY_AUTH_MODE": "disabled"}
        self.process = subprocess.Popen(
            [PYTHON, "-P", Path(__file__).with_name("jobs.py"), directory, SPIN],
            env={**env, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def tell(self, *words: Any) -> Any:
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        """Returns the next JSON line, skipping the lines that Ray and its workers print."""
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue
        raise AssertionError("the driver ended")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    directory.chmod(0o755)
    daemon = Daemon(directory / "state", "1x16GiB").start()
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def driver(daemon) -> Iterator[Driver]:
    driver = Driver(daemon, daemon.state_dir.parent / "ray")
    try:
        yield driver
    finally:
        driver.kill()


def working(daemon: Daemon, *shares: int) -> dict[int, dict[str, Any]]:
    """Waits until the grants whose programs have joined have these milli of time; returns them by milli."""

    def found() -> dict[int, dict[str, Any]] | None:
        grants = {grant["devices"][0]["time_milli"]: grant for grant in daemon.client.grants() if grant["processes"]}
        return grants if set(grants) == set(shares) else None

    return until(found, f"tasks with {shares} work", 60)


def test_fractions_hold_and_end(daemon, driver):
    driver.tell("task", {"num_gpus": 0.3})
    driver.tell("task", {"num_gpus": 0.7, "memory": "8GiB"})
    grants = working(daemon, 300, 700)
    limits = {milli: grant["devices"][0]["memory_limit_bytes"] for milli, grant in grants.items()}
    assert limits[700] == 8 * GIB
    assert abs(limits[300] - 0.3 * 16 * GIB) < 2 << 20
    pids = [grants[milli]["processes"][0] for milli in (300, 700)]
    began = daemon.busy(*pids)
    until(lambda: sum(daemon.busy(*pids)) > sum(began) + 1_500_000_000, "they work for a while", 60)
    got = [after - before for before, after in zip(began, daemon.busy(*pids), strict=True)]
    assert abs(got[0] / sum(got) - 0.3) < 0.1, got

    # Ray counts two devices here, the node has one: the third task starts only when another one ends.
    driver.tell("task", {"num_gpus": 0.2})
    daemon.kill()
    daemon.start()
    working(daemon, 300, 700)
    driver.tell("cancel", 0)
    working(daemon, 200, 700)

    driver.kill()
    daemon.nothing_left()


def test_actors(daemon, driver):
    grant, gpus = driver.tell("actor", {"num_gpus": 0.5, "tenant": "default"})
    (held,) = daemon.client.grants()
    assert Path(grant).parent.name == held["id"]
    assert gpus == [held["devices"][0]["id"]]
    driver.tell("kill", 0)
    until(lambda: not daemon.client.grants(), "the actor's grant ends", 30)


def test_what_can_never_be_granted_is_reported(daemon, driver):
    assert "tenant" in driver.tell("fails", {"num_gpus": 0.5, "tenant": "stranger"})
    assert "needs time" in driver.tell("fails", {"num_gpus": 0.5, "runtime_env": {"gpushare": {"memory": "1GiB"}}})
    assert not daemon.client.grants(ended=True)
