"""An engine's configuration file is read and replaced: at once, with its owner and mode, and only where it can be
trusted."""

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
    """Raises FailedError where others than root and the caller may change what is there."""
    owners = {0, os.geteuid()}
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a sticky directory nobody replaces what is another's.
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_uid not in owners or (shared and not sticky and not stat.S_ISLNK(found.st_mode)):
        raise FailedError(f"{path} can be written by others than its administrator: mend its owner and mode first")


def resolve(path: Path) -> Path:
    """The file itself. A symlink is followed, and stays, if only root (or the caller) can change any part of the way:
    directories, links and the file. Raises FailedError else, or where it is not a regular file."""
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
    """The text, with its line ends as they are; None where there is no file. Raises FailedError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(SIZE_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FailedError(f"{path}: {error.strerror}") from None
    if len(raw) > SIZE_MAX:
        raise FailedError(f"{path} is left alone: it is larger than {SIZE_MAX >> 20} MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FailedError(f"{path} is left alone: it is not UTF-8 (at line {line}); mend that line") from None


def backup_of(path: Path) -> Path:
    """Beside the file, but not in a directory of which engines read every file."""
    parent = path.parent.parent if path.parent.name.endswith(".d") else path.parent
    return parent / (path.name + BACKUP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other runs of gpushare away from the file's directory, if that is there."""
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
    """Replaces the file at once, or makes it. Owner, mode and attributes are those of `like` (else of the file that is
    there), for a new file root's and 0644. Raises FailedError."""
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
    """Removes the file, if it is there. Raises FailedError."""
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
