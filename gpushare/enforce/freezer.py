"""Stops processes that do not stop by themselves, and lets them go on: the freezer of their cgroup, or SIGSTOP.

Only the CPU is stopped. What has been submitted to a device runs to its end there.
"""

import contextlib
import os
import signal

from gpushare.enforce.cgroup import Cgroup, Hierarchies, of_process
from gpushare.errors import FailedError


def freeze(group: Cgroup) -> bool:
    """Asks the kernel to stop all that is in the cgroup and below; `frozen` says when it has. False: there is no such
    cgroup any more. Raises FailedError for one that would stop the daemon itself, or that cannot be written."""
    _check(group)
    return _write(group, *(("cgroup.freeze", "1") if group.v2 else ("freezer.state", "FROZEN")))


def thaw(group: Cgroup) -> bool:
    """Lets it go on, whoever had it stopped. False and FailedError as for `freeze`."""
    return _write(group, *(("cgroup.freeze", "0") if group.v2 else ("freezer.state", "THAWED")))


def asked(group: Cgroup) -> bool:
    """Whether it is frozen, or being frozen, by itself and not because a cgroup above it is."""
    name = "cgroup.freeze" if group.v2 else "freezer.self_freezing"
    with contextlib.suppress(OSError):
        return (group.path / name).read_text().strip() == "1"
    return False


def frozen(group: Cgroup) -> bool:
    """Whether every thread in it has stopped. One that is gone has."""
    try:
        if group.v2:
            return "frozen 1" in (group.path / "cgroup.events").read_text().splitlines()
        return (group.path / "freezer.state").read_text().strip() == "FROZEN"
    except OSError:
        return True


def stop(pidfd: int) -> None:
    """Stops one process, where no cgroup holds it. Weaker than a freeze: any process of its user may let it go on."""
    _signal(pidfd, signal.SIGSTOP)


def go_on(pidfd: int) -> None:
    """Lets a stopped process go on."""
    _signal(pidfd, signal.SIGCONT)


def kill(pidfd: int) -> None:
    """Ends a process. In a frozen cgroup of version 1 the signal takes effect at the thaw."""
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
