"""Makes, changes and removes the files in a grant's directory (inject/grantdir.py).

The daemon puts `grant.sock` into `self/`; everything else is made here. Isolation between tenants depends on the file
modes set here.
"""

import contextlib
import logging
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare._native import ffi
from gpushare.errors import FailedError
from gpushare.inject import files, mounts, preload
from gpushare.inject.grantdir import STAND_IN, Kind, cache_file, grant_dir, preload_file, preloaded, self_dir
from gpushare.inject.node import Node
from gpushare.paths import Layout

log = logging.getLogger(__name__)


def prepare(layout: Layout) -> None:
    """Makes the parent of all grant directories. It may be in /dev/shm, where any user can create something of that
    name first: that is moved away. Raises FailedError if that fails."""
    mode = _our_mode(layout.grants)
    if mode is None:
        with contextlib.suppress(FileExistsError):  # something else
            layout.grants.mkdir(mode=0o711, parents=True, exist_ok=True)
        if _our_mode(layout.grants) is None:
            _move_away(layout.grants)
    if mode != 0o711:
        layout.grants.chmod(0o711)


def _our_mode(directory: Path) -> int | None:
    """Returns the mode of a directory that the daemon owns; None if there is none, or something else."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return stat.S_IMODE(found.st_mode) if ours else None


def _move_away(directory: Path) -> None:
    """Exchanges another user's file or directory at this path for one of ours, however often the user recreates it. An
    empty directory or a symlink is removed; anything else is kept under another name."""
    fresh = directory.with_name(f"{directory.name}.{secrets.token_hex(4)}")
    try:
        fresh.mkdir(mode=0o711)
        while True:
            try:
                mounts.exchange(fresh, directory)
            except FileNotFoundError:  # just removed
                with contextlib.suppress(FileExistsError):  # just recreated
                    directory.mkdir(mode=0o711)
                    return
            else:
                # Its owner may move it from there at any moment.
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
    """Makes the stand-in directory that containers have until their hook mounts a grant's over it. Running containers
    still have it mounted underneath, so it is never replaced or removed. Raises OSError."""
    prepare(layout)
    for path, mode in ((grant_dir(layout, STAND_IN), 0o700), (self_dir(layout, STAND_IN), 0o755)):
        with contextlib.suppress(FileExistsError):
            files.directory(path, mode)
    write_preload(layout, STAND_IN, preloaded(node), shared=True)


def write_eviction(layout: Layout, grant_id: str, data: bytes) -> None:
    """Writes `eviction` into self/ atomically. `data`: what the grant is asked to do. Raises OSError."""
    own = self_dir(layout, grant_id)
    files.replace(own / "eviction", data, 0o644, through=own / ".eviction")


def remove_eviction(layout: Layout, grant_id: str) -> None:
    """Removes `eviction`: the grant is no longer asked for anything. Raises OSError."""
    (self_dir(layout, grant_id) / "eviction").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Pages:
    """Initial contents of the grant's two pages. `usage_bytes`: size of the usage file, zero-filled after `usage`."""

    limits: bytes
    usage: bytes
    usage_bytes: int


def create(layout: Layout, grant_id: str, kind: Kind, user: tuple[int, int], node: Node, pages: Pages) -> Path:
    """Makes the directory with its pages, and returns self/. `user`: uid and gid of the plain process; unused for a
    container. If possible, self/ is a file system with room for its intended files only. Raises OSError.

    A container's self/ is mounted, so it contains empty mount points. A plain process follows symlinks instead.
    """
    prepare(layout)
    own = self_dir(layout, grant_id)
    if kind == "container":
        _make_for_container(layout, grant_id, node, pages)
    else:
        _make_for_process(layout, grant_id, node, pages, *user)
    return own


_INODES = 16
"""Inodes in self/ besides the driver's files: the pages, the socket and `eviction` twice (they are renamed), `driver`,
`sim`, and self/ itself."""

