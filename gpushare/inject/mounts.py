"""Checks whether a grant can have a file system of its own, of fixed size, so that a tenant's writes to its page take
no room from others; also kernel calls on mounts and directories that Python lacks."""

import contextlib
import ctypes
import errno
import functools
import os
from pathlib import Path

from gpushare.inject import steps
from gpushare.inject.steps import Steps

# fcntl.h and linux/fs.h
_AT_FDCWD, _EXCHANGE = -100, 2

# The newest of the system calls that hooks/place.c needs, from Linux 5.12.
_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


_PROBE = Steps(steps.tmpfs("", 4096, 2, 0o700))
_UNMOUNT = Steps(steps.unmount(""))


def unmount(directory: Path) -> None:
    """Unmounts what is mounted there, if anything; files that are open stay usable."""
    with contextlib.suppress(OSError):
        _UNMOUNT.run(directory)


_PASSING = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors that say that there is no room now."""

_possible: dict[Path, bool] = {}


def possible(place: Path) -> bool:
    """Whether this process may mount in a directory, and pid 1 sees the mount.

    It does not if the daemon has its own mount namespace without propagation to the host's.
    """
    if (known := _possible.get(place)) is not None:
        return known
    try:
        found = _try(place)
    except OSError as error:
        if error.errno in _PASSING:
            return False  # and asked again
        found = False
    _possible[place] = found
    return found


def _try(place: Path) -> bool:
    probe = place / ".probe" / "self"
    try:
        probe.mkdir(parents=True, exist_ok=True)
        _PROBE.run(probe)
        device = probe.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        lines = Path("/proc/1/mountinfo").read_bytes().split(b"\n")  # paths may be any bytes
        return any(line.split()[2:3] == [number.encode()] for line in lines)
    finally:
        unmount(probe)
        for directory in (probe, probe.parent):
            with contextlib.suppress(OSError):
                directory.rmdir()


@functools.cache
def placeable() -> bool:
    """Whether this kernel can add mounts to a container that has been created: from Linux 5.12 on."""
    _libc.syscall(_MOUNT_SETATTR, -1, b"", 0, None, 0)
    return ctypes.get_errno() != errno.ENOSYS


def exchange(one: Path, other: Path) -> None:
    """Atomically exchanges two names; follows no symlink. Raises OSError."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot be exchanged: {os.strerror(error)}", str(other))
