"""Writes small files with few system calls: a grant has several files, and is made or removed within a millisecond."""

import os


def replace(path: str, data: bytes, mode: int) -> None:
    """Replaces the file by a new one; containers that have the old one mounted keep it. Raises OSError."""
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
