"""What a demo must not leave behind: processes and files below its TMPDIR, and cgroups."""

import os
from collections.abc import Iterator
from pathlib import Path

from run.waiting import until


def processes_with(text: str) -> dict[int, str]:
    """Command lines by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line and entry.name != str(os.getpid()):
                found[int(entry.name)] = line
    return found


def nothing_left(short: Path) -> None:
    until(lambda: not processes_with(str(short)), "its processes end", 10)
    assert list(short.rglob("*")) == []
    # The cgroup of another demo has a process in it. The kernel ends a cgroup a little after its last process.
    until(lambda: not [path for path in _cgroups() if not _read(path)], "its cgroups end", 10)


def _cgroups() -> Iterator[Path]:
    # Unlike Path.glob, os.walk skips a cgroup that another test removes meanwhile.
    for directory, _, _ in os.walk("/sys/fs/cgroup"):
        if Path(directory).parent.name == "gpushare-demo":
            yield Path(directory) / "cgroup.procs"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return "it has just ended"
