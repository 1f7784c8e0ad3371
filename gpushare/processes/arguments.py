"""The command lines of the processes that this user can see."""

import os
from collections.abc import Iterator
from pathlib import Path


def of_all() -> Iterator[tuple[int, list[str]]]:
    """Yields the pid and the words of each process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            yield int(entry.name), [os.fsdecode(word) for word in words.split(b"\0")[:-1]]
