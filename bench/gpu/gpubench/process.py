"""Children that do not outlive the process that started them, however it ends."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_DEAD_SECONDS = 10.0
_LIBC = ctypes.CDLL(None, use_errno=True)


def tied(number: int = signal.SIGKILL) -> Callable[[], None]:
    """For Popen's preexec_fn: the kernel sends this signal to the child when the thread that started it ends."""
    parent = os.getpid()

    def tie() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(125)

    return tie


def end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def reap(process: "subprocess.Popen[bytes]") -> bool:
    """Waits for a process after SIGKILL. False when it does not end: it can be stuck in the driver."""
    try:
        process.wait(_DEAD_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True