_ROOM_BYTES = ffi.sizeof("struct gs_usage") - ffi.offsetof("struct gs_usage", "trace")
"""Bytes allocated at the start and at the end of a page when it is made on a shared file system: all of the limits
page; in the usage page the slots of the first 204 processes, and all that follows the slots. UsagePage.claim allocates
other slots."""


def _make_for_container(layout: Layout, grant_id: str, node: Node, pages: Pages) -> None:
    own = self_dir(layout, grant_id)
    files.directory(own.parent, 0o700)
    _make_own(layout, own, node, pages, 0o755, 0o666)
    for name in ("driver", "compat", *(("sim",) if node.simulated else ())):
        files.directory(own / name, 0o755)
    for file in () if node.simulated else node.driver_files:
        files.make(own / "driver" / file.name, b"", 0o444)
    # The last one: a grant with it has all its files.
    files.make(preload_file(layout, grant_id), preload.text(preload.ordered((), preloaded(node))), 0o644)


def _make_for_process(layout: Layout, grant_id: str, node: Node, pages: Pages, uid: int, gid: int) -> None:
    own, root = self_dir(layout, grant_id), os.geteuid() == 0
    if uid == 0:
        # Only root reaches it here. In the namespace of the process (inject/apart.py) it is open to the users that the
        # process becomes.
        files.directory(own.parent, 0o700)
        _make_own(layout, own, node, pages, 0o755, 0o666)
    else:
        files.directory(own.parent, 0o711)
        _make_own(layout, own, node, pages, 0o750, 0o600)
    os.lchown(own, 0 if root else -1, gid)
    if root:
        os.lchown(own / "usage", uid, gid)
    if node.sim_dir is not None:
        (own / "driver").symlink_to(node.sim_lib_dir)
        (own / "sim").symlink_to(node.sim_dir)
    else:
        files.directory(own / "driver", 0o755)
        for file in node.driver_files:
            (own / "driver" / file.name).symlink_to(file)


def _make_own(layout: Layout, own: Path, node: Node, pages: Pages, mode: int, usage_mode: int) -> None:
    """Makes self/ and its pages."""
    files.directory(own, mode)
    room = _ROOM_BYTES
    if mounts.possible(layout.grants):
        # `eviction` and its replacement exist at the same time. A symlink of more than 127 bytes takes a page.
        sizes, count = (len(pages.limits), pages.usage_bytes, mmap.PAGESIZE, mmap.PAGESIZE), len(node.driver_files)
        size = sum(-(-size // mmap.PAGESIZE) for size in sizes) + 2 + count
        mounts.tmpfs(own, size * mmap.PAGESIZE, _INODES + count, mode)
        room = 0
    files.make(own / "limits", pages.limits, 0o644, room=room)
    files.make(own / "usage", pages.usage, usage_mode, size=pages.usage_bytes, room=room)


def write_preload(
    layout: Layout, grant_id: str, ours: Sequence[str], image_lines: Sequence[str] = (), *, shared: bool = False
) -> None:
    """Writes the grant's preload file. `image_lines`: libraries that the image itself preloads, kept. `shared`: write a
    new file, since containers of other images have the old one mounted."""
    _write(preload_file(layout, grant_id), preload.text(preload.ordered(image_lines, ours)), shared=shared)


def write_cache(layout: Layout, grant_id: str, data: bytes, *, shared: bool = False) -> None:
    """Writes the grant's loader cache. `shared`: as write_preload takes it."""
    _write(cache_file(layout, grant_id), data, shared=shared)


def _write(path: Path, data: bytes, *, shared: bool) -> None:
    # If not shared, in place: the grant's only container may have this very file mounted already.
    (files.replace if shared else files.write)(path, data, 0o644)


def remove(layout: Layout, grant_id: str) -> None:
    """Removes the grant's directory, if it exists, with any contents. Never follows a symlink. Raises OSError."""
    top = grant_dir(layout, grant_id)
    mounts.unmount(top / "self")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(top)
