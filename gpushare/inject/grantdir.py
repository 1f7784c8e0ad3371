"""The directory of one grant: `<layout.grants>/<id>/` with `self/` inside, which is what the tenant sees.

The daemon puts `limits`, `usage` and `grant.sock` into `self/`, and `eviction` while it wants memory back; everything
else is made here. Isolation between tenants
rests on the modes set here.
"""

import contextlib
import functools
import logging
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gpushare import paths
from gpushare.errors import FailedError
from gpushare.inject import files, mounts, preload
from gpushare.inject.node import Node
from gpushare.paths import CONTAINER_DRIVER, CONTAINER_LIB, Layout

Kind = Literal["container", "process"]

log = logging.getLogger(__name__)

STAND_IN = "any"
"""In the place of a grant's id, which no grant has: the directory of those CDI devices that stand for no grant."""

# As a container sees them.
INTERPOSERS = tuple(f"{CONTAINER_LIB}/{path.name}" for path in paths.INTERPOSERS)
_SIM_RUNTIMES = tuple(f"{CONTAINER_DRIVER}/{name}" for name in paths.SIM_RUNTIMES)


def preloaded(node: Node) -> tuple[str, ...]:
    """What a container preloads."""
    return (*INTERPOSERS, *(_SIM_RUNTIMES if node.simulated else ()))


@functools.lru_cache(maxsize=2048)
def grant_dir(layout: Layout, grant_id: str) -> Path:
    """The grant's directory, which only root can list."""
    return layout.grants / grant_id


@functools.lru_cache(maxsize=2048)
def self_dir(layout: Layout, grant_id: str) -> Path:
    """The part of it that the tenant sees."""
    return grant_dir(layout, grant_id) / "self"


def preload_file(layout: Layout, grant_id: str) -> Path:
    """The grant's /etc/ld.so.preload. Outside self/, so that a tenant cannot see where its lines come from."""
    return grant_dir(layout, grant_id) / "ld.so.preload"


def cache_file(layout: Layout, grant_id: str) -> Path:
    """The grant's /etc/ld.so.cache, where it has one."""
    return grant_dir(layout, grant_id) / "ld.so.cache"


def prepare(layout: Layout) -> None:
    """Makes the parent of all grant directories. It may be in /dev/shm, where any user can make something of its name
    first: that is moved away. Raises FailedError where that cannot be done."""
    mode = _our_mode(layout.grants)
    if mode is None:
        with contextlib.suppress(FileExistsError):  # something else
            layout.grants.mkdir(mode=0o711, parents=True, exist_ok=True)
        if _our_mode(layout.grants) is None:
            _move_away(layout.grants)
    if mode != 0o711:
        layout.grants.chmod(0o711)


