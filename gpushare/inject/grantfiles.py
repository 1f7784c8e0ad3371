"""Makes, changes and removes the files in a grant's directory (inject/grantdir.py).

The daemon puts `grant.sock` into `self/`; everything else is made here. Isolation between tenants depends on the file
modes set here.
"""

import contextlib
import errno
import functools
import logging
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare._native import ffi
from gpushare.errors import FailedError
from gpushare.inject import files, mounts, preload, steps
from gpushare.inject.grantdir import STAND_IN, Kind, cache_file, grant_dir, preload_file, preloaded, self_dir
from gpushare.inject.node import Node
from gpushare.inject.steps import Step, Steps
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
    for made in (steps.directory("", 0o700), steps.directory("self", 0o755)):
        with contextlib.suppress(FileExistsError):
            Steps(made).run(grant_dir(layout, STAND_IN))
    write_preload(layout, STAND_IN, preloaded(node), shared=True)


def write_eviction(layout: Layout, grant_id: str, data: bytes) -> None:
    """Writes `eviction` into self/ atomically. `data`: what the grant is asked to do. Raises OSError."""
    own = self_dir(layout, grant_id)
    fresh = own / ".eviction"
    files.write(os.fspath(fresh), data, 0o644)
    fresh.rename(own / "eviction")


def remove_eviction(layout: Layout, grant_id: str) -> None:
    """Removes `eviction`: the grant is no longer asked for anything. Raises OSError."""
    (self_dir(layout, grant_id) / "eviction").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Pages:
    """Initial contents of the grant's two pages. `usage_bytes`: size of the usage file, zero-filled after `usage`."""

    limits: bytes
    usage: bytes
    usage_bytes: int

    def put_into(self, made: Steps) -> None:
        """Sets the contents of the files that these steps make."""
        made.put("self/limits", self.limits)
        made.put("self/usage", self.usage)


def create(layout: Layout, grant_id: str, kind: Kind, user: tuple[int, int], node: Node, pages: Pages) -> Path:
    """Makes the directory with its pages, and returns self/. `user`: uid and gid of the plain process; unused for a
    container. If possible, self/ is a file system with room for its intended files only. Raises OSError.

    A container's self/ is mounted, so it contains empty mount points. A plain process follows symlinks instead.
    """
    prepare(layout)
    own_fs = mounts.possible(layout.grants)
    if kind == "container":
        made = _for_container(node, own_fs, len(pages.limits), pages.usage_bytes)
    else:
        made = Steps(*_for_process(node, own_fs, pages, *user))
    pages.put_into(made)
    made.run(grant_dir(layout, grant_id))
    return self_dir(layout, grant_id)


_INODES = 16
"""Inodes in self/ besides the driver's files: the pages, the socket and `eviction` twice (they are renamed), `driver`,
`sim`, and self/ itself."""

_ROOM_BYTES = ffi.sizeof("struct gs_usage") - ffi.offsetof("struct gs_usage", "trace")
"""Bytes allocated at the start and at the end of a page when it is made on a shared file system: all of the limits
page; in the usage page the slots of the first 155 processes, and all that follows the slots. UsagePage.claim allocates
other slots."""


@functools.lru_cache(maxsize=8)
def _for_container(node: Node, own_fs: bool, limits_bytes: int, usage_bytes: int) -> Steps:
    return Steps(*for_container(node, own_fs, limits_bytes, usage_bytes))


def for_container(node: Node, own_fs: bool, limits_bytes: int, usage_bytes: int) -> Iterator[Step]:
    """Yields the steps that make the directory of a container's grant. `own_fs`: self/ is a file system of its own.
    `limits_bytes`, `usage_bytes`: sizes of the pages, whose contents Pages.put_into sets."""
    yield steps.directory("", 0o700)
    yield from _own(node, own_fs, 0o755, limits_bytes, usage_bytes, 0o666)
    yield from (steps.directory(f"self/{name}", 0o755) for name in ("driver", "compat"))
    if node.simulated:
        yield steps.directory("self/sim", 0o755)
    yield from (steps.file(f"self/driver/{file.name}", 0o444) for file in _driver_files(node))
    yield steps.file("ld.so.preload", 0o644, preload.text(preload.ordered((), preloaded(node))))


