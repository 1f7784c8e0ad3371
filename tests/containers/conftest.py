"""A daemon with a simulated device for these tests, and containers under runc with the runtime wrapper."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.cdi_engine import Runtime
from machine import cgroups
from run.running import Daemon, daemon_apart

from gpushare.demo import bundle
from gpushare.paths import RUNTIME_WRAPPER

SHARE = {"memory": "1GiB", "time": "30%"}


@pytest.fixture(scope="session")
def shared_node() -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    with daemon_apart() as node:
        yield node


@pytest.fixture
def node(shared_node: Daemon) -> Iterator[Daemon]:
    """The daemon shared by these tests; each test ends its grants."""
    if shared_node.process.poll() is not None:
        shared_node.start()
    yield shared_node
    if shared_node.process.poll() is not None:
        shared_node.start()
    shared_node.nothing_left()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A replacement for tmp_path, which is too long for a socket address."""
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        yield Path(directory)


class Runc:
    def __init__(self, directory: Path, socket: Path) -> None:
        self.directory, self.wrapper = directory, [str(RUNTIME_WRAPPER), f"--gpushare-socket={socket}"]
        self.wrapper += ["--root", str(directory / "runc")]
        self.names: list[str] = []

    def command(
        self, *program: str, annotations: dict[str, str] | None = None, change=lambda config: None
    ) -> list[str]:
        """Creates a bundle; returns the command line that runs it. `annotations`: without their prefix."""
        name = f"gst-{os.getpid()}-{len(self.names)}"
        self.names.append(name)
        where = self.directory / name
        wanted = {f"gpushare.dev/{key}": value for key, value in (annotations or {}).items()}
        bundle.make(where, wanted, list(program), f"/{cgroups.NAME}/{name}")
        config = json.loads((where / "config.json").read_text())
        change(config)
        (where / "config.json").write_text(json.dumps(config))
        return [*self.wrapper, "run", "--bundle", str(where), name]

    def run(self, *program: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command(*program, **options), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )

    def start(self, *program: str, **options) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(*program, **options),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def config(self) -> dict:
        """The config.json of the newest bundle: as edited by the wrapper, if no hook has put its own back."""
        return json.loads((self.directory / self.names[-1] / "config.json").read_text())

    def grant(self) -> str:
        state = subprocess.run([*self.wrapper, "state", self.names[-1]], capture_output=True, text=True).stdout
        return (json.loads(state) if state else self.config())["annotations"]["gpushare.dev/grant"]

    def delete_all(self) -> None:
        for name in self.names:
            subprocess.run([*self.wrapper, "delete", "--force", name], capture_output=True)


@pytest.fixture
def runc(node: Daemon, short_path: Path) -> Iterator[Runc]:
    if shutil.which("runc") is None:
        pytest.skip("runc is not installed")
    runner = Runc(short_path, node.layout.socket)
    yield runner
    runner.delete_all()
    cgroups.remove()


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Daemon]:
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("containers need root and runc")
    with daemon_apart(simulate="2x8GiB") as node:
        yield node


@pytest.fixture
def pair(shared_pair: Daemon) -> Iterator[Daemon]:
    yield shared_pair
    if shared_pair.process.poll() is not None:
        shared_pair.start()
    shared_pair.nothing_left()


@pytest.fixture
def runtime(pair: Daemon, short_path: Path) -> Iterator[Runtime]:
    made = Runtime(short_path, pair)
    yield made
    made.end()
    cgroups.remove()
