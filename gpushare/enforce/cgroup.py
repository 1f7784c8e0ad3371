"""The cgroup of a grant: how the daemon notices that a workload has ended, and stops or kills all of it at once.

On cgroup v2, hybrid machines included, the core files suffice (kill, events). On pure v1 the freezer hierarchy is
used; it does not announce the last exit, so the daemon reads `pids` when a pidfd fires.
"""

import contextlib
import errno
import functools
import itertools
import os
import re
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import FailedError

PREFIX = "gpushare-"
_OURS = re.compile(rf"{PREFIX}g-[0-9a-f]{{12}}(\.[0-9]+)?")
# Bounds on the work done in one go on the daemon's event loop; each item takes about 20 us.
_MEMBERS_MAX = 1000
_ANCESTORS_MAX = 2000
_REMOVE_AT_ONCE = 1000
_MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Mount points of this machine's cgroup hierarchies. `freezer` and `devices` are v1, used only if v2 cannot be."""

    unified: Path | None
    freezer: Path | None
    devices: Path | None = None

    @classmethod
    def of(cls, mountinfo: str | None = None) -> "Hierarchies":
        """Parses `mountinfo`, by default this machine's."""
        if mountinfo is None:
            return _here()
        unified = freezer = devices = None
        for line in filter(None, mountinfo.split("\n")):
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.partition(" ")
            path = Path(fields.split()[4])
            if kind == "cgroup2":
                unified = unified or path
            elif kind == "cgroup":
                controllers = options.split()[-1].split(",")
                freezer = freezer or (path if "freezer" in controllers else None)
                devices = devices or (path if "devices" in controllers else None)
        return cls(unified, freezer, devices)


