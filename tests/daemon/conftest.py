"""Daemons over two simulated devices, and plain processes that join them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import running
from running import until

from gpushare import paths
from gpushare.client import Client
from gpushare.errors import GpushareError

JOINER = Path(__file__).with_name("joiner.py")


class Daemon(running.Daemon):
    def __init__(self, state_dir: Path, *options: str) -> None:
        super().__init__(state_dir, "" if options else "2x16GiB", options=options)
        self.children: list[subprocess.Popen[str]] = []

    def tenant(self, *command: str, memory: str = "1GiB", time: str = "25%", **options: str) -> subprocess.Popen[str]:
        """`gpushare run` of a command, which talks over its standard streams."""
        child = subprocess.Popen(
            self.run(memory, time, *command, **options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=self.env,
        )
        self.children.append(child)
        return child

    def join(self, **options: str) -> tuple[subprocess.Popen[str], str]:
        """A plain process in a grant of its own that has joined it: (process, grant id)."""
        child = self.tenant(sys.executable, str(JOINER), **options)
        words = child.stdout.readline().split()
        assert words[:1] == ["joined"], (words, self.log.read_text())
        return child, words[1]

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
        self.stop()


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
    return lambda condition, what, seconds=20.0: until(condition, seconds, what)


@pytest.fixture
def phase_of(client: Client) -> Callable[[str], str]:
    def phase(grant_id: str) -> str:
        try:
            return client.grant(grant_id)["phase"]
        except GpushareError as error:
            return type(error).__name__

    return phase
