"""The parent cgroup of a test process's containers."""

import contextlib
import os
from pathlib import Path

# One for each process: engines make a container's cgroup in two steps, between which another test could remove it.
NAME = f"gpushare-test-{os.getpid()}"


def remove() -> None:
    """Removes it from each hierarchy, with cgroups that killed engines left in it; those with processes stay."""
    for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        for directory, _, _ in os.walk(hierarchy / NAME, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
