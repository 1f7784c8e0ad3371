"""Daemons with two simulated devices, and plain processes that join them.

Tests share a daemon and leave it in its initial state. A test that needs a fresh daemon, or its own options, creates
one.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remote import elsewhere
from run import running
from run.built import SUPPORT
from run.waiting import until

from gpushare import paths
from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.ledger import ledger as ledgers

JOINER = SUPPORT / "run" / "joiner.py"


class Daemon(running.Daemon):
    def __init__(self, state_dir: Path, *options: str) -> None:
        super().__init__(state_dir, "" if options else "2x16GiB", options=options)
        self.children: list[running.Running] = []

    def tenant(
        self, *command: str, memory: str = "1GiB", time: str = "25%", forked: bool = True, **options: str
    ) -> running.Running:
        """Starts a command with `gpushare run`, with pipes for stdin and stdout. `forked`: from a zygote, if
        possible; the process is then the zygote's child."""
        child = running.start(self.run(memory, time, *command, **options), self.env, stderr=False, forked=forked)
        self.children.append(child)
        return child

    def join(self, **options: Any) -> tuple[running.Running, str]:
        """A plain process that has joined a grant of its own: (process, grant id). `options`: as for `tenant`."""
        child = self.tenant(sys.executable, str(JOINER), **options)
        words = child.stdout.readline().split()
        assert words[:1] == ["joined"], (words, self.log.read_text())
        return child, words[1]

    def end_children(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.stdout.close()
        self.children.clear()

    def settle(self) -> None:
        """Ends what the test started, and asserts that nothing remains."""
        self.end_children()
        if self.process.poll() is not None:
            self.start()
        for device in self.client.devices():
            if device["health"] != "healthy":
                self.client.set_sim_lost(device["index"], lost=False)
            if device["state"] != "ready":
                self.client.undrain(device["id"])
        until(lambda: {device["health"] for device in self.client.devices()} == {"healthy"}, "the devices work", 20)
        for grant in self.client.grants():
            self.client.release(grant["id"])
        while tenants := [tenant for tenant in self.client.tenants() if tenant["source"] != "built-in"]:
            parents = {tenant["parent"] for tenant in tenants}
            for tenant in tenants:
                if tenant["name"] not in parents:
                    self.client.remove_tenant(tenant["name"], tenant["source"])
        self.nothing_left()

    def end(self) -> None:
        self.end_children()
        self.stop()


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Makes ledgers in this process wait for their threads as long as those of daemons under test."""
    with pytest.MonkeyPatch.context() as change:
        for name, value in running.LEDGER_PATIENCE.items():
            change.setattr(ledgers, name, value)
        yield


Make = Callable[..., Daemon]


@contextlib.contextmanager
def maker() -> Iterator[Make]:
    """Creates daemons without starting them, and ends them."""
    if not paths.SIM_BINARY.exists():
        pytest.fail(f"{paths.SIM_BINARY} is missing: build the project first")
    made: list[Daemon] = []
    # Not tmp_path, which is too long for a socket address.
    with tempfile.TemporaryDirectory(prefix="gst-") as short:
        Path(short).chmod(0o755)

        def make(*options: str, directory: Path | None = None) -> Daemon:
            if directory is None:
                directory = Path(short, f"d{len(made)}")
                directory.mkdir(mode=0o755)
            made.append(Daemon(directory, *options))
            return made[-1]

        yield make
        for daemon in made:
            daemon.end()


@pytest.fixture
def make_daemon() -> Iterator[Make]:
    with maker() as make:
        yield make


class Shared:
    """A daemon shared by tests; replaced if a test left it in a bad state."""

    def __init__(self, make: Callable[[], Daemon]) -> None:
        self._make = make
        self._daemon: Daemon | None = None

    def take(self) -> Daemon:
        if self._daemon is None:
            self._daemon = self._make().start()
            self._socket = self._daemon.layout.socket.stat()
        return self._daemon

    def give_back(self) -> None:
        daemon, self._daemon = self._daemon, None
        daemon.settle()
        # Whoever it was open to: the next test begins with a daemon of root's alone.
        os.chown(daemon.layout.socket, self._socket.st_uid, self._socket.st_gid)
        daemon.layout.socket.chmod(self._socket.st_mode & 0o777)
        self._daemon = daemon


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    with maker() as make:
        yield Shared(make)


@pytest.fixture(scope="session")
def shared_attentive() -> Iterator[Shared]:
    with maker() as make:
        yield Shared(lambda: make().quicken(health=0.05, tick=0.2))


@pytest.fixture(scope="session")
def shared_lone() -> Iterator[Shared]:
    with maker() as make:
        yield Shared(lambda: make("--simulate", "1x16GiB"))


def _lending(make: Make, more: str = "") -> Daemon:
    node = make("--simulate", "2x16GiB")
    config = node.state_dir / "gpushare.toml"
    config.write_text(f'[memory]\nhost_pool = "64GiB"\nmove_seconds = 60\n{more}')
    node.options += ["--config", str(config)]
    # Nothing is ever drawn from it: the machine may have less.
    node.patch("from gpushare.hostpool import memory_file", "memory_file.available = lambda: 1 << 40")
    return node


@pytest.fixture(scope="session")
def shared_lending() -> Iterator[Shared]:
    with maker() as make:
        yield Shared(lambda: _lending(make))


@pytest.fixture(scope="session")
def shared_quick() -> Iterator[Shared]:
    with maker() as make:
        yield Shared(lambda: _lending(make, "idle_after_seconds = 0.3\n"))


def _reachable(make: Make) -> Daemon:
    node = make("--simulate", "2x16GiB")
    carriers, config = node.state_dir / "carriers", node.state_dir / "gpushare.toml"
    config.write_text(f'[remote]\nlisten = "127.0.0.1:0"\ncarriers = "{carriers}"\nattachments = 40\n')
    for name, argv in (("echo", elsewhere.ECHO), ("ends", elsewhere.ENDS), ("silent", elsewhere.SILENT)):
        elsewhere.contract(carriers, name, argv)
    elsewhere.contract(carriers, "numbered", elsewhere.ECHO, ("/bin/echo", "1.2"))
    node.options += ["--config", str(config)]
    return node.quicken(heard=120)  # programs of tests do not say each second that they live


@pytest.fixture(scope="session")
def shared_reachable() -> Iterator[Shared]:
    with maker() as make:
        yield Shared(lambda: _reachable(make))


@pytest.fixture
def daemon(shared: Shared) -> Iterator[Daemon]:
    yield shared.take()
    shared.give_back()


@pytest.fixture
def attentive(shared_attentive: Shared) -> Iterator[Daemon]:
    """A daemon that often checks the health of its devices and measures what grants got."""
    yield shared_attentive.take()
    shared_attentive.give_back()


@pytest.fixture
def lone(shared_lone: Shared) -> Iterator[Daemon]:
    """A daemon with one device."""
    yield shared_lone.take()
    shared_lone.give_back()


@pytest.fixture
def lending(shared_lending: Shared) -> Iterator[Daemon]:
    """A daemon whose host pool has room for its devices on whatever machine, and that waits for moves."""
    yield shared_lending.take()
    shared_lending.give_back()


@pytest.fixture
def quick(shared_quick: Shared) -> Iterator[Daemon]:
    """The same, on which programs are idle after 0.3 s."""
    yield shared_quick.take()
    shared_quick.give_back()


@pytest.fixture
def reachable(shared_reachable: Shared) -> Iterator[Daemon]:
    """A daemon that takes programs of other machines, with carriers that carry nothing (remote/elsewhere.py)."""
    node = shared_reachable.take()
    until(lambda: node.client.remote()["relay"], "the relay serves")
    yield node
    shared_reachable.give_back()


@pytest.fixture
def fresh(make_daemon: Make) -> Daemon:
    """A new daemon, not used by other tests."""
    return make_daemon().start()


@pytest.fixture
def public(daemon):
    """A daemon whose directories other users can traverse, as they can traverse /run."""
    before = daemon.layout.socket.stat()
    yield daemon
    os.chown(daemon.layout.socket, before.st_uid, before.st_gid)
    daemon.layout.socket.chmod(before.st_mode & 0o777)


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.client


@pytest.fixture
def phase_of(client: Client) -> Callable[[str], str]:
    def phase(grant_id: str) -> str:
        try:
            return client.grant(grant_id)["phase"]
        except GpushareError as error:
            return type(error).__name__

    return phase
