"""Memory files of the host pool: memfds that have all their memory from the start and can neither grow nor shrink."""

import ctypes
import fcntl
import os
import platform
from pathlib import Path

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
"""The last one keeps tenants from adding others: a file that is sealed against writes could not be emptied."""

_NAME = "gpushare-segment"  # what a tenant sees of it in /proc/PID/maps: the same for all
_SPARE_BYTES = 256 << 20
"""What a new file leaves of the node's free memory: below that the kernel would end processes."""

_MFD_NOEXEC_SEAL = 8  # Linux 6.3; asked for, since a node may refuse other files (vm.memfd_noexec)
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_MPOL_DEFAULT, _MPOL_PREFERRED = 0, 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_NODES = Path("/sys/devices/system/node")
_NODE_BITS = 1024


def make(size: int) -> int:
    """A new file of zeros, whose whole memory is charged to this process's cgroup, whoever writes it later. Raises
    OSError where the node has too little."""
    if available() < size + _SPARE_BYTES:
        raise OSError(f"the node has {available() >> 20} MiB of memory free, of which {_SPARE_BYTES >> 20} stay so")
    file = _create()
    try:
        os.ftruncate(file, size)
        os.posix_fallocate(file, 0, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(file)
        raise
    return file


def _create() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_NAME, flags | _MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(_NAME, flags)


def empty(file: int) -> None:
    """Gives back all memory of a file, also what somebody has mapped. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_int64(os.fstat(file).st_size)
    if libc.fallocate(file, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, ctypes.c_int64(0), size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def whole(file: int, size: int) -> bool:
    """Whether this is a file as `make` makes it."""
    try:
        return fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS == SEALS and os.fstat(file).st_size == size
    except OSError:
        return False


def available() -> int:
    """Bytes of memory that processes of this node can still take without swapping."""
    return _meminfo("MemAvailable")


def total() -> int:
    """Bytes of memory that this node has."""
    return _meminfo("MemTotal")


def _meminfo(wanted: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return int(value.split()[0]) << 10
    raise OSError(f"the kernel does not say how much memory there is ({wanted})")


def prefer(node: int) -> None:
    """Takes this process's memory from a NUMA node from now on, as long as that has any. Without effect where the
    machine has no such node, or no other.

    Preferred, not bound: with a bound one that is full the kernel ends processes.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or len(nodes()) < 2:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if node not in nodes():
        libc.syscall(number, _MPOL_DEFAULT, None, 0)
        return
    mask = (ctypes.c_ulong * (_NODE_BITS // 64))()
    mask[node // 64] = 1 << node % 64
    libc.syscall(number, _MPOL_PREFERRED, mask, _NODE_BITS + 1)


def nodes() -> list[int]:
    """The machine's NUMA nodes."""
    return sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))
