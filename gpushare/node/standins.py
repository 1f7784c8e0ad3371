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

from gpushare.inject.node import DeviceNode

# Documentation/admin-guide/devices.txt: LOCAL/EXPERIMENTAL USE. Numbers that the kernel gives by itself are others.
_MAJORS = (*range(120, 128), *range(60, 64))
_PER_DAEMON = 16
_SLOTS = (1 << 20) // _PER_DAEMON  # all that minors have: the nodes of two daemons are hardly ever the same
_MODE = 0o666  # as the driver's


def path(minor: int) -> str:
    """Where a node is, on the host and in containers; native/sim/wire/sim_proto.h: SIM_NODE_PATH."""
    return f"/dev/gpushare-sim-{minor}"


def choose(directory: Path) -> tuple[int, int] | None:
    """Major and first minor for the simulator of this directory; None where every major has a driver."""
    taken = set()
    with contextlib.suppress(OSError):
        listed = Path("/proc/devices").read_text().partition("Block devices:")[0]
        taken = {int(line.split()[0]) for line in listed.splitlines() if line.strip()[:1].isdigit()}
    free = [major for major in _MAJORS if major not in taken]
    if not free:
        return None
    digest = hashlib.sha256(os.fsencode(directory)).digest()
    return free[0], int.from_bytes(digest[:4], "big") % _SLOTS * _PER_DAEMON


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
