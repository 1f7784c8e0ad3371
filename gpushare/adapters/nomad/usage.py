"""Finds the grants whose tasks have processes: by a process's environment first, then by its cgroup.

Nomad puts each task into its own cgroup if the task's driver makes one. A task in the agent's cgroup is recognised only
by its environment: a task that changes that is not found, and loses its grant.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from gpushare.paths import GRANT_DIR_ENV

_ENVIRON_MAX = 1 << 20
_VARIABLE = f"{GRANT_DIR_ENV}=".encode()


class Usage:
    """Scans /proc."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._own = _cgroup(proc / "self")
        # Content of /proc/PID/cgroup of each grant's task.
        self._cgroups: dict[str, bytes] = {}

    def used(self, directories: dict[str, str]) -> Collection[str]:
        """Returns the ids of grants that have processes. `directories`: the grants' directories by id."""
        self._cgroups = {grant: group for grant, group in self._cgroups.items() if grant in directories}
        if not directories:
            return ()
        wanted = {os.fsencode(path): grant for grant, path in directories.items()}
        groups: set[bytes] = set()
        found = set()
        for process in self._proc.iterdir():
            if not process.name.isdecimal():
                continue
            group = _cgroup(process)
            groups.add(group)
            own = _grant_dir(process)
            grant = wanted.get(own)
            if grant is not None:
                found.add(grant)
                if group not in (b"", self._own):
                    self._cgroups[grant] = group
        return found | {grant for grant, group in self._cgroups.items() if group in groups}


def _cgroup(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "cgroup").read_bytes()
    return b""


def _grant_dir(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        descriptor = os.open(process / "environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for variable in os.read(descriptor, _ENVIRON_MAX).split(b"\0"):
                if variable.startswith(_VARIABLE):
                    return variable.removeprefix(_VARIABLE)
        finally:
            os.close(descriptor)
    return b""
