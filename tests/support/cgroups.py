"""The cgroup above those of a test process's containers."""

import contextlib
import os
from pathlib import Path

# Of this process alone: engines make a container's cgroup in two steps, between which another test could remove it.
NAME = f"gpushare-test-{os.getpid()}"


def remove() -> None:
    """In each hierarchy, with the cgroups in it that killed engines left; those with processes stay."""
    for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        for directory, _, _ in os.walk(hierarchy / NAME, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
