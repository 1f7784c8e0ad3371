"""Mounts, and other kernel calls on directories that Python lacks; checks whether a grant can have a file system of its
own, of fixed size, so that a tenant's writes to its page take no room from others."""

import contextlib
import ctypes
import errno
import functools
import os
from pathlib import Path

# sys/mount.h
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 19
INERT = NOSUID | NODEV | NOEXEC
DETACH, _NOFOLLOW = 2, 8

# fcntl.h and linux/fs.h
_AT_FDCWD, _EXCHANGE = -100, 2

# The newest of the system calls that hooks/place.c needs, from Linux 5.12.
_MOUNT_SETATTR = 442

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str | None, target: Path, flags: int, *, kind: str | None = None, options: str | None = None) -> None:
    """As mount(2). Raises OSError."""
    texts = (os.fsencode(text) if text is not None else None for text in (source, target, kind))
    data = options.encode() if options is not None else None
    check(libc.mount(*texts, ctypes.c_ulong(flags), data), target)


def tmpfs(directory: Path, size: int, inodes: int, mode: int) -> None:
    """Mounts a tmpfs of `size` bytes, owned by root. Raises OSError."""
    options = f"size={size},nr_inodes={inodes},mode={mode:o},uid=0,gid=0"
    mount("gpushare", directory, INERT, kind="tmpfs", options=options)


def unmount(directory: Path) -> None:
    """Unmounts all that is mounted there, if anything; files that are open stay usable."""
    while libc.umount2(os.fsencode(directory), DETACH | _NOFOLLOW) == 0:
        continue


_PASSING = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a lack of room, which may pass."""

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
        tmpfs(probe, 4096, 2, 0o700)
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
    libc.syscall(_MOUNT_SETATTR, -1, b"", 0, None, 0)
    return ctypes.get_errno() != errno.ENOSYS


def exchange(one: Path, other: Path) -> None:
    """Atomically exchanges two names; follows no symlink. Raises OSError."""
    check(libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE), other)


def check(code: int, what: str | Path) -> None:
    """Raises OSError if a call of the C library has failed. `what`: its subject."""
    if code != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), os.fspath(what))
