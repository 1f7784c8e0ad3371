"""The files in a grant's directory (inject/grantdir.py): made, changed, removed.

The daemon puts `grant.sock` into `self/`; everything else is made here. Isolation between tenants rests on the modes
set here.
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

from gpushare.errors import FailedError
from gpushare.inject import files, mounts, preload, steps
from gpushare.inject.grantdir import STAND_IN, Kind, cache_file, grant_dir, preload_file, preloaded, self_dir
from gpushare.inject.node import Node
from gpushare.inject.steps import Step, Steps
from gpushare.paths import Layout

log = logging.getLogger(__name__)


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
    for made in (steps.directory("", 0o700), steps.directory("self", 0o755)):
        with contextlib.suppress(FileExistsError):
            Steps(made).run(grant_dir(layout, STAND_IN))
    write_preload(layout, STAND_IN, preloaded(node), shared=True)


def write_eviction(layout: Layout, grant_id: str, data: bytes) -> None:
    """Puts `eviction` into self/, whole or not at all: what is in it was asked of the grant. Raises OSError."""
    own = self_dir(layout, grant_id)
    fresh = own / ".eviction"
    files.write(os.fspath(fresh), data, 0o644)
    fresh.rename(own / "eviction")


def remove_eviction(layout: Layout, grant_id: str) -> None:
    """The grant is asked for nothing any more. Raises OSError."""
    (self_dir(layout, grant_id) / "eviction").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Pages:
    """What the grant's two files begin with. `usage_bytes`: of the usage file, with zeros behind that."""

    limits: bytes
    usage: bytes
    usage_bytes: int

    def put_into(self, made: Steps) -> None:
        """They are what the files hold that these steps make."""
        made.put("self/limits", self.limits)
        made.put("self/usage", self.usage)


def create(layout: Layout, grant_id: str, kind: Kind, user: tuple[int, int], node: Node, pages: Pages) -> Path:
    """Makes the directory with its pages, and returns self/. `user`: uid and gid of the plain processes; a container
    needs none. Where it can, self/ is a file system that has room for no more than what belongs there. Raises OSError.

    A container's self/ is mounted, so it holds empty mount points. A plain process follows symlinks instead.
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
"""In self/, besides the driver's files: the pages, the socket and `eviction` twice (they are renamed), `driver`, `sim`,
itself."""

_ROOM_BYTES = 64 << 10
"""Of a page that shares its file system with others, allocated when it is made, at its start and at its end: all of the
limits; of the usage the slots of the first 31 processes, and every trace ring."""


@functools.lru_cache(maxsize=8)
def _for_container(node: Node, own_fs: bool, limits_bytes: int, usage_bytes: int) -> Steps:
    return Steps(*for_container(node, own_fs, limits_bytes, usage_bytes))


def for_container(node: Node, own_fs: bool, limits_bytes: int, usage_bytes: int) -> Iterator[Step]:
    """What makes the directory of a container's grant. `own_fs`: self/ is a file system. Sizes of the pages, in bytes,
    which Pages.put_into fills."""
    yield steps.directory("", 0o700)
    yield from _own(node, own_fs, 0o755, limits_bytes, usage_bytes, 0o666)
    yield from (steps.directory(f"self/{name}", 0o755) for name in ("driver", "compat"))
    if node.simulated:
        yield steps.directory("self/sim", 0o755)
    yield from (steps.file(f"self/driver/{file.name}", 0o444) for file in _driver_files(node))
    yield steps.file("ld.so.preload", 0o644, preload.text(preload.ordered((), preloaded(node))))


def _for_process(node: Node, own_fs: bool, pages: Pages, uid: int, gid: int) -> Iterator[Step]:
    root = os.geteuid() == 0
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
    """self/ and its pages."""
    yield steps.directory("self", mode)
    if own_fs:
        # `eviction` is written beside the one before. A symlink of more than 127 bytes takes a page.
        files, count = (limits_bytes, usage_bytes, mmap.PAGESIZE, mmap.PAGESIZE), len(node.driver_files)
        size = sum(-(-size // mmap.PAGESIZE) for size in files) + 2 + count
        yield steps.tmpfs("self", size * mmap.PAGESIZE, _INODES + count, mode)
    room = 0 if own_fs else _ROOM_BYTES
    yield steps.file("self/limits", 0o644, size=limits_bytes, room=room)
    yield steps.file("self/usage", usage_mode, size=usage_bytes, room=room)


def write_preload(
    layout: Layout, grant_id: str, ours: Sequence[str], image_lines: Sequence[str] = (), *, shared: bool = False
) -> None:
    """Writes the grant's preload file. `image_lines`: what the image itself preloads, which is kept. `shared`:
    containers of other images have one of their own."""
    _write(preload_file(layout, grant_id), preload.text(preload.ordered(image_lines, ours)), shared=shared)


def write_cache(layout: Layout, grant_id: str, data: bytes, *, shared: bool = False) -> None:
    """Writes the grant's loader cache. `shared`: as write_preload takes it."""
    _write(cache_file(layout, grant_id), data, shared=shared)


def _write(path: Path, data: bytes, *, shared: bool) -> None:
    # In place otherwise: the grant's only container may have this very file mounted already.
    (files.replace if shared else files.write)(os.fspath(path), data, 0o644)


# What the grant of a container that nobody has used holds, on a simulated device: to look for more takes longer.
_SHARED_FS = (
    *(steps.unlink(name) for name in ("self/limits", "self/usage", "ld.so.preload")),
    *(steps.rmdir(name) for name in ("self/driver", "self/compat", "self/sim", "self", "")),
)
_OWN_FS = (steps.unmount("self"), steps.unlink("ld.so.preload"), steps.rmdir("self"), steps.rmdir(""))


def remove(layout: Layout, grant_id: str) -> None:
    """Removes the grant's directory; a directory that is gone already is fine. Never follows a symlink."""
    top = grant_dir(layout, grant_id)
    try:
        _remove(layout).run(top)
    except OSError:  # it holds less or more
        remove_anyhow(top)


@functools.lru_cache(maxsize=8)
def _remove(layout: Layout) -> Steps:
    return Steps(*removal(layout))


def removal(layout: Layout) -> tuple[Step, ...]:
    """What removes the directory of a grant that nobody has used; where one of them fails, `remove_anyhow` does."""
    return _OWN_FS if mounts.possible(layout.grants) else _SHARED_FS


_TRIES = 20
"""Of a removal that finds something new in the directory: the ledger's thread writes into it once a second at most."""


def remove_anyhow(top: Path) -> None:
    """Removes a grant's directory whatever it holds, and what the ledger's thread puts into it meanwhile (`record`).
    Raises OSError."""
    for left in reversed(range(_TRIES)):
        mounts.unmount(top / "self")
        try:
            shutil.rmtree(top)
        except FileNotFoundError:  # it, or a file that has another name now
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:
                raise
        if not os.path.lexists(top):
            return
