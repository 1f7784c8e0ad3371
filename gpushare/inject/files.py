"""Small files, with as few system calls as they need: a grant has several, and comes and goes in a millisecond."""

import os


def replace(path: str, data: bytes, mode: int) -> None:
    """Puts a new file in the place of one that others may have mounted, which stay with that. Raises OSError."""
    fresh = f"{path}.new"
    write(fresh, data, mode)
    os.rename(fresh, path)  # noqa: PTH104 - paths are text here


def write(path: str, data: bytes, mode: int) -> None:
    """Makes the file, or overwrites it in place. `mode`: whatever the umask is. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)
