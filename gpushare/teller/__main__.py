"""The teller's main program. Standard input is a pidfd of the process that is to be notified."""

import ctypes
import os
import re
import select
import signal
from pathlib import Path

from gpushare.processes.helper import CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, become, confine

SECONDS = 10
"""What it reads may not answer, nor what it writes to, although that was ready for more."""

_TAKES_MS = 500
"""How long it waits for a pipe that is full or a terminal that is stopped."""

_PIDFD_GETFD = 438  # Linux 5.6; the same on every architecture
_STDERR = 2


def main(daemon: str, text: str, hidden: str, *places: str) -> None:
    """Tells it `text`; or `hidden`, if its root lacks one of these paths. `daemon`: the parent's pid.

    It writes to the very file that the process has open, with the rights of the process's user: what that user cannot
    write, it cannot write either.
    """
    signal.alarm(SECONDS)
    confine(daemon, keep={CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SETUID, CAP_SETGID})
    pid = _pid()
    file = _file(_STDERR)
    line = text if all(Path(f"/proc/{pid}/root{place}").exists() for place in places) else hidden
    ids = dict(re.findall(r"^(Uid|Gid):\s+\d+\s+(\d+)", Path(f"/proc/{pid}/status").read_text(errors="replace"), re.M))
    if _pid() != pid:  # it has ended, and the answers may be about another
        raise SystemExit(1)
    become(int(ids["Uid"]), int(ids["Gid"]))
    takes = select.poll()
    takes.register(file, select.POLLOUT)
    if not takes.poll(_TAKES_MS):
        raise SystemExit(1)
    os.write(file, f"gpushare: {line}\n".encode())


def _pid() -> int:
    """The pid of the process: not positive if it has ended, so that nothing below is another's."""
    [number] = re.findall(r"^Pid:\s+(-?\d+)", Path("/proc/self/fdinfo/0").read_text(), re.M)
    return int(number)


def _file(number: int) -> int:
    """A descriptor of what the process has open under this number."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(_PIDFD_GETFD, 0, number, 0))
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return found
