"""What a container will see at a path, before it runs: its OCI config's root and bind mounts, read on the host.

Symlinks are followed as inside the container, so that an absolute one never leads out into the host.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SYMLINKS_MAX = 40  # as the kernel


@dataclass(frozen=True, slots=True)
class Place:
    """A path in the container with all symlinks resolved. `host` is None below a tmpfs, proc and the like."""

    container: str
    host: Path | None
    in_bind: bool  # below a bind mount: creating something here would create it on the host

    def exists(self) -> bool:
        """Whether the file exists on the host."""
        return self.host is not None and self.host.exists()


class View:
    """The file system of one OCI config. Mounts other than bind mounts hide what is below them."""

    def __init__(self, config: dict[str, Any], bundle: Path) -> None:
        root = Path(config.get("root", {}).get("path", "rootfs"))
        self._root = root if root.is_absolute() else bundle / root
        self._mounts: list[tuple[str, Path | None]] = []
        for mount in config.get("mounts") or ():
            # In order: an earlier mount decides where a later destination leads.
            destination = self.resolve(mount["destination"]).container
            self._mounts.append((destination, _bind_source(mount, bundle)))

    def destinations(self) -> Iterator[str]:
        """Where the config mounts something, with symlinks resolved."""
        return (destination for destination, _ in self._mounts)

    def resolve(self, path: str) -> Place:
        """Follows all symlinks. Components that do not exist are kept as they are."""
        pending = _parts(path)
        done: list[str] = []
        followed = 0
        while pending:
            part = pending.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            host = self._host("/" + "/".join([*done, part]))[0]
            if host is None or not host.is_symlink() or followed == _SYMLINKS_MAX:
                done.append(part)
                continue
            followed += 1
            target = str(host.readlink())
            pending = _parts(target) + pending
            if target.startswith("/"):
                done = []
        container = "/" + "/".join(done)
        return Place(container, *self._host(container))

    def names(self, directory: str) -> list[str]:
        """Names of a directory's entries, sorted; none where it cannot be read."""
        host = self.resolve(directory).host
        if host is None:
            return []
        try:
            # A library directory has thousands: no Path for each of them.
            with os.scandir(host) as entries:
                return sorted(entry.name for entry in entries)
        except OSError:
            return []

    def creatable(self, path: str) -> bool:
        """Whether a runtime can mount there: the path exists, or can be made without changing the host's own files."""
        place = self.resolve(path)
        if place.exists() or place.host is None or place.container in self.destinations():
            return True
        return not place.in_bind and not _read_only(self._root)

    def _host(self, path: str) -> tuple[Path | None, bool]:
        for destination, source in reversed(self._mounts):
            if path == destination or path.startswith(destination.rstrip("/") + "/"):
                rest = path[len(destination) :].lstrip("/")
                return (source / rest if rest else source, True) if source is not None else (None, False)
        return self._root / path.lstrip("/"), False


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _bind_source(mount: dict[str, Any], bundle: Path) -> Path | None:
    options = mount.get("options") or ()
    if mount.get("type") != "bind" and "bind" not in options and "rbind" not in options:
        return None
    source = Path(mount.get("source", ""))
    return source if source.is_absolute() else bundle / source


def _read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
