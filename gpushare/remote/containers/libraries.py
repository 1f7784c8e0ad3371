"""The client libraries of a carrier: those that its contract names, and what these need of the others beside them."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from gpushare.errors import FailedError
from gpushare.remote.containers import elf
from gpushare.remote.containers.messages import Wanted

_FILES_MAX = 64


def wanted(directory: Path, names: Sequence[str]) -> dict[str, Wanted]:
    """Returns the libraries by name: `names`, and whatever in the same directory those link. Raises FailedError."""
    found: dict[str, Wanted] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or len(found) == _FILES_MAX:
            continue
        path = Path(os.path.realpath(directory / name))
        library = _read(path, name, directory)
        found[name] = Wanted(
            host=str(path),
            needed=list(library.needed),
            versions={file: sorted(versions) for file, versions in library.versions.items()},
            driver=name in names,
        )
        waiting += [other for other in library.needed if (directory / other).is_file()]
    return found


def _read(path: Path, name: str, directory: Path) -> elf.Library:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(elf.SIZE_MAX) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError as error:
        raise FailedError(
            f"the carrier's client library {name} cannot be read in {directory}: {error.strerror}: install it there, "
            "or write where it is into the carrier's file"
        ) from None
    library = elf.read(data)
    if library is None:
        raise FailedError(f"{path} is no 64-bit library: install the carrier's client library for this machine")
    return library
