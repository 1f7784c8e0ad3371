"""Which devices processes have open, and which libraries they have loaded."""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpushare.doctor import aside
from gpushare.paths import GRANT_DIR_ENV, INTERPOSERS

_HANGS = 3
_MAPS_MAX = 8 << 20
_DESCRIPTORS_MAX = 4096
_ENVIRONMENT_MAX = 256 << 10
_DRIVER = re.compile(rb" (\d+) +/\S*/libcuda\.so\.[0-9.]+(?: \(deleted\))?$", re.MULTILINE)
_MUSL = re.compile(rb"(?:/ld-musl-[^/]*|musl[^/]*/libc\.so)$", re.MULTILINE)  # Alpine; Debian
_DEVICE = re.compile(r"/dev/nvidia(?:\d+|ctl|-uvm)$")


@dataclass(frozen=True, slots=True)
class Look:
    """What one process has: an open device, the driver mapped, musl as its C library; and whether it is told of files
    of a grant that are not there for it."""

    device: str = ""
    has_driver: bool = False
    is_on_musl: bool = False
    is_blind: bool = False


def look(pids: Collection[int]) -> tuple[dict[int, Look], list[int]]:
    """Returns what could be seen, by pid, and the processes that block their readers. Stops after _HANGS of those."""
    waiting, found, hang = list(pids), dict[int, Look](), list[int]()
    while waiting and len(hang) < _HANGS:
        seen, _ = aside.rows(partial(_rows, waiting))
        found.update(zip(waiting, (Look(*row) for row in seen), strict=False))
        hang += waiting[len(seen) : len(seen) + 1]
        waiting = waiting[len(seen) + 1 :]
    return found, hang


def _rows(pids: list[int]) -> Iterator[tuple[Any, ...]]:
    for pid in pids:
        yield astuple(_one(pid))


def _one(pid: int) -> Look:
    device = ""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for count, entry in enumerate(entries):
            with contextlib.suppress(OSError):
                if _DEVICE.search(name := os.readlink(entry.path)):  # noqa: PTH115 - thousands of them
                    device = name
            if device or count > _DESCRIPTORS_MAX:
                break
    maps = b""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        maps = file.read(_MAPS_MAX)
    return Look(device, has_driver(maps), _MUSL.search(maps) is not None, _is_blind(pid))


def _is_blind(pid: int) -> bool:
    """Whether the directory of its grant, which its environment names, is not there in its mount namespace."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(_ENVIRONMENT_MAX).split(b"\0")
        start = f"{GRANT_DIR_ENV}=/".encode()
        named = next((one[len(start) - 1 :] for one in variables if one.startswith(start)), None)
        if named is None:
            return False
        os.stat(f"/proc/{pid}/root{os.fsdecode(named)}/limits")  # noqa: PTH116 - bytes of others
    except FileNotFoundError:
        return Path(f"/proc/{pid}/root").exists()  # otherwise it has ended
    except OSError:
        return False
    return False


def has_driver(maps: bytes) -> bool:
    """Whether a driver is mapped. The interposer, which containers have under the driver's names, does not count."""
    ours = {file.stat().st_ino for file in INTERPOSERS}
    return any(int(inode) not in ours for inode in _DRIVER.findall(maps))


def cgroups() -> dict[int, str]:
    """The cgroup of each process, by pid. Reading it does not depend on the process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = cgroup_of((entry / "cgroup").read_text(errors="replace"))
    return found


def cgroup_of(text: str) -> str:
    """The path of a process's cgroup in a hierarchy where it has one of its own, which containers do not have in each.
    `text`: its /proc/PID/cgroup. `/`: in none."""
    places = dict(line.split(":", 2)[1:] for line in text.split("\n") if line.count(":") > 1)
    for name, path in places.items():
        if name == "" and path != "/":
            return path
    own = (path for name, path in places.items() if path != "/" and {"devices", "freezer"} & {*name.split(",")})
    return next(own, "/")
