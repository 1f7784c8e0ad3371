"""Process 1 of a server's pid namespace: starts the server, collects what others leave behind, and ends when the server
does, upon which the kernel ends the rest. It has the server's rights, and no descriptor but those named here."""

import contextlib
import ctypes
import os
import platform
import resource
import select
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpushare.inject import mounts
from gpushare.processes import helper
from gpushare.sandbox import calls

_DESCRIPTORS = 4096
_FIRST_TO_KILL = 500
"""Of 1000: where the node runs out of memory, a server ends before what does not serve strangers. A process without
rights cannot go below what root has set."""
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
"""By Python, and by the helper; a program expects what every other does."""


@dataclass(frozen=True, slots=True)
class Server:
    """What is started. `uid`, `memory`, `pids`: as in messages.Go."""

    argv: Sequence[str]
    env: Mapping[str, str]
    uid: int
    memory: int
    pids: int


def run(server: Server, output: int, report: int) -> NoReturn:
    """`output`: the server's standard output and error. `report`: a pipe that gets one line when the server could not
    be started or has ended. Where its reader is gone before the server starts, this process ends."""
    try:
        ended = _run(server, output, report)
    except OSError as error:
        ended = f"cannot be started: {error.strerror}"
    with contextlib.suppress(OSError):
        os.write(report, f"{ended}\n".encode())
    os._exit(0)


def _run(server: Server, output: int, report: int) -> str:
    mounts.mount("proc", Path("/proc"), mounts.INERT, kind="proc")
    Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_KILL))
    helper.become_alone(server.uid)
    # After its rights: the kernel clears it when they change. The supervisor may have ended before.
    helper.end_with_parent(signal.SIGKILL)
    supervised = select.poll()
    supervised.register(report, 0)
    if supervised.poll(0):
        os._exit(0)
    if (number := _KEYCTL.get(platform.machine())) is not None:  # the daemon's keys are not the server's
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)
    signal.signal(signal.SIGTERM, _pass_on)
    main = os.fork()
    if main == 0:
        _become_server(server, output, report)
    while True:
        pid, status = os.wait()
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            return f"ended with status {code}" if code >= 0 else f"was ended by signal {-code}"


def _pass_on(number: int, _: object) -> None:
    with contextlib.suppress(OSError):
        os.kill(-1, number)


def _become_server(server: Server, output: int, report: int) -> NoReturn:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        for limit, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NPROC, server.pids),
            (resource.RLIMIT_NOFILE, _DESCRIPTORS),
            (resource.RLIMIT_MEMLOCK, server.memory),
        ):
            _, most = resource.getrlimit(limit)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(limit, (value, value))
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        calls.restrict()
        os.execvpe(server.argv[0], list(server.argv), dict(server.env))  # noqa: S606
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(report, f"cannot be started: {server.argv[0]}: {error.strerror}\n".encode())
    os._exit(127)
