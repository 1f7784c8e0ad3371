"""Real daemons, tenants and simulator statistics for tests and benchmarks. Each process started here is ended here, by
pid."""

import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from run import zygote
from run.waiting import until

from gpushare import paths
from gpushare.cli.main import main as cli_main
from gpushare.client import Client
from gpushare.enforce import cgroup
from gpushare.errors import GpushareError
from gpushare.inject import cdi, grantdir, grantfiles
from gpushare.node import standins
from gpushare.node.devices import MAX_DEVICES
from gpushare.paths import LOCK, SIM_LIB_DIR, SOCKET_ENV, Layout

SPIN = paths.LIB_DIR / "gpushare-spin"
GPUSHARE = (sys.executable, "-m", "gpushare")
# On a busy machine the ledger's thread may be late, and the ledger then goes on without it. Other tests cover that
# (tests/daemon/ledger).
LEDGER_PATIENCE = dict.fromkeys(("WAIT_SECONDS", "_START_SECONDS", "_CLOSE_SECONDS"), 20)
PATIENT = (
    "from gpushare.ledger import ledger",
    *(f"ledger.{name} = {value}" for name, value in LEDGER_PATIENCE.items()),
)
# Readers start with the first job. Started ahead of it, as
# tests/daemon/host/test_hung_readers_replaced.py tests, most would be unused, for a tenth of all processor time.
NO_READER_AHEAD = {"reader_ahead": 1e6}


def copied_driver(directory: Path) -> Path:
    """A copy of the simulated driver below this directory: programs of `gpushare run` that open it bypass the
    interposer."""
    copy = directory / "copies" / "libcuda.so.1"
    if not copy.exists():
        copy.parent.mkdir()
        shutil.copy(SIM_LIB_DIR / copy.name, copy)
    return copy


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return False


Running: TypeAlias = "subprocess.Popen[str] | zygote.Forked"


def start(
    command: Sequence[str], env: dict[str, str] | None = None, *, stderr: bool = True, forked: bool = True
) -> Running:
    """Starts a command with text pipes for stdin, stdout and, if `stderr`, stderr. `forked`: from a zygote,
    if possible."""
    env = dict(os.environ) if env is None else env
    if forked and tuple(command[: len(GPUSHARE)]) == GPUSHARE and zygote.can_fork(env):
        return zygote.fork_command(env, command[len(GPUSHARE) :], stderr=stderr)
    pipe = subprocess.PIPE
    errors = pipe if stderr else None
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=errors, text=True, bufsize=1)


