"""A file system without room."""

import contextlib
from pathlib import Path


def fill(directory: Path) -> Path:
    """Writes a file until there is no room for one more page, and returns its path."""
    ballast = directory / "ballast"
    for size in (4096, 256):
        with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(size))
    return ballast
