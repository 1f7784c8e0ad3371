"""The cgroups of remote grants' servers: one for each supervisor (gpushare/sandbox), by its pid, in each hierarchy that
limits memory or processes. Cgroups of the grant are made inside them.

They lie below the root, not below the daemon's own: its limits are not a tenant's, and on cgroup v2 a cgroup with
processes in it, such as a service's, cannot hand controllers on. The supervisor makes them; the helper removes them
once it has ended (gpushare/sandbox/__main__.py), and those of an earlier helper when it starts.
"""

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import FailedError

PARENT = "gpushare-remote"
_LIMITING = frozenset({"memory", "pids"})
_MOUNTINFO = Path("/proc/self/mountinfo")
_TRIES = 100
_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Tree:
    """A hierarchy. `controllers`: those of `memory` and `pids` that are to be used in it."""

    path: Path
    v2: bool
    controllers: frozenset[str]

    def group(self, pid: int) -> Cgroup:
        """The cgroup of a supervisor, which may not exist."""
        return Cgroup(self.path / PARENT / str(pid), self.v2)


def trees(mountinfo: str | None = None) -> list[Tree]:
    """Reads this machine's mounts, or `mountinfo`. v2 is among them where it is mounted, also without a controller: the
    grant's own cgroup is made there. Raises FailedError where memory or processes cannot be limited."""
    found, unified = list[Tree](), None
    left = set(_LIMITING)
    for line in (mountinfo or _MOUNTINFO.read_text(errors="replace")).splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        path = Path(fields.split()[4])
        if kind == "cgroup" and (its := left & set(options.split()[-1].split(","))):
            found.append(Tree(path, False, frozenset(its)))
            left -= its
        elif kind == "cgroup2":
            unified = unified or path
    if unified is not None:
        return [Tree(unified, True, frozenset(left)), *found]
    if left:
        raise FailedError(f"no cgroup hierarchy with the {' and '.join(sorted(left))} controller is mounted")
    return found


def enter() -> None:
    """Makes the cgroups of this process, and moves it there. Raises FailedError."""
    try:
        for tree in trees():
            _enter(tree, tree.group(os.getpid()))
    except OSError as error:
        raise FailedError(f"no cgroup with limits can be made: {error.filename}: {error.strerror}") from None


def _parent(tree: Tree) -> None:
    parent = tree.path / PARENT
    parent.mkdir(exist_ok=True)
    for group in (tree.path, parent) if tree.v2 and tree.controllers else ():
        control = group / "cgroup.subtree_control"
        if missing := tree.controllers - set(control.read_text().split()):
            control.write_text(" ".join(f"+{name}" for name in sorted(missing)))


def _enter(tree: Tree, group: Cgroup) -> None:
    for _ in range(_TRIES):
        try:
            _parent(tree)
            group.path.mkdir(exist_ok=True)
            (group.path / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # a helper took it for one that is left over
                raise
        else:
            return
    raise FailedError(f"{group.path} is removed again and again: does another program clean up cgroups?")


def limit(memory: int, pids: int) -> None:
    """Limits this process's cgroups: `memory` bytes, without swap, and `pids` processes and threads. Raises
    FailedError."""
    try:
        for tree in trees():
            group = tree.group(os.getpid()).path
            if "memory" in tree.controllers:
                (group / ("memory.max" if tree.v2 else "memory.limit_in_bytes")).write_text(str(memory))
                for name in _SWAP:
                    with contextlib.suppress(OSError):  # a kernel that does not count swap
                        (group / name).write_text("0" if tree.v2 else str(memory))
            if "pids" in tree.controllers:
                (group / "pids.max").write_text(str(pids))
    except OSError as error:
        raise FailedError(f"{error.filename} cannot be set: {error.strerror}") from None


def existing() -> set[int]:
    """Pids by which there are such cgroups."""
    found = set[int]()
    with contextlib.suppress(FailedError):
        for tree in trees():
            with contextlib.suppress(OSError):
                found |= {int(entry.name) for entry in os.scandir(tree.path / PARENT) if entry.name.isdigit()}
    return found


def remove(pid: int) -> bool:
    """Removes the cgroups of a supervisor that has ended, with those of the grant inside. False while processes are in
    one of them."""
    try:
        return False not in [_removed(tree.group(pid)) for tree in trees()]  # of each, whatever the others say
    except FailedError:
        return True


def remove_parents() -> None:
    """Removes what the cgroups lie in, unless there are any."""
    with contextlib.suppress(FailedError):
        for tree in trees():
            with contextlib.suppress(OSError):
                (tree.path / PARENT).rmdir()


def _removed(group: Cgroup) -> bool:
    # Asked first: of one that is in use not even an empty part may be removed.
    return not group.populated() and group.remove()
