"""The cgroup above those of a test process's containers."""

import contextlib
import os
from pathlib import Path

# Of this process alone: engines make a container's cgroup in two steps, between which another test could remove it.
NAME = f"gpushare-test-{os.getpid()}"


def remove() -> None:
    """In each hierarchy, if no container is left in it."""
    for hierarchy in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        with contextlib.suppress(OSError):
            (hierarchy / NAME).rmdir()
