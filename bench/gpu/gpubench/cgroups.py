"""Control groups where none are mounted, as on a bare virtual machine: gpushare needs a hierarchy."""

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h


def _done(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def provide(directory: Path) -> str:
    """Where there is none, mounts cgroup v2 on a directory that only this process and its children see. Returns the
    reason when that cannot be done, otherwise an empty string."""
    from gpushare.enforce.cgroup import Hierarchies

    found = Hierarchies.of()
    if found.unified or found.freezer:
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    directory.mkdir(exist_ok=True)
    try:
        _done(libc.unshare(_CLONE_NEWNS), "unshare")
        _done(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount / private")
        _done(libc.mount(b"none", bytes(directory), b"cgroup2", 0, None), "mount cgroup2")
    except OSError as error:
        return f"no control groups are mounted, and they cannot be: {error.strerror}"
    return ""
