"""Whether a grant can have a file system of its own, of fixed size: what a tenant writes into its page then takes room
from nobody else; and what else of the kernel's directories Python does not have."""

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

# The highest of the calls that place what a container gets late, of Linux 5.12 (hooks/place.c)
_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


_PROBE = Steps(steps.tmpfs("", 4096, 2, 0o700))
_UNMOUNT = Steps(steps.unmount(""))


def unmount(directory: Path) -> None:
    """Takes away what is mounted there, if anything is; whoever has files of it open keeps them."""
    with contextlib.suppress(OSError):
        _UNMOUNT.run(directory)


@functools.cache
def possible(place: Path) -> bool:
    """Whether this process may mount in a directory, and the machine's first process sees it.

    It does not where the daemon has a mount namespace of its own that passes nothing on.
    """
    probe = place / ".probe" / "self"
    try:
        probe.mkdir(parents=True, exist_ok=True)
        try:
            _PROBE.run(probe)
            device = probe.stat().st_dev
            number = f"{os.major(device)}:{os.minor(device)}"
            lines = Path("/proc/1/mountinfo").read_bytes().split(b"\n")  # paths are bytes of any kind
            return any(line.split()[2:3] == [number.encode()] for line in lines)
        finally:
            unmount(probe)
            probe.rmdir()
            probe.parent.rmdir()
    except OSError:
        return False


@functools.cache
def placeable() -> bool:
    """Whether this kernel can put mounts into a container that is made already: from Linux 5.12 on."""
    _libc.syscall(_MOUNT_SETATTR, -1, b"", 0, None, 0)
    return ctypes.get_errno() != errno.ENOSYS


def exchange(one: Path, other: Path) -> None:
    """Both names change what they mean, at one instant; no symlink is followed. Raises OSError."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot be exchanged: {os.strerror(error)}", str(other))
