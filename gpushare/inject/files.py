"""Small files, with as few system calls as they need: a grant has several, and comes and goes in a millisecond."""

import os


def write(path: str, data: bytes, mode: int) -> None:
    """Makes the file, or overwrites it in place. `mode`: whatever the umask is. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)