@functools.cache
def _here() -> Hierarchies:
    # Read once: users may mount thousands of file systems.
    return Hierarchies.of(_MOUNTINFO.read_text(errors="replace"))


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One directory in one hierarchy. A directory that is gone counts as empty."""

    path: Path
    v2: bool

    def add(self, pid: int) -> None:
        """Moves a process in. Raises FailedError."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            raise FailedError(f"process {pid} ended before it could be moved to {self.path}") from None
        except OSError as error:
            raise FailedError(f"process {pid} cannot be moved to {self.path}: {error.strerror}") from None

    def pids(self, most: int | None = None) -> list[int]:
        """Returns the processes of the whole subtree: a workload may make cgroups of its own. `most`: bound on cgroups
        and processes together, after which the search stops."""
        found: list[int] = []
        for count, group in enumerate(self._groups()):
            if most is not None and count + len(found) > most:
                break
            with contextlib.suppress(OSError):
                found += [int(line) for line in (group / "cgroup.procs").read_text().split()]
        return found

    def _groups(self) -> Iterator[Path]:
        """Yields the directory and all cgroups inside it, parents first."""
        waiting = [self.path]
        while waiting:
            group = waiting.pop()
            yield group
            with contextlib.suppress(OSError), os.scandir(group) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]

    def identity(self) -> int:
        """Returns a number that no other cgroup has, nor a later one with the same path; 0 if it is gone."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def populated(self) -> bool:
        """Whether any process is in the cgroup or below it."""
        if not self.v2:
            return bool(self.pids())
        try:
            return "populated 1" in (self.path / "cgroup.events").read_text().splitlines()
        except OSError:
            return False

    def events(self) -> int | None:
        """A descriptor that polls POLLPRI when `populated` changes; the caller closes it. None on v1."""
        return os.open(self.path / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC) if self.v2 else None

    def kill(self) -> None:
        """Sends SIGKILL to all processes, including frozen ones and those being forked. Raises FailedError."""
        if self.v2:
            self._write("cgroup.kill", "1")
            return
        # v1 has no such file. While frozen no process can fork; the signals are delivered at the thaw.
        self._write("freezer.state", "FROZEN")
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._write("freezer.state", "THAWED")

    def make(self) -> None:
        """Makes the directory. Raises FailedError, also if it exists."""
        try:
            self.path.mkdir()
        except OSError as error:
            # EAGAIN: cgroup.max.descendants or cgroup.max.depth is reached.
            why = "its limits allow no more" if error.errno == errno.EAGAIN else error.strerror
            raise FailedError(f"no cgroup can be made in {self.path.parent}: {why}") from None

    def remove(self) -> bool:
        """Removes the directory and at most _REMOVE_AT_ONCE cgroups inside it. False while any is left, with processes
        or without."""
        try:
            self.path.rmdir()  # usually there are none inside
        except FileNotFoundError:
            return True
        except OSError:
            pass
        else:
            return True
        for inner in reversed(list(itertools.islice(self._groups(), _REMOVE_AT_ONCE))):
            with contextlib.suppress(OSError):
                inner.rmdir()
        return not self.path.exists()

    def leavable(self, uid: int) -> str | None:
        """Returns the nearest ancestor whose cgroup.procs this user may write: the user's processes can be moved there.
        None: there is none, or the user is root."""
        if uid == 0:
            return None
        for group in self.path.parents:
            try:
                found = (group / "cgroup.procs").stat()
            except OSError:
                return None
            if found.st_uid == uid or found.st_mode & stat.S_IWOTH:
                return str(group)
        return None

    def _write(self, name: str, value: str) -> None:
        try:
            (self.path / name).write_text(value)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FailedError(f"{self.path / name}: {error.strerror}") from None


def below(pid: int, name: str, hierarchies: Hierarchies | None = None) -> Cgroup:
    """Returns the place of a plain process's grant cgroup, which may not exist yet: a child of the process's own
    cgroup, so that the process keeps the limits and device programs of its slice or job. `name`: without the prefix.

    For a process that is in a grant already it is a sibling of that grant's cgroup: grants do not nest. Raises
    FailedError if the process has ended, or if no usable hierarchy is mounted.
    """
    where = hierarchies or Hierarchies.of()
    if where.unified is None and where.freezer is None:
        raise FailedError(
            "neither cgroup v2 nor the v1 freezer is mounted: gpushare cannot hold a process without either"
        )
    own = _of_process(pid, where)
    if own is None:
        raise FailedError(f"the cgroup of process {pid} is outside of what the daemon sees")
    inside = [group for group in (own.path, *own.path.parents) if _OURS.fullmatch(group.name) and _is_roots(group)]
    parent = inside[-1].parent if inside else own.path
    return Cgroup(parent / f"{PREFIX}{name}", own.v2)


def _is_roots(group: Path) -> bool:
    """Whether a daemon made it: cgroups that a user makes belong to that user."""
    try:
        return group.stat().st_uid == os.geteuid()
    except OSError:
        return False


def of_process(pid: int, hierarchies: Hierarchies | None = None) -> Cgroup | None:
    """Returns the cgroup that a process is in; None: the root cgroup. Raises FailedError if the process has ended."""
    where = hierarchies or Hierarchies.of()
    found = _of_process(pid, where)
    return found if found is not None and found.path not in (where.unified, where.freezer) else None


def _of_process(pid: int, where: Hierarchies) -> Cgroup | None:
    """Like of_process, but returns the root cgroup too; None for a cgroup outside the daemon's cgroup namespace."""
    for controllers, parts in memberships(pid):
        top = where.unified if not controllers else None
        if where.unified is None and "freezer" in controllers:
            top = where.freezer
        if top is not None:
            return Cgroup(top.joinpath(*parts), v2=top == where.unified) if ".." not in parts else None
    return None


def memberships(pid: int | str) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the controllers of each hierarchy (none: v2) and the parts of the process's path there. Raises FailedError
    if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").split("\n")  # names may contain \r
    except OSError:
        raise FailedError(f"process {pid} ended") from None
    for line in filter(None, lines):
        _, controllers, path = line.split(":", 2)
        yield [name for name in controllers.split(",") if name], [part for part in path.split("/") if part]


def own_of_process(pid: int, hierarchies: Hierarchies | None = None) -> Cgroup | None:
    """Returns the cgroup of a container's first process if no unrelated process is in it.

    None otherwise, such as in a login session's cgroup where the engine makes none: watching or killing it would affect
    the other processes too.
    """
    group = of_process(pid, hierarchies)
    return group if group is not None and has_alone(group, pid) else None


def has_alone(group: Cgroup, pid: int) -> bool:
    """Whether the cgroup has no processes but this one and its descendants."""
    members = group.pids(most=_MEMBERS_MAX)
    # A container that is about to start has only a few processes: with _MEMBERS_MAX, some are unrelated.
    return len(members) < _MEMBERS_MAX and _descend(members, pid)


def _descend(members: list[int], ancestor: int) -> bool:
    """Whether all are `ancestor` or its descendants. A process that has ended meanwhile counts as a descendant."""
    known = {ancestor}
    steps = 0
    for member in members:
        chain = []
        pid = member
        while pid not in known:
            steps += 1
            if pid <= 1 or steps > _ANCESTORS_MAX:
                return False
            chain.append(pid)
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except OSError:
                break
        known.update(chain)
    return True
