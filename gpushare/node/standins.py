"""Stand-in device nodes of simulated devices: what /dev/nvidiaN is to a real one. The simulated driver serves no
process that may not open them, so that all that keeps processes from device nodes can be tried without a GPU.

No driver is behind their major number, which is one for local use: opening one ends with ENXIO, and does nothing. The
kernel decides before that whether the process may, by the node's mode, its mount and the device cgroup: EACCES and
EPERM are a refusal, ENXIO is none.
"""

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path

from gpushare.inject import files
from gpushare.inject.node import DeviceNode

# Documentation/admin-guide/devices.txt: LOCAL/EXPERIMENTAL USE. Numbers that the kernel gives by itself are others.
_MAJORS = (*range(120, 128), *range(60, 64))
_PER_DAEMON = 16
_SLOTS = (1 << 20) // _PER_DAEMON
_TRIES = 1000
_MODE = 0o666  # as the driver's


def path(minor: int) -> str:
    """Where a node is, on the host and in containers; native/sim/wire/sim_proto.h: SIM_NODE_PATH."""
    return f"/dev/gpushare-sim-{minor}"


def _file(directory: Path) -> Path:
    """Says what was chosen, beside the directory, which containers see."""
    return directory.with_name("sim.nodes")


def chosen(directory: Path) -> tuple[int, int] | None:
    """Major and first minor of the simulator of this directory, since the machine was started; None: it has none."""
    with contextlib.suppress(OSError, ValueError):
        major, minor, boot = _file(directory).read_text().split()
        if boot == _boot():
            return int(major), int(minor)
    return None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def choose(directory: Path) -> tuple[int, int] | None:
    """The same; where there are none yet, such as no other simulator has, and the first node is made. None where every
    major has a driver. Raises OSError as `make`."""
    if (before := chosen(directory)) is not None:
        return before
    taken = set()
    with contextlib.suppress(OSError):
        listed = Path("/proc/devices").read_text().partition("Block devices:")[0]
        taken = {int(line.split()[0]) for line in listed.splitlines() if line.strip()[:1].isdigit()}
    free = [major for major in _MAJORS if major not in taken]
    if not free:
        return None
    digest = hashlib.sha256(os.fsencode(directory)).digest()
    slot = int.from_bytes(digest[:4], "big")
    for number in range(_TRIES):
        first = free[0], (slot + number) % _SLOTS * _PER_DAEMON
        with contextlib.suppress(FileExistsError):  # another's, or one that was killed has left it
            os.mknod(path(first[1]), stat.S_IFCHR | _MODE, os.makedev(*first))
            Path(path(first[1])).chmod(_MODE)
            files.write(os.fspath(_file(directory)), f"{first[0]} {first[1]} {_boot()}\n".encode(), 0o644)
            return first
    raise FileExistsError(errno.EEXIST, f"{_TRIES} simulators have nodes in /dev: remove those that nobody uses")


def of(first: tuple[int, int], count: int) -> tuple[DeviceNode, ...]:
    """The nodes of so many devices, there or not."""
    major, start = first
    return tuple(DeviceNode(path(minor), major, minor) for minor in range(start, start + count))


def make(first: tuple[int, int], count: int) -> tuple[DeviceNode, ...]:
    """The nodes, made where they are missing. Raises OSError where this daemon may make none that its tenants could
    open: it is not root, or /dev takes no devices."""
    nodes = of(first, count)
    try:
        for node in nodes:
            _make(node)
    except OSError:
        remove(nodes)
        raise
    return nodes


def _make(node: DeviceNode) -> None:
    wanted = os.makedev(node.major, node.minor)
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(node.path)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == wanted:
            return
        Path(node.path).unlink()
    os.mknod(node.path, stat.S_IFCHR | _MODE, wanted)
    Path(node.path).chmod(_MODE)
    try:
        os.close(os.open(node.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise


def remove(nodes: tuple[DeviceNode, ...]) -> None:
    """Removes them where they are."""
    for node in nodes:
        with contextlib.suppress(OSError):
            Path(node.path).unlink()


def forget(directory: Path, count: int) -> None:
    """The simulator of this directory, with so many devices, is gone: so are its nodes and numbers."""
    if (first := chosen(directory)) is not None:
        remove(of(first, count))
    with contextlib.suppress(OSError):
        _file(directory).unlink()
