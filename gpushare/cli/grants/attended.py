"""`gpushare run` that stays beside its command: as if it were the command to its caller, and then it says what the
command got.

The command is a child in the same process group, so a terminal treats both as one. What is sent to this process alone
is passed on; the command ends with it; and it ends as the command did.
"""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

from gpushare.cli.command import say
from gpushare.client import Client
from gpushare.errors import FailedError, GpushareError, NotFoundError
from gpushare.processes.helper import end_with_parent
from gpushare.text.reasons import refused
from gpushare.text.units import format_size, format_time

_PASSED = {
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH),
}
_WAITED = {*_PASSED, signal.SIGCHLD}
_ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
_FROM_KERNEL = 0x80  # SI_KERNEL: of the terminal, which sends it to the command too
_SETTLE_SECONDS = 0.02
_SETTLED_SECONDS = 2.0
_AGAIN_SECONDS = 0.01
_RUNNING = ("bound", "active", "suspended")


def fork(*opened: int) -> int:
    """As os.fork. `opened`: descriptors that are closed if it fails. Raises FailedError."""
    try:
        return os.fork()
    except OSError as error:
        for one in opened:
            os.close(one)
        limits = "end some, or raise the limit on their number (`ulimit -u`, pids.max)"
        raise FailedError(f"no process can be started ({error.strerror}): {limits}") from None


class Attended:
    """A command beside which this process stays. Made by `start`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: int | None = None
        self.ending: int | None = None
        """The last signal that came to end the command."""
        self._began = time.monotonic()

    @classmethod
    def start(cls, run: Callable[[], int]) -> Self | int:
        """Starts a command. `run`: replaces the process by it; where that fails, it says why and returns the exit
        status, which is returned here. Raises FailedError."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        failed, fails = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        try:
            pid = fork(failed, fails)
        except FailedError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        if pid == 0:
            os.close(failed)
            _become_command(parent, before, run, fails)
        os.close(fails)
        attended = cls(pid)
        with open(failed, "rb") as answer:
            started = not answer.read()
        if started:
            return attended
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return status

    def wait(self) -> float:
        """Returns when the command has ended: after how many seconds. Meanwhile its signals are its own, and what stops
        it stops this process too."""
        while self._status is None:
            came = signal.sigwaitinfo(_WAITED)
            self.ending = came.si_signo if came.si_signo in _ENDING else self.ending
            if came.si_signo == signal.SIGCHLD:
                self._look()
            elif came.si_signo == signal.SIGCONT or came.si_code != _FROM_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, came.si_signo)
        return time.monotonic() - self._began

    def _look(self) -> None:
        while self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self._status = status
                return
            # A terminal stops both and continues both, this process perhaps first.
            time.sleep(_SETTLE_SECONDS)
            if _is_stopped(self._pid):
                os.kill(os.getpid(), signal.SIGSTOP)

    @property
    def status(self) -> int | None:
        """The command's exit status; negative: the signal that ended it; None: it runs."""
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)

    def end(self) -> int:
        """Returns the command's exit status. If a signal ended it, the same signal ends this process."""
        status = self.status
        assert status is not None
        return status if status >= 0 else end_by(-status)


def end_by(number: int) -> int:
    """Ends this process by a signal, as that has ended its command. Returns the status of a shell for it, if it does
    not end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's own is the one to look at
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def _become_command(parent: int, mask: Any, run: Callable[[], int], fails: int) -> NoReturn:
    status = 1
    try:
        end_with_parent(signal.SIGKILL)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            status = run()
    except Exception:  # a defect, and no caller in this process shows it
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        with contextlib.suppress(OSError):  # the attendant is gone
            os.write(fails, b"x")
        os._exit(status)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def say_what_it_got(daemon: Client, before: Any, seconds: float, *, last: bool = False) -> None:
    """Prints one line to stderr, when the command has ended. `before`: the grant when it began. `seconds`: how long it
    ran. `last`: nobody can ask this daemon later, so lines before it say what memory it was refused."""
    try:
        after = settled(daemon, before["id"])
        lines = [refused(after, device, time.time_ns()) for device in after["devices"]] if last else []
        lines.append(summary(before, after, seconds))
    except GpushareError as error:
        lines = [f"what it got is not known: {error}"]
    with contextlib.suppress(OSError):
        for line in filter(None, lines):
            say(f"gpushare: {line}", sys.stderr)


def settled(daemon: Client, grant_id: str) -> Any:
    """The grant, once the daemon has seen that its processes have ended. One that the command has left goes on in
    it."""
    deadline = time.monotonic() + _SETTLED_SECONDS
    while True:
        late = time.monotonic() > deadline
        try:
            grant = daemon.grant(grant_id)
            if grant["phase"] not in _RUNNING or late:
                return grant
        except NotFoundError:  # on its way from the living grants to the ended ones
            if late:
                raise
        time.sleep(_AGAIN_SECONDS)


def summary(before: Any, after: Any, seconds: float) -> str:
    """What a command got of its grant in these seconds."""
    first, count = after["devices"][0], len(after["devices"])
    pairs = list(zip(before["devices"], after["devices"], strict=True))
    busy = sum(new["busy_ns"] - old["busy_ns"] for old, new in pairs) / 1e9
    waited = max(new["wait_ns"] - old["wait_ns"] for old, new in pairs) / 1e9
    peak = max(new["memory_peak_bytes"] for _, new in pairs)
    share = f"{format_size(first['memory_limit_bytes'])} and {format_time(first['time_milli'])}"
    where = "the device" if count == 1 else f"{count} devices"
    if not busy and not peak:
        return f"{share}: the command did nothing on {where} in {seconds:.1f} s"
    got = min(busy / count / max(seconds, _AGAIN_SECONDS), 1)
    return f"{share}: got {got:.0%} of {where} in {seconds:.1f} s, waited {waited:.1f} s, peak {format_size(peak)}"
