"""A plain process of root in a mount namespace of its own, where it finds its grant and the interposer as a container
does: whatever it does to its environment, and whichever user it becomes.

The grant is at PROCESS_SELF, as all users of the namespace may reach it, and each copy of the driver's libraries on the
host has the interposer mounted over it. Mounts of the host still appear in the namespace; those that the process makes
stay in it.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpushare.inject import mounts, preload
from gpushare.paths import INTERPOSER, INTERPOSER_ML, PROCESS_SELF

_CLONE_NEWNS = 0x20000  # sched.h

_OWN = Path(PROCESS_SELF)
_LINKS = ("grant.sock", "eviction")
"""Files of the grant that are replaced while it is in use."""


def enter(grant: Path, environment: Mapping[str, str], daemon: Path) -> bool:
    """Moves this process into such a namespace. `grant`: self/ of its grant. `environment`: what the command gets.
    `daemon`: the node socket.

    False where that is not possible: it may not mount, as root in a container, or nothing can be made in /run. Then the
    command has what those of other users have, its environment.
    """
    before = os.umask(0o022)
    try:
        return _enter(grant, environment, daemon)
    finally:
        os.umask(before)


def _enter(grant: Path, environment: Mapping[str, str], daemon: Path) -> bool:
    try:
        _OWN.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not (grant / "limits").exists():
            _join(daemon)
        mounts.check(mounts.libc.unshare(_CLONE_NEWNS), "unshare")
        mounts.mount(None, Path("/"), mounts.REC | mounts.SLAVE)
    except OSError:
        return False
    with contextlib.ExitStack() as opened:
        try:
            # All are opened first: in a run in a run, the outer one's mounts are about to be covered.
            sources = {name: opened.enter_context(_opened(path)) for name, path in _sources(grant)}
            copies = _copies(sources, environment)
            mounts.mount("tmpfs", _OWN, mounts.NOSUID | mounts.NODEV, kind="tmpfs", options="mode=755,size=1m")
        except OSError:
            return False
        try:
            _fill(sources)
        except OSError:
            mounts.libc.umount2(os.fsencode(_OWN), mounts.DETACH)  # only this: in a run in a run, not the outer one's
            return False
        for copy, interposer in copies.items():
            with contextlib.suppress(OSError):  # the others are covered
                mounts.mount(interposer, copy, mounts.BIND)
    return True


def _join(daemon: Path) -> None:
    """Joins the daemon's namespace, which has the files of all grants: without mount propagation on the node, the
    namespace of a run does not have those of a run in it. `daemon`: its socket. Raises OSError."""
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(os.fspath(daemon))
        (pid,) = struct.unpack("i8x", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if not Path(f"/proc/{pid}/root").samefile("/"):  # it runs in a container
        return
    with open(f"/proc/{pid}/ns/mnt") as namespace:
        mounts.check(mounts.libc.setns(namespace.fileno(), _CLONE_NEWNS), "setns")
    with contextlib.suppress(OSError):
        os.chdir(before)


def _sources(grant: Path) -> Iterator[tuple[str, Path]]:
    """Yields what is mounted below PROCESS_SELF, by name."""
    yield "self", grant
    yield from ((name, grant / name) for name in ("limits", "usage"))
    if (grant / "sim").exists():
        yield "sim", grant / "sim"
    driver = grant / "driver"
    if driver.is_symlink():
        yield "driver", driver
        return
    for link in driver.iterdir():
        before = _OWN / "driver" / link.name  # in a run in a run: at the link's end is the interposer
        yield f"driver/{link.name}", before if before.exists() else link


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[str]:
    """Yields a name that goes on to mean what is at this path now."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _fill(sources: Mapping[str, str]) -> None:
    (_OWN / "driver").mkdir()
    for name, source in sources.items():
        target = _OWN / name
        if Path(source).is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        mounts.mount(source, target, mounts.BIND)
    for name in _LINKS:
        (_OWN / name).symlink_to(f"self/{name}")
    for name in ("", "self", "limits"):
        mounts.mount(None, _OWN / name, mounts.BIND | mounts.REMOUNT | mounts.RDONLY | mounts.INERT)


def _copies(sources: Mapping[str, str], environment: Mapping[str, str]) -> dict[Path, str]:
    """Returns the driver's libraries that a program of this process could find, each with the interposer's for it."""
    interposers = {Path(path).name: path for path in preload.split(environment["LD_PRELOAD"])}
    ours = {"libcuda": interposers[INTERPOSER.name], "libnvidia-ml": interposers[INTERPOSER_ML.name]}
    found = {}
    for directory in _searched(sources, environment):
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            # Names first: a directory of libraries has a thousand others.
            for file in (Path(entry) for entry in entries if preload.DRIVER_NAME.fullmatch(entry.name)):
                if file.is_file() and not any(file.samefile(path) for path in ours.values()):
                    found[file.resolve()] = ours[file.name.partition(".")[0]]
    return found


def _searched(sources: Mapping[str, str], environment: Mapping[str, str]) -> set[Path]:
    """The directories where a program could find the driver."""
    named = map(Path, (*preload.LIBRARY_DIRS, *environment.get("LD_LIBRARY_PATH", "").split(":")))
    grants = (Path(path).resolve() for name, path in sources.items() if name.startswith("driver"))
    found = {
        *(path.resolve() for path in named if path.is_absolute()),
        *(path if path.is_dir() else path.parent for path in grants),
        *(path / "compat" for path in Path("/usr/local").glob("cuda*")),
    }
    # The toolkit's stubs are for the linker only: nothing loads them. In a run in a run, _OWN has the driver itself.
    return {path for path in found if path.name != "stubs" and not path.is_relative_to(_OWN)}