class Daemon:
    """`gpushare daemon --simulate ...` with its own state directory. The object remains usable across `kill` and
    `start`."""

    forked = True
    """Whether it is forked from a process that has imported the daemon, rather than started as a command."""

    patches = PATIENT
    """Python that every daemon runs before it starts."""

    timing: Mapping[str, float] = NO_READER_AHEAD
    """Seconds by the fields of Timing (gpushare/daemon/timing.py), for every daemon."""

    def __init__(
        self, state_dir: Path, simulate: str = "1x16GiB", env: dict[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        """`simulate`: an empty text omits the option. `options`: further daemon options. `env`: for the daemon and
        programs started through this object."""
        self.state_dir = state_dir
        self.layout = Layout.of(state_dir)
        devices = ["--simulate", simulate] if simulate else []
        self.options = ["daemon", *devices, "--state-dir", os.fspath(state_dir), *options]
        self.statements = list(self.patches)
        self.intervals = dict(self.timing)
        self.patch()
        self.env = {**os.environ, **(env or {}), SOCKET_ENV: str(self.layout.socket)}
        self.client = Client(self.layout.socket)
        self.process: subprocess.Popen[bytes] | zygote.Process | None = None
        self.log = state_dir / "daemon.log"
        self.simulators: dict[int, int] = {}
        """A pidfd of each simulator that the daemon has started, by pid; a pid alone may be reused."""
        self.caught: set[tuple[int, int]] = set()
        """Findings that the test expected, as (daemon epoch, seq)."""

    def patch(self, *statements: str) -> Self:
        """Adds Python statements that the daemon runs before it starts."""
        self.statements += statements
        program = "\n".join((*self.statements, "from gpushare.cli.main import entry", "entry()"))
        given = ",".join(f"{name}={seconds}" for name, seconds in self.intervals.items())
        self.command = [sys.executable, "-c", program, *self.options, *(("--timing", given) if given else ())]
        return self

    def quicken(self, **seconds: float) -> Self:
        """Sets intervals of the daemon, the fields of Timing (gpushare/daemon/timing.py), so that a test need not wait
        for them."""
        self.intervals |= seconds
        return self.patch()

    @contextlib.contextmanager
    def started_with(self, *statements: str, **seconds: float) -> Iterator[None]:
        """Restarts the daemon with additional statements, as `patch` takes them, and other intervals, as `quicken`
        takes them; at the end restarts it without."""
        self.terminate()
        before, intervals = list(self.statements), dict(self.intervals)
        try:
            self.quicken(**seconds).patch(*statements).start()
            yield
            self.nothing_left()
        finally:
            self.terminate()
            self.statements, self.intervals = before, intervals
            self.patch().start()

    @contextlib.contextmanager
    def configured(self, before: str, after: str) -> Iterator[None]:
        """Restarts the daemon with another text in its gpushare.toml; at the end restarts it with the one it had."""
        config = self.state_dir / "gpushare.toml"
        text = config.read_text()
        config.write_text(text.replace(before, after))
        with self.started_with():
            try:
                yield
            finally:
                config.write_text(text)

    def start(self) -> Self:
        self.state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            if self.forked and zygote.can_fork(self.env):
                program, *arguments = self.command[2:]
                patched = tuple(self.statements) != self.patches
                self.process = zygote.fork_daemon(self.env, program, arguments, log.fileno(), patched=patched)
            else:
                self.process = subprocess.Popen(
                    self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        until(self.answers, lambda: f"daemon ready, see {self.log.read_text()[-2000:]}", 20)
        if pid := self.client.node().get("sim_pid"):
            with contextlib.suppress(KeyError):
                os.close(self.simulators.pop(pid))
            with contextlib.suppress(ProcessLookupError):
                self.simulators[pid] = os.pidfd_open(pid)
        return self

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"daemon ended: {self.log.read_text()[-2000:]}"
        try:
            self.client.version()
        except GpushareError:
            return False
        return True

    def away(self) -> None:
        """Leaves the node as if no daemon had run there since the machine was started."""
        self.kill()
        self.layout.socket.unlink()
        (self.layout.run / LOCK).unlink()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Asks the daemon to exit; returns its status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(20)

    def stop(self) -> None:
        """Stops the daemon, and cleans up the simulator and files that the daemon keeps for living tenants."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()
        for pidfd in self.simulators.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        if self.simulators:
            standins.forget(self.layout.sim, MAX_DEVICES)
        self.simulators.clear()
        for name in self.grant_dirs():
            grantfiles.remove(self.layout, name)
        shutil.rmtree(self.layout.grants, ignore_errors=True)

    def cli(self, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs `gpushare ARGUMENTS` against this daemon. `options`: for subprocess.run."""
        if options.keys() <= {"env"} and zygote.can_fork(env := options.get("env", self.env)):
            words = [*GPUSHARE, *map(str, arguments)]
            child = start(words, env)
            printed, reply = child.communicate(60)
            return subprocess.CompletedProcess(words, child.wait(), printed, reply)
        settings = {"capture_output": True, "text": True, "timeout": 60, "env": self.env, **options}
        return subprocess.run([*GPUSHARE, *map(str, arguments)], check=False, **settings)

    def cli_begun(self, *arguments: object) -> subprocess.Popen[str]:
        """Starts `gpushare ARGUMENTS`; whoever calls reads what it prints, and waits for its end."""
        pipe, words = subprocess.PIPE, [*GPUSHARE, *map(str, arguments)]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=self.env)

    def cli_here(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs the same in this process, without starting an interpreter."""
        words = list(map(str, arguments))
        out, err = io.StringIO(), io.StringIO()
        before = os.environ.get(SOCKET_ENV)
        os.environ[SOCKET_ENV] = self.env[SOCKET_ENV]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli_main(words)
        finally:
            os.environ.pop(SOCKET_ENV)
            if before is not None:
                os.environ[SOCKET_ENV] = before
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    def cgroup(self, grant: str) -> cgroup.Cgroup:
        """The cgroup of a plain process's grant."""
        return cgroup.Cgroup((self.layout.cgroups / grant).readlink(), cgroup.Hierarchies.of().unified is not None)

    def rows(self, query: str) -> list[Any]:
        """Rows of the ledger's file, after the daemon has written everything that it has passed to the ledger."""
        if self.process is not None and self.process.poll() is None:
            self.written()
        with contextlib.closing(sqlite3.connect(self.layout.ledger)) as ledger:
            return ledger.execute(query).fetchall()

    def written(self) -> None:
        """Waits until the ledger's file has what the daemon has passed to the ledger. The daemon does not wait for the
        row of an ended grant, but the ledger's thread answers a query only after it has written that row."""
        self.client.grants(ended=True)

    def grant_dirs(self) -> set[str]:
        """The directories of grants. The ledger also keeps files there, with rows that its disk does not have yet."""
        found = self.layout.grants.iterdir() if self.layout.grants.exists() else ()
        return {path.name for path in found if path.is_dir()} - {grantdir.STAND_IN}

    def specs(self) -> list[str]:
        """The CDI specs of grants."""
        found = {path.name for path in self.layout.cdi.iterdir()} if self.layout.cdi.exists() else set()
        return sorted(found - {cdi.spec_path(self.layout, cdi.ANY).name})

    def findings(self, **wanted: object) -> list[dict[str, Any]]:
        """The audit's findings that have these values. They count as expected, not as false alarms."""
        answer = self.client.call("GET", "/v1/findings")
        rows = [row for row in answer["findings"] if all(row[name] == value for name, value in wanted.items())]
        self.caught.update((answer["epoch"], row["seq"]) for row in rows)
        return rows

    def false_alarms(self) -> list[dict[str, Any]]:
        """The audit's findings about grants that no test expected."""
        answer = self.client.call("GET", "/v1/findings")
        rows = [row for row in answer["findings"] if row["grant"] is not None]
        return [row for row in rows if (answer["epoch"], row["seq"]) not in self.caught]

    def nothing_left(self) -> None:
        """Asserts that no grant is left nor any trace of one (directories, CDI specs, cgroups, device memory), and that
        there are no false alarms."""
        assert not self.false_alarms()
        until(lambda: not self.client.grants(), "the grants end", 60)
        # The daemon removes files of an unused grant in the background.
        until(
            lambda: not self.grant_dirs() and not self.specs(),
            lambda: f"files go: {self.grant_dirs()} {self.specs()}",
            20,
        )
        # Includes cgroups of earlier runs: grant names are never reused. They are siblings of this process's own.
        ours = {f"{cgroup.PREFIX}{grant['id']}" for grant in self.client.grants(ended=True)}
        parent = cgroup.below(os.getpid(), "any").path.parent
        until(lambda: not ours.intersection(os.listdir(parent)), "the cgroups go", 20)
        until(lambda: not (self.layout.cgroups.exists() and os.listdir(self.layout.cgroups)), "the links go", 20)
        until(
            lambda: not any(book["bytes"] for book in self.client.sim_stats()["devices"]), "the memory comes back", 20
        )
        held = [device["guaranteed"] for device in self.client.devices()]
        assert held == [{"time": 0, "memory": 0}] * len(held)

    @property
    def sim_dir(self) -> str:
        return str(self.client.node()["sim_dir"])

    def run(self, memory: str, time_share: str, *command: str | Path, **options: str) -> list[str]:
        """Builds the command line of `gpushare run`."""
        extra = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        asked = ["--socket", str(self.client.path), "--memory", memory, "--time", time_share]
        return [*GPUSHARE, "run", *asked, *extra, "--", *map(str, command)]

    def spin(self, memory: str, time_share: str, **options: str) -> "Tenant":
        return Tenant(self.run(memory, time_share, SPIN, **options))

    def books(self, device: int = 0) -> dict[str, Any]:
        """The simulator's statistics of a device."""
        return dict(self.client.sim_stats()["devices"][device])

    def busy(self, *pids: int) -> list[int]:
        """Device time used so far by each process, according to the simulator."""
        rows = {row["pid"]: row["busy_ns"] for row in self.books()["processes"]}
        return [rows.get(pid, 0) for pid in pids]

    def shares(self, seconds: float, *pids: int) -> list[float]:
        """Each process's share of their combined device time over a window, in per mille, according to the
        simulator."""
        before = self.busy(*pids)
        time.sleep(seconds)
        got = [after - at for at, after in zip(before, self.busy(*pids), strict=True)]
        return [1000 * one / max(1, sum(got)) for one in got]


@contextlib.contextmanager
def daemon_apart(
    kind: type[Daemon] = Daemon, simulate: str = "1x16GiB", env: dict[str, str] | None = None, config: str = ""
) -> Iterator[Daemon]:
    """A daemon in its own directory, whose path, unlike tmp_path, is short enough for a socket address. `config`: the
    text of gpushare.toml."""
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    (directory / "gpushare.toml").write_text(config)
    node = kind(directory, simulate, env, ["--config", str(directory / "gpushare.toml")])
    try:
        yield node.start()
    finally:
        node.stop()
        shutil.rmtree(directory, ignore_errors=True)


class Tenant:
    """A gpushare-spin process that accepts commands, started by any command line."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = start(command, env)
        self.pid = self.process.pid  # `gpushare run` execs the command, so the pid stays the same
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line, f"no tenant: {self.process.stderr.read()}"  # type: ignore[union-attr]
        self.ready = json.loads(line)

    def tell(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: reported below, with its stderr
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            code, words = self.process.wait(10), self.process.stderr.read()  # type: ignore[union-attr]
            raise AssertionError(f"tenant ended at {command!r} with {code}: {words}")
        return dict(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self.process.stdin.close()  # type: ignore[union-attr]
                self.process.wait(5)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]
