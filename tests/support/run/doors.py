"""The helper processes of a daemon: its door, which has the sockets of its grants, and its readers."""

import os
from pathlib import Path


def pid(daemon_pid: int) -> int | None:
    """The pid of a daemon's door; None while it has none."""
    return _helper(daemon_pid, "door")


def descriptors(daemon_pid: int) -> int:
    """Number of descriptors that a daemon has open."""
    return len(os.listdir(f"/proc/{daemon_pid}/fd"))


def _helper(daemon_pid: int, room: str) -> int | None:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            words = (process / "cmdline").read_bytes() if parent == daemon_pid else b""
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"gpushare.{room}.".encode() in words:
            return int(process.name)
    return None
