"""Paths in the root to install into, which may be another than this machine's."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpushare.engines import files
from gpushare.errors import FailedError

_NEW = ".gpushare-new"  # suffix of a file that is being written


class Root:
    """`directory`: `/`, or where an image is unpacked."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise FailedError(f"{directory} is not a directory: name the root to install into")
        self.machine = Path(os.path.realpath(directory)) == Path("/")
        self.directory = Path("/") if self.machine else _directory(directory)

    def at(self, path: Path) -> Path:
        """Returns where an absolute path of the root is on this machine. Raises FailedError if a user other than the
        administrator could change a directory on the way. In an image no symlink is followed: those refer to its own
        root."""
        if self.machine:
            return _directory(path.parent) / path.name
        place = self.directory / path.relative_to("/")
        for part in reversed(place.parents):
            if part.is_relative_to(self.directory) and part != self.directory:
                try:
                    found = part.lstat()
                except FileNotFoundError:
                    break
                if not stat.S_ISDIR(found.st_mode):
                    raise FailedError(f"{part} is not a directory: what is there in its place is not followed")
                files.check_writers(part, found)
        return place

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Serialises runs on this root: another run waits."""
        etc = self.at(Path("/etc/gpushare")).parent
        try:
            etc.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise FailedError(f"{etc} cannot be made: {error.strerror}") from None
        with files.locked(etc / "gpushare"):
            yield


def _directory(path: Path) -> Path:
    return files.resolve(path / _NEW).parent


def is_writable(path: Path) -> bool:
    """Whether the file can be created: the nearest existing parent directory is writable."""
    place = path.parent
    while not os.path.lexists(place):
        place = place.parent
    return os.access(place, os.W_OK | os.X_OK)


def link(path: Path, target: str) -> None:
    """Creates or replaces a symlink atomically. Raises OSError."""
    temporary = path.with_name(f".{path.name}{_NEW}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.rename(path)


def remove_unfinished(directory: Path) -> None:
    """Removes what a run that was killed while writing there left."""
    for left in directory.glob(f".*{_NEW}"):
        left.unlink(missing_ok=True)
