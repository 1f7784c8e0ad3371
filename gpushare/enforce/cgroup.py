"""The cgroup of a grant: how the daemon sees a workload end, and stops or kills all of it at once.

On cgroup v2, hybrid machines included, the core files do everything (kill, events). On pure v1 the freezer hierarchy
is used; nothing there announces the last exit, so the daemon asks `pids` when a pidfd fires.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import FailedError

PARENT = "gpushare"
_MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this machine's cgroups are. `freezer` is used only without a v2 hierarchy."""

    unified: Path | None
    freezer: Path | None

    @classmethod
    def of(cls, mountinfo: str | None = None) -> "Hierarchies":
        """Read from `mountinfo`, by default this process's."""
        unified = freezer = None
        for line in (mountinfo or _MOUNTINFO.read_text()).splitlines():
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.partition(" ")
            path = Path(fields.split()[4])
            if kind == "cgroup2":
                unified = unified or path
            elif kind == "cgroup" and "freezer" in options.split()[-1].split(","):
                freezer = freezer or path
        return cls(unified, freezer)


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

    def pids(self) -> list[int]:
        """Processes of the whole subtree: a workload may make cgroups of its own."""
        found: list[int] = []
        try:
            for procs in [self.path / "cgroup.procs", *self.path.glob("*/**/cgroup.procs")]:
                found += [int(line) for line in procs.read_text().split()]
        except (FileNotFoundError, OSError):
            return found
        return found

    def populated(self) -> bool:
        """Whether any process is in it or below."""
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

    def remove(self) -> bool:
        """Removes the directory and those inside it. False while processes are left in it."""
        try:
            for inner in sorted(self.path.glob("**/"), key=lambda path: len(path.parts), reverse=True):
                inner.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return not self.path.exists()

    def _write(self, name: str, value: str) -> None:
        try:
            (self.path / name).write_text(value)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FailedError(f"{self.path / name}: {error.strerror}") from None


def create(grant_id: str, hierarchies: Hierarchies | None = None) -> Cgroup:
    """Makes `gpushare/<grant>`, which may exist since before a restart. Raises FailedError."""
    cgroup = of_grant(grant_id, hierarchies)
    try:
        cgroup.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedError(f"cgroup {cgroup.path} cannot be made: {error.strerror}") from None
    return cgroup


def of_grant(grant_id: str, hierarchies: Hierarchies | None = None) -> Cgroup:
    """Where the cgroup of a plain process's grant is or would be. Raises FailedError without any hierarchy to use."""
    where = hierarchies or Hierarchies.of()
    if where.unified is not None:
        return Cgroup(where.unified / PARENT / grant_id, v2=True)
    if where.freezer is not None:
        return Cgroup(where.freezer / PARENT / grant_id, v2=False)
    raise FailedError("neither cgroup v2 nor the v1 freezer is mounted: gpushare cannot hold a process without either")


def of_process(pid: int, hierarchies: Hierarchies | None = None) -> Cgroup | None:
    """The cgroup that a process is in; None in the root. Raises FailedError when it has ended."""
    where = hierarchies or Hierarchies.of()
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        raise FailedError(f"process {pid} ended") from None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = where.unified if controllers == "" else None
        if where.unified is None and "freezer" in controllers.split(","):
            top = where.freezer
        if top is not None and path != "/":
            return Cgroup(top / path.lstrip("/"), v2=top == where.unified)
    return None


def own_of_process(pid: int, hierarchies: Hierarchies | None = None) -> Cgroup | None:
    """The cgroup that a container's first process has to itself.

    None when other processes are in it, such as a login session's where an engine makes no cgroups: watching or killing
    it would affect them too.
    """
    group = of_process(pid, hierarchies)
    return group if group is not None and all(_descends(member, pid) for member in group.pids()) else None


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor` or descends from it. One that has ended meanwhile counts as a descendant."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return True
    return False
