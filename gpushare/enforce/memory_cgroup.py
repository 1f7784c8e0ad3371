"""A cgroup that memory is charged to and nothing else: that of the host pool, outside of the daemon's own, whose limit
would end the daemon's helpers otherwise."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from gpushare.enforce.cgroup import Cgroup, memberships
from gpushare.errors import FailedError

_EMPTY_BYTES = 2 << 20
"""Less than a segment: what the kernel keeps for a cgroup whose processes have ended."""
_MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where the memory controller is mounted."""

    path: Path
    v2: bool

    @classmethod
    def find(cls, mountinfo: str | None = None) -> "Hierarchy | None":
        """Reads this machine's mounts, or `mountinfo`. On a hybrid machine the controller is v1's. None: nowhere."""
        unified = None
        for line in (mountinfo or _MOUNTINFO.read_text(errors="replace")).splitlines():
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.partition(" ")
            path = Path(fields.split()[4])
            if kind == "cgroup" and "memory" in options.split()[-1].split(","):
                return cls(path, v2=False)
            if kind == "cgroup2" and unified is None:
                unified = cls(path, v2=True)
        return unified


def at_root(name: str, hierarchy: Hierarchy | None = None) -> Cgroup:
    """Makes the cgroup, unless it exists, below none but the root of what this machine or container has: no limit of
    another applies. Raises FailedError where that is not possible."""
    where = hierarchy or Hierarchy.find()
    if where is None:
        raise FailedError("no cgroup hierarchy with the memory controller is mounted")
    if where.v2:
        _enable(where.path)
    group = Cgroup(where.path / name, where.v2)
    if not group.path.is_dir():
        group.make()
    if charged(group) is None:
        group.remove()
        raise FailedError(f"{group.path} counts no memory: the memory controller is not enabled in {where.path}")
    return group


def remove_unused(group: Cgroup) -> None:
    """Removes the cgroup, unless processes are in it or segments of an earlier daemon are charged to it."""
    if (charged(group) or 0) < _EMPTY_BYTES:
        group.remove()


def _enable(root: Path) -> None:
    """The root's children have the controllers that it names; a service manager usually has named this one."""
    with contextlib.suppress(OSError):  # what could not be enabled is seen in the child
        control = root / "cgroup.subtree_control"
        if "memory" not in control.read_text().split():
            control.write_text("+memory")


def room(pid: int | str = "self", hierarchy: Hierarchy | None = None) -> int | None:
    """Bytes that can still be charged to the cgroup of a process: the least of what it and those above it may have and
    do not. None: no limit is known. Raises FailedError if the process has ended."""
    where = hierarchy or Hierarchy.find()
    if where is None:
        return None
    names = ("memory.max", "memory.current") if where.v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    left = list[int]()
    for controllers, parts in memberships(pid):
        its = not controllers if where.v2 else "memory" in controllers
        if not its or ".." in parts:
            continue
        for depth in range(len(parts) + 1):
            group = where.path.joinpath(*parts[:depth])
            with contextlib.suppress(OSError, ValueError):  # without a limit, v2 has a word, and the root no file
                most, now = (int((group / name).read_text()) for name in names)
                left.append(max(0, most - now))
    return min(left, default=None)


def charged(group: Cgroup) -> int | None:
    """Bytes that are charged to a cgroup and those inside it; None: not known."""
    try:
        return int((group.path / ("memory.current" if group.v2 else "memory.usage_in_bytes")).read_text())
    except (OSError, ValueError):
        return None
