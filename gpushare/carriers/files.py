"""Where contracts of carriers are, and what of a carrier is on this machine.

Contracts are `NAME.toml` in `DIRECTORIES`, a later one instead of an earlier one of the same name. What they name is
run by root and loaded into programs: a contract counts only if its file and its directory belong to root or to this
process's user, and nobody else may write to them. A symbolic link is not followed.
"""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from gpushare.carriers import contract
from gpushare.carriers.contract import Client, Contract
from gpushare.errors import NotFoundError, RefusedError, UsageError
from gpushare.text import toml
from gpushare.text.names import CARRIER

DIRECTORIES = (Path("/usr/share/gpushare/carriers"), Path("/etc/gpushare/carriers"))
HOW = "put its contract, NAME.toml, into /etc/gpushare/carriers (guide `remote`)"
_FILE_MAX = 64 << 10
_VERSION_FILE_MAX = 4096
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def names(directories: Sequence[Path] = DIRECTORIES) -> list[str]:
    """Returns the carriers that have a file, sorted; whether it is right is not looked at."""
    found: set[str] = set()
    for directory in directories:
        try:
            entries = [path.name for path in directory.iterdir()]
        except OSError:
            continue
        found |= {name.removesuffix(".toml") for name in entries if name.endswith(".toml")}
    return sorted(name for name in found if re.fullmatch(CARRIER, name))


def find(name: str | None, directories: Sequence[Path] = DIRECTORIES) -> Contract:
    """Returns the contract of a carrier; None: of the only one. Raises as `load` does, and UsageError where none is
    named and there are several."""
    if name is not None:
        return load(name, directories)
    known = names(directories)
    if not known:
        raise NotFoundError(f"this machine has no carrier: {HOW}")
    if len(known) > 1:
        raise UsageError(f"this machine has several carriers, {', '.join(known)}: name one")
    return load(known[0], directories)


def load(name: str, directories: Sequence[Path] = DIRECTORIES) -> Contract:
    """Returns the contract of a carrier. Raises NotFoundError, RefusedError for a file that others may write, and
    UsageError for one that is wrong, with the file, the line and the key."""
    if re.fullmatch(CARRIER, name):
        for directory in reversed(directories):
            if (data := _read(directory, f"{name}.toml")) is not None:
                return contract.of(toml.parse(directory / f"{name}.toml", data), name)
    known = ", ".join(names(directories)) or "none"
    raise NotFoundError(f"this machine has no carrier {name[:80]!r}, it has {known}: {HOW}")


def _read(directory: Path, name: str) -> bytes | None:
    """Returns what the file has; None: there is no such file."""
    path = directory / name
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{directory}: it is no directory that can be read: {error.strerror}") from None
    try:
        # A pipe or a device is not waited for.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return None
    except OSError as error:
        link = " (it is a symbolic link?)" if path.is_symlink() else ""
        raise UsageError(f"{path}: cannot be read: {error.strerror}{link}") from None
    else:
        try:
            return _content(directory, place, path, file)
        finally:
            os.close(file)
    finally:
        os.close(place)


def _content(directory: Path, place: int, path: Path, file: int) -> bytes:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise UsageError(f"{path}: it is not a file")
    for what, descriptor in ((directory, place), (path, file)):
        if why := _untrusted(os.fstat(descriptor)):
            raise RefusedError(f"{what}: {why}: a carrier's contract is an administrator's: chown and chmod it")
    data = b""
    while len(data) <= _FILE_MAX and (more := os.read(file, _FILE_MAX + 1 - len(data))):
        data += more
    if len(data) > _FILE_MAX:
        raise UsageError(f"{path}: it has more than {_FILE_MAX >> 10} KiB: that is no contract")
    return data


def _untrusted(found: os.stat_result) -> str:
    """Why what this says may come from others than root and this user; empty: it does not."""
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {found.st_uid}"
    return "others may write to it" if found.st_mode & _WRITABLE else ""


# ---- the client's half on this machine


def libraries(name: str, client: Client) -> list[Path]:
    """Returns the files of `client.libraries`. Raises RefusedError where one is not there."""
    found = [Path(client.dir) / library for library in client.libraries]
    for path in found:
        if not path.is_file():
            raise RefusedError(f"carrier {name}: there is no {path}: install its client's half there")
    return found


def client_version(found: Contract) -> str:
    """Returns the version of the client's half on this machine; empty: its contract names none. Raises RefusedError
    where it cannot be told."""
    client = found.client
    if client is None or not client.version:
        return ""
    path = Path(client.dir) / client.version
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedError(f"carrier {found.name}: the file with its version, {path}: {error.strerror}") from None
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return contract.version_of(os.read(descriptor, _VERSION_FILE_MAX) if regular else b"")
    except UsageError as error:
        raise RefusedError(f"carrier {found.name}: {path}: {error}") from None
    finally:
        os.close(descriptor)
