"""The command lines of the processes that this user can see."""

import os
from collections.abc import Iterator
from pathlib import Path


def of_all() -> Iterator[tuple[int, list[str]]]:
    """Yields the pid and the words of each process."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            yield int(name), [os.fsdecode(word) for word in words.split(b"\0")[:-1]]
