"""Reads and atomically replaces an administrator's configuration file, keeping its owner and mode, and only if no other
user could have changed it."""

import codecs
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpushare.errors import FailedError

SIZE_MAX = 4 << 20
BACKUP = ".gpushare-backup"


def check_writers(path: Path, found: os.stat_result) -> None:
    """Raises FailedError if users other than root and the caller can change the path."""
    owners = {0, os.geteuid()}
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a sticky directory users cannot replace each other's files.
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_uid not in owners or (shared and not sticky and not stat.S_ISLNK(found.st_mode)):
        raise FailedError(f"{path} can be written by others than its administrator: mend its owner and mode first")


def resolve(path: Path) -> Path:
    """Returns the file's path with symlinks resolved. Raises FailedError if users other than root and the caller can
    change any directory, link or file on the way, or if it is not a regular file."""
    way = Path(os.path.abspath(path))
    for _ in range(40):
        for part in [*reversed(way.parents), way]:
            try:
                found = part.lstat()
            except FileNotFoundError:
                if part.is_relative_to(way) and part != way:
                    raise
                continue
            except OSError as error:
                raise FailedError(f"{part}: {error.strerror}") from None
            check_writers(part, found)
            if stat.S_ISLNK(found.st_mode):
                rest = way.relative_to(part)
                way = Path(os.path.abspath(part.parent / os.readlink(part) / rest))
                break
        else:
            if way.exists() and not way.is_file():
                raise FailedError(f"{way} is not a file")
            return way
    raise FailedError(f"{path}: too many symlinks")


def read(path: Path) -> str | None:
    """Returns the text with its line ends unchanged; None if there is no file. Raises FailedError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(SIZE_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FailedError(f"{path}: {error.strerror}") from None
    if len(raw) > SIZE_MAX:
        raise FailedError(f"{path} is left alone: it is larger than {SIZE_MAX >> 20} MiB")
    if raw.startswith(codecs.BOM_UTF8):
        raise FailedError(f"{path} is left alone: it begins with a byte order mark; save it without")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FailedError(f"{path} is left alone: it is not UTF-8 (at line {line}); mend that line") from None


def backup_of(path: Path) -> Path:
    """Returns the backup's path: next to the file, but above a `.d` directory, of which engines read every file."""
    parent = path.parent.parent if path.parent.name.endswith(".d") else path.parent
    return parent / (path.name + BACKUP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the file's directory, if it exists, against other runs of gpushare."""
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise FailedError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write(path: Path, text: str, like: Path | None = None) -> None:
    """Atomically replaces or creates the file. Owner, mode and attributes are those of `like`, else of the existing
    file; a new file belongs to the caller and has mode 0644. Raises FailedError."""
    pattern = like or path
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".gpushare-new")
        try:
            with open(fd, "wb") as file:
                file.write(text.encode())
                if pattern.exists():
                    old = pattern.stat()
                    os.fchown(fd, old.st_uid, old.st_gid)
                    shutil.copystat(pattern, name)
                    os.utime(name)
                else:
                    os.fchmod(fd, 0o644)
                os.fsync(fd)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        _sync(path.parent)
    except OSError as error:
        raise FailedError(f"{path} cannot be written: {error.strerror}") from None


def delete(path: Path) -> None:
    """Removes the file, if it exists. Raises FailedError."""
    try:
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync(path.parent)
    except OSError as error:
        raise FailedError(f"{path} cannot be removed: {error.strerror}") from None


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
