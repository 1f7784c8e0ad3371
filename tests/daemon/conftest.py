"""A real daemon process over simulated devices, in a state directory of its own, ended with all it started."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import paths
from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.paths import Layout

DEADLINE = 20.0
JOINER = Path(__file__).with_name("joiner.py")


def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> object:
    """The condition's first true value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


class Daemon:
    def __init__(self, state_dir: Path, *options: str) -> None:
        self.state_dir = state_dir
        self.layout = Layout.of(state_dir)
        self.options = options or ("--simulate", "2x16GiB")
        self.environment = {**os.environ, "GPUSHARE_SOCKET": str(self.layout.socket)}
        self.process: subprocess.Popen[str] | None = None
        self.simulators: set[int] = set()
        self.children: list[subprocess.Popen[str]] = []

    @property
    def client(self) -> Client:
        return Client(self.layout.socket)

    def start(self) -> "Daemon":
        command = [sys.executable, "-m", "gpushare", "daemon", "--state-dir", str(self.state_dir), *self.options]
        with open(self.state_dir / "daemon.log", "a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.state_dir, env=self.environment
            )
        line = self.process.stdout.readline()
        assert line == f"ready {self.layout.socket}\n", (self.state_dir / "daemon.log").read_text()
        self.simulators.add(self.client.node()["sim_pid"])
        return self

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        status = self.process.wait(DEADLINE)
        self.process.stdout.close()
        return status

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()

    def cli(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpushare", *arguments]
        settings = {"capture_output": True, "text": True, "timeout": 60, "cwd": self.state_dir, "env": self.environment}
        return subprocess.run(command, check=False, **(settings | options))

    def run(self, *command: str, memory: str = "1GiB", time: str = "25%") -> subprocess.Popen[str]:
        """`gpushare run` of a command, which talks over its standard streams."""
        full = [sys.executable, "-m", "gpushare", "run", "--memory", memory, "--time", time, "--", *command]
        child = subprocess.Popen(
            full,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=self.state_dir,
            env=self.environment,
        )
        self.children.append(child)
        return child

    def join(self, **options: str) -> tuple[subprocess.Popen[str], str]:
        """A plain process in a grant of its own that has joined it: (process, grant id)."""
        child = self.run(sys.executable, str(JOINER), **options)
        words = child.stdout.readline().split()
        assert words[:1] == ["joined"], (words, (self.state_dir / "daemon.log").read_text())
        return child, words[1]

    def grant_dirs(self) -> set[str]:
        return {path.name for path in self.layout.grants.iterdir()} if self.layout.grants.exists() else set()

    def specs(self) -> list[str]:
        return sorted(path.name for path in self.layout.cdi.iterdir()) if self.layout.cdi.exists() else []

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
        if self.process is not None and self.process.poll() is None:
            self.stop()
        for pid in self.simulators:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.layout.grants, ignore_errors=True)


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    if not paths.SIM_BINARY.exists():
        pytest.fail(f"{paths.SIM_BINARY} is missing: build the project first")
    made: list[Daemon] = []

    def make(*options: str, directory: Path | None = None) -> Daemon:
        if directory is None:
            directory = tmp_path / f"d{len(made)}"
            directory.mkdir(mode=0o755)
        made.append(Daemon(directory, *options))
        return made[-1]

    yield make
    for daemon in made:
        daemon.end()


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    return make_daemon().start()


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.client


@pytest.fixture
def wait_for() -> Callable[..., object]:
    return until


@pytest.fixture
def phase_of(client: Client) -> Callable[[str], str]:
    def phase(grant_id: str) -> str:
        try:
            return client.grant(grant_id)["phase"]
        except GpushareError as error:
            return type(error).__name__

    return phase
