"""A daemon with simulated devices for one command (`gpushare run --simulate`): it belongs to the user, serves nobody
else, and ends with the command.

A keeper, a process of its own, starts the daemon, starts it again if it dies, and takes everything down when the
command's attendant is gone, however that ended. What it needs is in one directory in memory. If the keeper is killed
too, the next such run of the user removes what it has left.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn, Self

from gpushare.cli.grants.attended import fork
from gpushare.client import Client
from gpushare.errors import FailedError, GpushareError
from gpushare.paths import SIM_BINARY, Layout, in_memory
from gpushare.processes import arguments
from gpushare.processes.helper import end_with_parent

_PREFIX = "gpushare-run-"
_KEPT = "kept"  # locked while its keeper lives
_CONFIG = "gpushare.toml"
_SETTINGS = 'log_level = "warning"\n[memory]\nhost_pool = "0"\n'
"""For a daemon that the node's own configuration, and memory that moves, do not concern."""
_NO_READER = "reader_ahead=1e6"
"""No container is started under it."""
_START_SECONDS = 20.0
_END_SECONDS = 5.0
_STARTS = 5
_READY = b"ready"
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
_PROGRAMS = ("gpushare", SIM_BINARY.name)


class Private:
    """Made by `start`; call `end` when the command has ended."""

    def __init__(self, keeper: int, life: int, directory: Path) -> None:
        self._keeper, self._life, self._directory = keeper, life, directory
        self.client = Client(Layout.of(directory).socket)

    @classmethod
    def start(cls, devices: str) -> Self:
        """Starts a daemon and waits until it serves. `devices`: as `gpushare daemon --simulate` takes them. Raises
        FailedError."""
        directory = _directory()
        life, held = os.pipe()
        told, tell = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            keeper = fork(life, held, told, tell)
        except FailedError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            directory.rmdir()
            raise
        if keeper == 0:
            os.close(held)
            os.close(told)
            _Keeper(directory, devices, life, tell).run(before)
        os.close(life)
        os.close(tell)
        private = cls(keeper, held, directory)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            private._await(told)
        except BaseException:
            private.end()
            raise
        return private

    def _await(self, told: int) -> None:
        with open(told, "rb") as answer:
            reason = answer.read()
        if reason != _READY:
            why = reason.decode(errors="replace") or "its keeper was killed"
            raise FailedError(f"the simulated device cannot be made: {why}")

    def end(self) -> None:
        """Ends the daemon with everything that still runs in its grants, and returns when nothing of it is left."""
        os.close(self._life)
        os.waitpid(self._keeper, 0)
        if self._directory.exists():  # the keeper was killed
            _remove(self._directory)


class _Keeper:
    """Runs in a process of its own. `life`: a pipe that ends with the command's attendant. `tell`: a pipe to it."""

    def __init__(self, directory: Path, devices: str, life: int, tell: int) -> None:
        self._directory, self._life, self._tell = directory, life, tell
        self._layout = Layout.of(directory)
        self._log = directory / "daemon.log"
        self._command = [
            *(sys.executable, "-P", "-m", "gpushare", "daemon", "--simulate", devices),
            *("--state-dir", str(directory), "--config", str(directory / _CONFIG), "--timing", _NO_READER),
        ]
        self._daemon: subprocess.Popen[bytes] | None = None

    def run(self, mask: Collection[int]) -> NoReturn:
        """`mask`: the signals that were blocked before this process was made."""
        try:
            self._detach()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._keep()
        except OSError as error:  # no room, no descriptors
            if self._tell >= 0:
                os.write(self._tell, f"{error.filename or self._directory}: {error.strerror}".encode())
        finally:
            with contextlib.suppress(BaseException):
                self._take_down()
            os._exit(0)

    def _detach(self) -> None:
        """A terminal's signals, and the streams of the command, are none of the keeper's."""
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)

    def _keep(self) -> None:
        lock = os.open(made := self._directory / f".{_KEPT}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.rename(self._directory / _KEPT)  # locked from the first moment that another run can see it
        (self._directory / _CONFIG).write_text(_SETTINGS)
        for _ in range(_STARTS):
            answer = self._start()
            if self._tell >= 0:
                os.write(self._tell, answer)
                os.close(self._tell)
                self._tell = -1
                _remove_abandoned(self._directory)
            if answer != _READY or not self._wait_for_death():
                break
        select.select([self._life], [], [])

    def _start(self) -> bytes:
        """Starts the daemon. Returns _READY once it serves, else why it does not."""
        with open(self._log, "ab") as log:
            self._daemon = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
                preexec_fn=_as_daemon,
                cwd="/",
            )
        output = self._daemon.stdout
        assert output is not None
        select.select([output.fileno(), self._life], [], [], _START_SECONDS)
        if select.select([output.fileno()], [], [], 0)[0] and output.readline().startswith(_READY):
            return _READY
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("gpushare: ").encode() if lines else b"the daemon does not answer"

    def _wait_for_death(self) -> bool:
        """Waits for the end of the daemon or of the command's attendant. Returns whether the daemon alone has ended."""
        assert self._daemon is not None
        pidfd = os.pidfd_open(self._daemon.pid)
        try:
            ended, _, _ = select.select([pidfd, self._life], [], [])
        finally:
            os.close(pidfd)
        return self._life not in ended

    def _take_down(self) -> None:
        if self._daemon is not None:
            with contextlib.suppress(GpushareError):
                client = Client(self._layout.socket)
                for grant in client.grants():
                    client.release(grant["id"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._daemon.terminate()
                self._daemon.wait(_END_SECONDS)
        _remove(self._directory)


def _as_daemon() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()


def _directory() -> Path:
    """Makes the directory: in memory if possible, since the files of grants are."""
    for place in (Path("/dev/shm"), None):  # noqa: S108 - of this user alone
        with contextlib.suppress(OSError):
            if place is None or in_memory(place):
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    raise FailedError("no directory can be made for the simulated device: make room in /dev/shm or in /tmp")


def _remove_abandoned(own: Path) -> None:
    """Removes the directories of this user's other runs whose keepers were killed."""
    for directory in own.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = directory.lstat()  # a link there may be another user's
            if directory == own or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = os.open(directory / _KEPT, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)
            finally:
                os.close(lock)


def _remove(directory: Path) -> None:
    """Kills the daemon and the simulator that still work in a directory, and removes it."""
    for pid in _workers(directory):
        with contextlib.suppress(OSError):
            _kill(pid, directory)
    _unmount(directory)
    layout = Layout.of(directory)
    if layout.run not in layout.grants.parents:
        _unmount(layout.grants)
        shutil.rmtree(layout.grants, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _kill(pid: int, directory: Path) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        if pid in _workers(directory):  # still, and no other process that has got its number since
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _END_SECONDS)
    finally:
        os.close(pidfd)


def _workers(directory: Path) -> Iterator[int]:
    for pid, words in arguments.of_all():
        ours = any(Path(word).name in _PROGRAMS for word in words)
        if ours and any(word == str(directory) or word.startswith(f"{directory}/") for word in words):
            yield pid


def _unmount(directory: Path) -> None:
    """Root's grants have file systems of their own."""
    if os.geteuid() != 0:
        return
    from gpushare.inject import mounts

    with open("/proc/self/mountinfo", errors="surrogateescape") as found:
        points = [line.split()[4] for line in found]
    for point in points:
        if point.startswith(f"{directory}/"):
            with contextlib.suppress(OSError):
                mounts.unmount(Path(point))