def _our_mode(directory: Path) -> int | None:
    """Of a directory of ours; None where there is none, or something else."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return stat.S_IMODE(found.st_mode) if ours else None


def _move_away(directory: Path) -> None:
    """Puts a directory of ours in the place of what somebody has there, however often it is made anew. An empty
    directory and a symlink are removed; anything else stays its owner's, under another name."""
    fresh = directory.with_name(f"{directory.name}.{secrets.token_hex(4)}")
    try:
        fresh.mkdir(mode=0o711)
        while True:
            try:
                mounts.exchange(fresh, directory)
            except FileNotFoundError:  # it has just gone
                with contextlib.suppress(FileExistsError):  # it is there again
                    directory.mkdir(mode=0o711)
                    return
            else:
                # Its owner may take it away from there at any moment.
                log.warning("%s was another user's, and is moved to %s", directory, fresh.name)
                return
    except OSError as error:
        raise FailedError(
            f"{directory} is not a directory of ours ({error.strerror}): remove it and start the daemon again"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            fresh.rmdir() if stat.S_ISDIR(os.lstat(fresh).st_mode) else fresh.unlink()


def stand_in(layout: Layout, node: Node) -> None:
    """Makes the directory that containers have until their hook puts a grant's in its place. Containers that run have
    it mounted below the grant's: it stays as it is, for good. Raises OSError."""
    prepare(layout)
    for directory, mode in ((grant_dir(layout, STAND_IN), 0o700), (self_dir(layout, STAND_IN), 0o755)):
        with contextlib.suppress(FileExistsError):
            _make(directory, mode)
    write_preload(layout, STAND_IN, preloaded(node), shared=True)


_INODES = 16
"""In self/, besides the driver's files: the pages, the socket and `eviction` twice (they are renamed), `driver`, `sim`,
itself."""


def write_eviction(layout: Layout, grant_id: str, data: bytes) -> None:
    """Puts `eviction` into self/, whole or not at all: what is in it was asked of the grant. Raises OSError."""
    own = self_dir(layout, grant_id)
    fresh = own / ".eviction"
    files.write(os.fspath(fresh), data, 0o644)
    fresh.rename(own / "eviction")


def remove_eviction(layout: Layout, grant_id: str) -> None:
    """The grant is asked for nothing any more. Raises OSError."""
    (self_dir(layout, grant_id) / "eviction").unlink(missing_ok=True)


def create(layout: Layout, grant_id: str, kind: Kind, gid: int, node: Node, room: int = 0) -> Path:
    """Makes the skeleton and returns self/. `gid` is the plain process's group; a container needs none. `room`: of the
    files that will be there, whole pages: where it can, self/ is a file system that has room for no more.

    A container's self/ is mounted, so it holds empty mount points. A plain process follows symlinks instead.
    """
    prepare(layout)
    top, own = grant_dir(layout, grant_id), self_dir(layout, grant_id)
    _make(top, 0o700)
    if room and mounts.possible(layout.grants):
        os.mkdir(own)
        count = len(node.driver_files)
        # A symlink of more than 127 bytes takes a page.
        mounts.mount(own, room + (2 + count) * mmap.PAGESIZE, _INODES + count, 0o755, 0)
    else:
        _make(own, 0o755)
    if kind == "container":
        for name in ("driver", "compat", "sim") if node.simulated else ("driver", "compat"):
            _make(f"{own}/{name}", 0o755)
        for file in () if node.simulated else node.driver_files:
            (own / "driver" / file.name).touch(mode=0o444)
        write_preload(layout, grant_id, preloaded(node))
    else:
        top.chmod(0o711)
        os.chown(own, 0 if os.geteuid() == 0 else -1, gid)
        own.chmod(0o750)
        if node.sim_dir is not None:
            (own / "driver").symlink_to(node.sim_lib_dir)
            (own / "sim").symlink_to(node.sim_dir)
        else:
            _make(own / "driver", 0o755)
            for file in node.driver_files:
                (own / "driver" / file.name).symlink_to(file)
    return own


def _make(directory: Path | str, mode: int) -> None:
    """`mode`: whatever the umask is."""
    os.mkdir(directory, mode)
    os.chmod(directory, mode)


def write_preload(
    layout: Layout, grant_id: str, ours: Sequence[str], image_lines: Sequence[str] = (), *, shared: bool = False
) -> None:
    """Writes the grant's preload file. `image_lines`: what the image itself preloads, which is kept. `shared`:
    containers of other images have one of their own."""
    lines = preload.ordered(image_lines, ours)
    # An image's paths need not be UTF-8.
    data = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    _write(preload_file(layout, grant_id), data, shared=shared)


def write_cache(layout: Layout, grant_id: str, data: bytes, *, shared: bool = False) -> None:
    """Writes the grant's loader cache. `shared`: as write_preload takes it."""
    _write(cache_file(layout, grant_id), data, shared=shared)


def _write(path: Path, data: bytes, *, shared: bool) -> None:
    # In place otherwise: the grant's only container may have this very file mounted already.
    (files.replace if shared else files.write)(os.fspath(path), data, 0o644)


# What the grant of a container that nobody has used holds, on a simulated device: to look for more takes longer.
_FILES = ("self/limits", "self/usage", "ld.so.preload")
_DIRECTORIES = ("self/driver", "self/compat", "self/sim", "self", "")
_MOUNTED = ("ld.so.preload",), ("self", "")
"""The same where self/ was mounted, and is not any more."""


def remove(layout: Layout, grant_id: str) -> None:
    """Removes the grant's directory; a directory that is gone already is fine. Never follows a symlink."""
    top = grant_dir(layout, grant_id)
    names, directories = _MOUNTED if mounts.unmount(self_dir(layout, grant_id)) else (_FILES, _DIRECTORIES)
    try:
        for name in names:
            os.unlink(f"{top}/{name}")
        for name in directories:
            os.rmdir(f"{top}/{name}")
    except OSError:  # it holds less or more
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(top)
