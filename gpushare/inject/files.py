"""Writes small files with few system calls: a grant has several files, and is made or removed within a millisecond."""

import os
import stat


def has(path: str, data: bytes, mode: int) -> bool:
    """Whether this is a file with this content and mode already. Then it needs no room on a disk that may be full."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno()).st_mode
        return found == stat.S_IFREG | mode and file.read(len(data) + 1) == data


def replace(path: str, data: bytes, mode: int) -> None:
    """Replaces the file by a new one, unless it has this content; containers that have the old one mounted keep it.
    Raises OSError."""
    if has(path, data, mode):
        return
    fresh = f"{path}.new"
    write(fresh, data, mode)
    os.rename(fresh, path)  # noqa: PTH104 - paths are text here


def write(path: str, data: bytes, mode: int) -> None:
    """Makes the file, or overwrites it in place. `mode`: set regardless of the umask. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)
