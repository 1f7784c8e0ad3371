"""Stand-in device nodes of simulated devices, the counterparts of /dev/nvidiaN. The simulated driver does not serve a
process that may not open them, so that everything that restricts device nodes can be tested without a GPU.

No driver has their major number, which is reserved for local use: opening one fails with ENXIO and has no effect. The
kernel first checks permission, by the node's mode, its mount and the device cgroup: EACCES and EPERM are refusals,
ENXIO means permitted.
"""

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path

from gpushare.inject import files
from gpushare.inject.node import DeviceNode

# Documentation/admin-guide/devices.txt: LOCAL/EXPERIMENTAL USE. The kernel never assigns these dynamically.
_MAJORS = (*range(120, 128), *range(60, 64))
_PER_DAEMON = 16
_SLOTS = (1 << 20) // _PER_DAEMON
_TRIES = 1000
_MODE = 0o666  # as the driver's


def path(minor: int) -> str:
    """Returns a node's path, on the host and in containers (SIM_NODE_PATH in native/sim/wire/sim_proto.h)."""
    return f"/dev/gpushare-sim-{minor}"


def _file(directory: Path) -> Path:
    """Returns the file that records the choice. It is next to the directory, not in it: containers see that."""
    return directory.with_name("sim.nodes")


def chosen(directory: Path) -> tuple[int, int] | None:
    """Returns the major and first minor recorded for this directory's simulator since the last boot; None: none."""
    with contextlib.suppress(OSError, ValueError):
        major, minor, boot = _file(directory).read_text().split()
        if boot == _boot():
            return int(major), int(minor)
    return None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def choose(directory: Path) -> tuple[int, int] | None:
    """As `chosen`; if there are none yet, picks numbers that no other simulator has and makes the first node. None if
    every major has a driver. Raises OSError as `make`."""
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
        with contextlib.suppress(FileExistsError):  # another simulator's, or left by one that was killed
            os.mknod(path(first[1]), stat.S_IFCHR | _MODE, os.makedev(*first))
            Path(path(first[1])).chmod(_MODE)
            files.write(_file(directory), f"{first[0]} {first[1]} {_boot()}\n".encode(), 0o644)
            return first
    raise FileExistsError(errno.EEXIST, f"{_TRIES} simulators have nodes in /dev: remove those that nobody uses")


def of(first: tuple[int, int], count: int) -> tuple[DeviceNode, ...]:
    """Returns the nodes of `count` devices, whether they exist or not."""
    major, start = first
    return tuple(DeviceNode(path(minor), major, minor) for minor in range(start, start + count))


def make(first: tuple[int, int], count: int) -> tuple[DeviceNode, ...]:
    """Returns the nodes and makes missing ones. Raises OSError if this daemon cannot make nodes that its tenants could
    open: it is not root, or /dev is mounted nodev."""
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
    """Removes those that exist."""
    for node in nodes:
        with contextlib.suppress(OSError):
            Path(node.path).unlink()


def forget(directory: Path, count: int) -> None:
    """Removes the nodes and recorded numbers of this directory's simulator, which has ended. `count`: its devices."""
    if (first := chosen(directory)) is not None:
        remove(of(first, count))
    with contextlib.suppress(OSError):
        _file(directory).unlink()
