"""The process that has the sockets of a daemon's grants."""

from pathlib import Path


def pid(daemon_pid: int) -> int | None:
    """The door of a daemon; None while it has none."""
    for task in Path(f"/proc/{daemon_pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            except FileNotFoundError:
                continue
            if any(b"gpushare.door." in word for word in words):
                return int(child)
    return None
