"""Signs of a daemon that has been started and does not answer yet. They may be missed, as in a container, which does
not see the machine's processes."""

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from gpushare.processes import arguments


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock (flock) on the file, which this user need not be able to open."""
    try:
        found = path.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    return f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} " in locks


def since(seconds: float, program: str, verb: str) -> Iterator[list[str]]:
    """Yields what follows PROGRAM VERB in the command lines of processes started in the last seconds, by whatever
    started them: `sudo PROGRAM VERB`, `python -m PROGRAM VERB`."""
    for pid, words in arguments.of_all():
        for place, (before, word) in enumerate(pairwise(words)):
            if word == verb and Path(before).name == program:
                with contextlib.suppress(OSError):  # it has ended
                    if _age_seconds(pid) < seconds:
                        yield words[place + 2 :]


def _age_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
