"""What a server sees of the machine: a mount namespace with the grant in it as a plain process of root has it, the rest
read-only, and nothing of what changes on a machine or belongs to its users.

HIDDEN directories are empty. Programs and libraries belong elsewhere; the server's program, and what its environment
preloads and searches for libraries, are seen even there.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import FailedError
from gpushare.inject import apart, mounts, preload
from gpushare.paths import PROCESS_SELF

HIDDEN = ("/home", "/root", "/run", "/var", "/tmp", "/mnt", "/media", "/srv")  # noqa: S108
"""Also because sockets can be used through a mount that is read-only."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_DEV, _TMP = Path("/dev"), Path("/tmp")  # noqa: S108

# linux/mount.h, linux/fcntl.h
_RDONLY, _NOSUID, _NODEV, _RECURSIVE, _AT_FDCWD, _MOUNT_SETATTR = 1, 2, 4, 0x8000, -100, 442
_PRIVATE = 1 << 18
_COVERED = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL)
"""Errors for a mount that another one covers: nobody reaches it."""
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


@dataclass(frozen=True, slots=True)
class Needs:
    """`grant`, `environment`, `daemon`: as gpushare.inject.apart takes them. `program`: of the server. `devices`: its
    nodes. `memory`: bytes of it, of which files in /tmp and /dev/shm may take half each."""

    grant: Path
    environment: Mapping[str, str]
    daemon: Path
    program: str
    devices: Sequence[str]
    memory: int


def enter(needs: Needs) -> None:
    """Moves this process, which is root and in its own network namespace, into such a mount namespace. /proc stays the
    host's (gpushare/sandbox/first.py). Raises OSError, and FailedError."""
    if not apart.enter(needs.grant, needs.environment, needs.daemon):
        raise FailedError("the grant's files cannot be mounted: may the daemon make mounts, and directories in /run?")
    shut()
    _set(Path(PROCESS_SELF) / "usage", cleared=_RDONLY)
    with contextlib.ExitStack() as opened:
        kept = {path: opened.enter_context(_opened(path)) for path in _kept(needs)}
        nodes = {path: opened.enter_context(_opened(path)) for path in map(Path, (*DEVICES, *needs.devices))}
        hidden = [*_hidden(), _DEV]
        _hide(hidden, needs.memory // 2)
        for path, source in kept.items():
            _bind(source, path, recursive=True)  # the interposer is mounted over the driver in some of them
        _fill_dev(nodes, needs.memory // 2)
        for path in hidden:
            if path != _TMP:
                _set(path, added=_RDONLY)
    mounts.mount("sysfs", Path("/sys"), mounts.INERT | mounts.RDONLY, kind="sysfs")


def shut(mountinfo: str | None = None) -> None:
    """Makes all mounts read-only, without devices and programs that gain rights, and no more the host's: what is
    mounted there later is not seen. Raises OSError.

    `mountinfo`: as on kernels before 5.12, mount by mount, for tests.
    """
    if mountinfo is None:
        try:
            _set(Path("/"), added=_RDONLY | _NOSUID | _NODEV, propagation=_PRIVATE, flags=_RECURSIVE)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        else:
            return
    mounts.mount(None, Path("/"), mounts.REC | _PRIVATE)
    for line in mountinfo.splitlines():
        fields = line.split()
        place = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
        kept = mounts.NOEXEC if "noexec" in fields[5].split(",") else 0
        flags = mounts.BIND | mounts.REMOUNT | mounts.RDONLY | mounts.NOSUID | mounts.NODEV | kept
        try:
            mounts.mount(None, Path(os.fsdecode(place)), flags)
        except OSError as error:
            if error.errno not in _COVERED:
                raise


def _set(path: Path, *, added: int = 0, cleared: int = 0, propagation: int = 0, flags: int = 0) -> None:
    """Changes attributes of the mount at this path. Raises OSError."""
    attributes = struct.pack("=4Q", added, cleared, propagation, 0)
    arguments = (ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags), attributes)
    try:
        mounts.check(mounts.libc.syscall(_MOUNT_SETATTR, *arguments, ctypes.c_size_t(len(attributes))), path)
    except OSError as error:
        if error.errno != errno.ENOSYS or flags & _RECURSIVE:
            raise
        kept = os.statvfs(path).f_flag & (_RDONLY | _NOSUID | _NODEV | mounts.NOEXEC)
        mounts.mount(None, path, mounts.BIND | mounts.REMOUNT | (kept | added) & ~cleared)


def _kept(needs: Needs) -> Iterator[Path]:
    """Yields what would be hidden, and is not to be."""
    named = [needs.program, *preload.split(needs.environment.get("LD_PRELOAD", ""))]
    found = {*named, *needs.environment.get("LD_LIBRARY_PATH", "").split(":")}
    found |= {os.path.realpath(path) for path in found if path.startswith("/")}
    for path in map(Path, sorted(found)):
        hidden = any(path.is_relative_to(directory) for directory in HIDDEN)
        if hidden and not path.is_relative_to(PROCESS_SELF) and path.exists():
            yield path


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[str]:
    """Yields a name that goes on to mean what is at this path now. Raises OSError."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _hidden() -> Iterator[Path]:
    for path in map(Path, HIDDEN):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(path.lstat().st_mode):
                yield path


def _hide(hidden: Sequence[Path], room: int) -> None:
    """Covers these directories. One for short-lived files is the server's own, in memory that is charged to it:
    `room`."""
    with _opened(Path(PROCESS_SELF)) as own:
        for path in hidden:
            _tmpfs(path, room if path == _TMP else None)
        _bind(own, Path(PROCESS_SELF), recursive=True)
    for path, target in ((Path("/var/tmp"), _TMP), (Path("/var/run"), Path("/run"))):  # noqa: S108
        if path.parent in hidden:
            path.symlink_to(target)


def _tmpfs(path: Path, room: int | None) -> None:
    options = "mode=755" if room is None else f"mode=1777,size={room}"
    mounts.mount("tmpfs", path, mounts.NOSUID | mounts.NODEV, kind="tmpfs", options=options)


def _bind(source: str, target: Path, *, recursive: bool = False) -> None:
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if Path(source).is_dir():
        target.mkdir(mode=0o755, exist_ok=True)
    elif not target.exists():
        target.touch()
    mounts.mount(source, target, mounts.BIND | (mounts.REC if recursive else 0))


def _fill_dev(nodes: Mapping[Path, str], room: int) -> None:
    for path, source in nodes.items():
        _bind(source, path)
        _set(path, cleared=_NODEV)
    for name, target in _LINKS.items():
        (_DEV / name).symlink_to(target)
    shared = _DEV / "shm"
    shared.mkdir()
    _tmpfs(shared, room)