def _for_process(node: Node, own_fs: bool, pages: Pages, uid: int, gid: int) -> Iterator[Step]:
    root = os.geteuid() == 0
    if uid == 0:
        # Only root reaches it here. In the namespace of the process (inject/apart.py) it is open to the users that the
        # process becomes.
        yield steps.directory("", 0o700)
        yield from _own(node, own_fs, 0o755, len(pages.limits), pages.usage_bytes, 0o666)
    else:
        yield steps.directory("", 0o711)
        yield from _own(node, own_fs, 0o750, len(pages.limits), pages.usage_bytes, 0o600)
    yield steps.owner("self", 0 if root else steps.AS_IT_IS, gid)
    if root:
        yield steps.owner("self/usage", uid, gid)
    if node.sim_dir is not None:
        yield steps.symlink("self/driver", node.sim_lib_dir)
        yield steps.symlink("self/sim", node.sim_dir)
    else:
        yield steps.directory("self/driver", 0o755)
        for file in node.driver_files:
            yield steps.symlink(f"self/driver/{file.name}", file)


def _driver_files(node: Node) -> Sequence[Path]:
    return () if node.simulated else node.driver_files


def _own(node: Node, own_fs: bool, mode: int, limits_bytes: int, usage_bytes: int, usage_mode: int) -> Iterator[Step]:
    """Yields the steps that make self/ and its pages."""
    yield steps.directory("self", mode)
    if own_fs:
        # `eviction` and its replacement exist at the same time. A symlink of more than 127 bytes takes a page.
        files, count = (limits_bytes, usage_bytes, mmap.PAGESIZE, mmap.PAGESIZE), len(node.driver_files)
        size = sum(-(-size // mmap.PAGESIZE) for size in files) + 2 + count
        yield steps.tmpfs("self", size * mmap.PAGESIZE, _INODES + count, mode)
    room = 0 if own_fs else _ROOM_BYTES
    yield steps.file("self/limits", 0o644, size=limits_bytes, room=room)
    yield steps.file("self/usage", usage_mode, size=usage_bytes, room=room)


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
    (files.replace if shared else files.write)(os.fspath(path), data, 0o644)


# Contents of an unused container grant's directory on a simulated device: listing the directory would take longer.
_SHARED_FS = (
    *(steps.unlink(name) for name in ("self/limits", "self/usage", "ld.so.preload")),
    *(steps.rmdir(name) for name in ("self/driver", "self/compat", "self/sim", "self", "")),
)
_OWN_FS = (steps.unmount("self"), steps.unlink("ld.so.preload"), steps.rmdir("self"), steps.rmdir(""))


def remove(layout: Layout, grant_id: str) -> None:
    """Removes the grant's directory, if it exists. Never follows a symlink."""
    top = grant_dir(layout, grant_id)
    try:
        _remove(mounts.possible(layout.grants)).run(top)
    except OSError:  # the contents differ
        remove_anyhow(top)


@functools.cache
def _remove(own_fs: bool) -> Steps:
    return Steps(*removal(own_fs))


def removal(own_fs: bool) -> tuple[Step, ...]:
    """Returns the steps that remove an unused grant's directory. If one fails, `remove_anyhow` must be used. `own_fs`:
    as in for_container."""
    return _OWN_FS if own_fs else _SHARED_FS


_TRIES = 20
"""Attempts at a removal that finds a new file in the directory: the ledger's thread writes at most one per second."""


def remove_anyhow(top: Path) -> None:
    """Removes a grant's directory with any contents, including a `record` that the ledger's thread writes meanwhile.
    Raises OSError."""
    for left in reversed(range(_TRIES)):
        mounts.unmount(top / "self")
        try:
            shutil.rmtree(top)
        except FileNotFoundError:  # the directory, or a file renamed meanwhile
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:
                raise
        if not os.path.lexists(top):
            return
