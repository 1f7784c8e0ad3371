"""Stops and resumes processes that do not stop voluntarily: by their cgroup's freezer, or by SIGSTOP.

Only CPU execution stops. Work already submitted to a device runs to completion.
"""

import contextlib
import os
import signal

from gpushare.enforce.cgroup import Cgroup, Hierarchies, of_process
from gpushare.errors import FailedError


def freeze(group: Cgroup) -> bool:
    """Asks the kernel to stop all processes in the cgroup and below; `frozen` reports when it has. False: the cgroup no
    longer exists. Raises FailedError if it would stop the daemon itself, or if the file cannot be written."""
    _check(group)
    return _write(group, *(("cgroup.freeze", "1") if group.v2 else ("freezer.state", "FROZEN")))


def thaw(group: Cgroup) -> bool:
    """Thaws the cgroup, whoever froze it. Returns and raises as `freeze` does."""
    return _write(group, *(("cgroup.freeze", "0") if group.v2 else ("freezer.state", "THAWED")))


def is_freezing(group: Cgroup) -> bool:
    """Whether the cgroup itself is frozen or being frozen, rather than one of its ancestors."""
    name = "cgroup.freeze" if group.v2 else "freezer.self_freezing"
    with contextlib.suppress(OSError):
        return (group.path / name).read_text().strip() == "1"
    return False


def frozen(group: Cgroup) -> bool:
    """Whether every thread in the cgroup has stopped. True if the cgroup no longer exists."""
    try:
        if group.v2:
            return "frozen 1" in (group.path / "cgroup.events").read_text().splitlines()
        return (group.path / "freezer.state").read_text().strip() == "FROZEN"
    except OSError:
        return True


def stop(pidfd: int) -> None:
    """Stops one process that has no cgroup of its own. Weaker than a freeze: any process of its user may resume it."""
    _signal(pidfd, signal.SIGSTOP)


def go_on(pidfd: int) -> None:
    """Resumes a stopped process."""
    _signal(pidfd, signal.SIGCONT)


def kill(pidfd: int) -> None:
    """Kills a process. In a frozen v1 cgroup the signal takes effect at the thaw."""
    _signal(pidfd, signal.SIGKILL)


def _signal(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _check(group: Cgroup) -> None:
    tops = Hierarchies.of()
    if group.path in (tops.unified, tops.freezer):
        raise FailedError(f"{group.path} is the root of all cgroups and is never frozen")
    own = of_process(os.getpid())
    if own is not None and own.path.is_relative_to(group.path):
        raise FailedError(f"{group.path} has the daemon itself in it and is never frozen")


def _write(group: Cgroup, name: str, value: str) -> bool:
    try:
        descriptor = os.open(group.path / name, os.O_WRONLY | os.O_CLOEXEC)  # makes no file where there is no cgroup
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if not group.path.exists():
            return False  # removed meanwhile: ENODEV
        raise FailedError(f"{group.path / name}: {error.strerror}") from None
    return True
