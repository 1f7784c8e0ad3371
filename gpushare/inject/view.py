"""Shows what a container will see at a path before it runs: reads its OCI config's root and bind mounts on the host.

Symlinks are resolved as inside the container, so that an absolute one never leads out into the host. Each component is
opened separately, never through a link and never for reading (O_PATH, O_NOFOLLOW), so that a concurrent change of the
image cannot lead out of it, and none of its devices or FIFOs is opened. openat2 with RESOLVE_IN_ROOT would not suffice:
it does not know of mounts that are not made yet.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gpushare.errors import RefusedError

_SYMLINKS_MAX = 40  # as the kernel
# Bounds of one View. An ordinary image takes a few hundred steps and has a few thousand libraries.
STEPS_MAX = 50_000
ENTRIES_MAX = 200_000
DEPTH_MAX = 128  # one descriptor per level

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class Place:
    """A path in the container with all symlinks resolved. `host` is None below a tmpfs, proc and the like."""

    container: str
    host: Path | None
    in_bind: bool  # below a bind mount: creating something here would create it on the host
    mode: int | None  # st_mode of what is there, None: nothing

    def exists(self) -> bool:
        """Whether there is something on the host."""
        return self.mode is not None

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.mode is not None and stat.S_ISREG(self.mode)


@dataclass(slots=True)
class _Level:
    """One component of a path. `mount`: number of the mount that it is in; -1: none."""

    path: str
    host: str | None
    mount: int
    descriptor: int | None = None  # O_PATH; None: nothing is there
    mode: int | None = None


class View:
    """The file system of one OCI config. Mounts other than bind mounts hide what is below them.

    Every method raises RefusedError if the image exceeds the bounds above, and OSError if something in it cannot be
    read.
    """

    def __init__(self, config: dict[str, Any], bundle: Path | None) -> None:
        """`bundle`: None if the root is not known yet; bind mounts are read nevertheless."""
        root = Path(config.get("root", {}).get("path", "rootfs"))
        self._root = str(bundle / root) if bundle is not None else None
        self._sources: list[str | None] = []
        self._options: list[Sequence[str]] = []
        self._mounts: dict[str, int] = {}
        self._steps = self._entries = 0
        for mount in config.get("mounts") or ():
            # In order: an earlier mount decides where a later destination leads.
            destination = self.resolve(mount["destination"]).container
            self._mounts[destination] = len(self._sources)
            self._sources.append(_bind_source(mount, bundle))
            self._options.append(mount.get("options") or ())

    def destinations(self) -> Iterator[str]:
        """Returns the config's mount destinations, with symlinks resolved."""
        return iter(self._mounts)

    def resolve(self, path: str) -> Place:
        """Resolves all symlinks. Components that do not exist are kept."""
        with _Walk(self, path) as last:
            host = Path(last.host) if last.host is not None else None
            return Place(last.path or "/", host, host is not None and last.mount >= 0, last.mode)

    def names(self, directory: str, *starts: str) -> list[str]:
        """Returns the sorted names of a directory's entries with one of these prefixes; empty if it does not exist."""
        with _Walk(self, directory) as last:
            if last.descriptor is None or last.mode is None or not stat.S_ISDIR(last.mode):
                return []
            opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=last.descriptor)
            try:
                # A library directory has thousands of entries: little Python per entry, and no more than the bound.
                with os.scandir(opened) as entries:
                    found = [entry.name for entry in islice(entries, ENTRIES_MAX - self._entries + 1)]
                self._entries += len(found)
                if self._entries > ENTRIES_MAX:
                    raise RefusedError(f"the image's library directories have more than {ENTRIES_MAX} files")
                return sorted(name for name in found if name.startswith(starts))
            finally:
                os.close(opened)

    def read(self, path: str, size: int) -> bytes:
        """Returns the first bytes of a regular file; empty if there is none."""
        with _Walk(self, path) as last:
            if last.descriptor is None or last.mode is None or not stat.S_ISREG(last.mode):
                return b""
            opened = os.open(f"/proc/self/fd/{last.descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.read(opened, size)
            finally:
                os.close(opened)

    def creatable(self, path: str, *, in_bind: bool = False) -> bool:
        """Whether a runtime can mount there: the path exists, or can be made without changing the host's own files.
        `in_bind`: it may be made in a directory that the host lends."""
        with _Walk(self, path) as last:
            if last.mode is not None or last.host is None or last.path in self._mounts:
                return True
            return (in_bind or last.mount < 0) and not self._read_only(last.mount)

    def is_shared(self, path: str) -> bool:
        """Whether the host sees what is mounted there: in a directory that it lends, mounted shared."""
        with _Walk(self, path) as last:
            return last.mount >= 0 and not {"shared", "rshared"}.isdisjoint(self._options[last.mount])

    def _read_only(self, mount: int) -> bool:
        """Whether nothing can be made in a mount; -1: in the root, which runtimes make read-only when all else is
        mounted."""
        top = self._sources[mount] if mount >= 0 else self._root
        return top is None or (mount >= 0 and "ro" in self._options[mount]) or _read_only(top)

    def top(self) -> _Level:
        """Opens the level of `/`."""
        mount = self._mounts.get("/", -1)
        return self._opened(_Level("", self._root if mount < 0 else self._sources[mount], mount), None, "")

    def below(self, parent: _Level, name: str) -> _Level:
        """Opens the level of a component without following it. A later mount hides earlier ones inside it."""
        path = f"{parent.path}/{name}"
        mount = self._mounts.get(path, -1)
        if mount > parent.mount:
            return self._opened(_Level(path, self._sources[mount], mount), None, name)
        host = f"{parent.host}/{name}" if parent.host is not None else None
        return self._opened(_Level(path, host, parent.mount), parent, name)

    def _opened(self, level: _Level, parent: _Level | None, name: str) -> _Level:
        """`parent`: None for a mount's source, which is opened by its path on the host, following symlinks."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise RefusedError(f"the image's paths and links take more than {STEPS_MAX} steps to follow")
        if level.host is None or (parent is not None and parent.descriptor is None):
            return level
        try:
            if parent is None:
                level.descriptor = os.open(level.host, os.O_PATH | os.O_CLOEXEC)
            else:
                level.descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent.descriptor)
        except OSError as error:
            if error.errno not in _NOTHING:
                raise
            return level
        level.mode = os.fstat(level.descriptor).st_mode
        return level


class _Walk:
    """A walk along a path; its last level is open inside `with`."""

    def __init__(self, view: View, path: str) -> None:
        self._view = view
        self._levels: list[_Level] = []
        self._pending = _parts(path)[::-1]  # a stack: the next one is last

    def __enter__(self) -> _Level:
        try:
            return self._go()
        except BaseException:
            self._up_to(0)
            raise

    def __exit__(self, *_: object) -> None:
        self._up_to(0)

    def _up_to(self, count: int) -> None:
        while len(self._levels) > count:
            _close(self._levels.pop())

    def _go(self) -> _Level:
        levels = self._levels
        levels.append(self._view.top())
        followed = 0
        while self._pending:
            part = self._pending.pop()
            if part == "..":
                self._up_to(max(1, len(levels) - 1))
                continue
            if len(levels) > DEPTH_MAX:
                raise RefusedError(f"a path in the container is deeper than {DEPTH_MAX} directories")
            level = self._view.below(levels[-1], part)
            levels.append(level)
            if level.mode is None or not stat.S_ISLNK(level.mode) or followed == _SYMLINKS_MAX:
                continue
            followed += 1
            target = os.readlink("", dir_fd=level.descriptor)
            self._pending += _parts(target)[::-1]
            self._up_to(1 if target.startswith("/") else len(levels) - 1)
        return levels[-1]


def _close(level: _Level) -> None:
    if level.descriptor is not None:
        os.close(level.descriptor)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _bind_source(mount: dict[str, Any], bundle: Path | None) -> str | None:
    options = mount.get("options") or ()
    if mount.get("type") != "bind" and "bind" not in options and "rbind" not in options:
        return None
    source = Path(mount.get("source", ""))
    if bundle is None:
        return str(source) if source.is_absolute() else None
    return str(bundle / source)


def _read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
