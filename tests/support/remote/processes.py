"""The processes of a daemon that takes programs of other machines: relay, sandbox, and what runs in grants."""

import os
from pathlib import Path
from typing import Any

from run.running import alive

from gpushare.processes import arguments


def relay(node: Any) -> int | None:
    """The pid of a daemon's relay; None: there is none."""
    path = str(node.layout.run / "relay.sock")
    return next((pid for pid, words in arguments.of_all() if path in words and alive(pid)), None)


def sandbox(node: Any) -> int | None:
    """The pid of its sandbox: a supervisor has its command line too, but another parent."""
    for pid, words in arguments.of_all():
        if any("gpushare.sandbox.__main__" in word for word in words) and _parent(pid) == node.process.pid:
            return pid
    return None


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def inside(*grants: str) -> list[int]:
    """The processes in the cgroups of these grants, and in cgroups below them."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                text = Path(f"/proc/{entry}/cgroup").read_text()
            except OSError:
                continue
            if any(grant in text for grant in grants):
                found.append(int(entry))
    return found
