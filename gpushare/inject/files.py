"""Makes small files that others read. Modes are set regardless of the umask, before there is any content; a symlink at
the end of a path is never followed."""

import os
import stat
from pathlib import Path


def has(path: Path, data: bytes, mode: int) -> bool:
    """Whether this is a file with this content and mode already. Then it needs no room on a disk that may be full."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno()).st_mode
        return found == stat.S_IFREG | mode and file.read(len(data) + 1) == data


def replace(path: Path, data: bytes, mode: int, *, through: Path | None = None) -> None:
    """Replaces whatever is at this path by a new file, atomically, unless it is a file with this content; containers
    that have the old one mounted keep it. `through`: where the new one is written first. Raises OSError."""
    if has(path, data, mode):
        return
    fresh = through or path.with_name(f"{path.name}.new")
    try:
        write(fresh, data, mode)
        fresh.replace(path)
    except OSError:  # a full disk may have cut it short
        fresh.unlink(missing_ok=True)
        raise


def write(path: Path, data: bytes, mode: int) -> None:
    """Makes the file, or overwrites it in place. Raises OSError."""
    _write(path, os.O_TRUNC, mode, data)


def make(path: Path, data: bytes, mode: int, *, size: int = 0, room: int = 0) -> None:
    """Makes a new file. `size`: its size, with zeros behind `data`. `room`: bytes allocated at its start and at its
    end. Raises OSError."""
    _write(path, os.O_EXCL, mode, data, size, room)


def _write(path: Path, flags: int, mode: int, data: bytes, size: int = 0, room: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        os.fchmod(descriptor, mode)
        size = max(size, len(data))
        while data:
            data = data[os.write(descriptor, data) :]
        os.ftruncate(descriptor, size)
        if room := min(room, size):
            # On a full tmpfs this fails; a write to the mapped page would be a SIGBUS.
            os.posix_fallocate(descriptor, 0, room)
            os.posix_fallocate(descriptor, size - room, room)
    finally:
        os.close(descriptor)


def directory(path: Path, mode: int) -> None:
    """Makes a directory. Raises OSError."""
    path.mkdir()
    path.chmod(mode)
