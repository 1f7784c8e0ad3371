"""A process that tries to break a wall: native/probe/probe.c, in throw-away cgroups made for it."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import FailedError
from gpushare.paths import PROBE

_ANSWER_SECONDS = 5.0  # enough on an overloaded machine
_REMOVE_SECONDS = 1.0


class Subject:
    """The process, started in these cgroups. The end of `with` kills it and all that it left in the first of them.
    Raises FailedError if it cannot be started or does not answer."""

    def __init__(self, groups: Sequence[Cgroup], environment: Mapping[str, str] | None = None) -> None:
        self._groups = groups
        procs = [os.fspath(group.path / "cgroup.procs") for group in groups]
        try:
            self._process = subprocess.Popen(
                [os.fspath(PROBE), *procs],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(environment or {}),
                bufsize=0,
            )
        except OSError as error:
            raise FailedError(f"{PROBE} cannot be started ({error.strerror}): install again") from None
        try:
            if (answer := self._line(_ANSWER_SECONDS)) != "in":
                raise FailedError(f"no process can be moved to a cgroup: {answer or 'it ended'}")  # noqa: TRY301
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the process and what it left."""
        for group in self._groups[:1]:
            with contextlib.suppress(FailedError):
                group.kill()
            for pid in group.pids():  # kill may have had no effect: that is one of the walls under test
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process stuck in a driver stays behind
            self._process.wait(_ANSWER_SECONDS)

    @property
    def pid(self) -> int:
        """The process's pid."""
        return self._process.pid

    def opens(self, path: Path) -> int:
        """Has the process open this file; returns the errno, 0 on success."""
        return int(self._ask(f"open {path}"))

    def fork(self) -> None:
        """Has the process leave a child in a session of its own."""
        self._ask("fork")

    def memory(self, library: Path, first_mib: int, second_mib: int, seconds: float) -> tuple[int, int]:
        """Has the process make two allocations in turn; returns their CUresults. Negative: an earlier step failed."""
        small, large = self._ask(f"memory {library} {first_mib} {second_mib}", seconds).split()
        return int(small), int(large)

    def send_ping(self) -> None:
        """Sends a ping; `answers_ping` reports whether the answer came."""
        self._write("ping")

    def answers_ping(self, seconds: float) -> bool:
        """Whether the answer to a ping comes within that time."""
        try:
            return self._line(seconds) == "0"
        except FailedError:
            return False

    def ends_within(self, seconds: float) -> bool:
        """Whether the process and all that it left end within that time."""
        try:
            return self._line(seconds) == ""
        except FailedError:
            return False

    def _ask(self, command: str, seconds: float = _ANSWER_SECONDS) -> str:
        self._write(command)
        if not (answer := self._line(seconds)):
            raise FailedError(f"what tries the walls ended at `{command}`")
        return answer

    def _write(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{command}\n".encode())
        except OSError as error:
            raise FailedError(f"what tries the walls has ended: {error.strerror}") from None

    def _line(self, seconds: float) -> str:
        """Returns the next line, empty at end of file. Raises FailedError if neither comes in that time."""
        assert self._process.stdout is not None
        descriptor, deadline, text = self._process.stdout.fileno(), time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise FailedError(f"what tries the walls did not answer within {seconds:g} s")
            if not (part := os.read(descriptor, 4096)):
                break
            text += part
        return text.decode(errors="replace").rstrip("\n")


def throw_away(groups: Sequence[Cgroup]) -> bool:
    """Removes cgroups whose processes have been killed. Returns whether they are gone."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while left := [group for group in groups if not group.remove()]:
        if time.monotonic() > deadline:
            return False
        groups = left
        time.sleep(0.001)
    return True
