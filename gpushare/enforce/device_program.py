"""The cgroup device programs (native/guard/gs_devices.h): the kernel enforces by them which device nodes may be opened.

The engine's own device rules stay in force: every program on the path to the root must allow an open. `attach` is for a
workload's cgroup; the others serve gpushare/enforce/exclusive.py.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpushare._native import ffi, lib
from gpushare.errors import FailedError

_ATTACHED_MAX = 64  # the kernel's limit per cgroup (BPF_CGROUP_MAX_PROGS)


def attach(cgroup: Path, guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> None:
    """Attaches a program to a v2 cgroup for the cgroup's lifetime: it denies character devices whose major is in
    `guarded` and whose (major, minor) is not in `granted`. Raises FailedError."""
    err = ffi.new("struct gs_err *")
    majors = ffi.new("uint32_t[]", sorted(set(guarded)))
    nodes = ffi.new("struct gs_device_node[]", sorted(set(granted)))
    program = checked(lib.gs_devices_load(majors, len(majors), nodes, len(nodes), err), err)
    try:
        put(cgroup, program)
    finally:
        os.close(program)


def put(cgroup: Path, program: int) -> None:
    """Attaches a loaded program to a v2 cgroup, alongside programs that are there. Raises FailedError."""
    _change(lib.gs_device_attach, cgroup, program)


def detach(cgroup: Path, program: int) -> None:
    """Detaches the program. Raises FailedError, also if it is not attached."""
    _change(lib.gs_device_detach, cgroup, program)


def attached(cgroup: Path, name: str) -> list[int]:
    """Returns descriptors of the programs with this name that are attached to the cgroup itself; the caller closes
    them. Raises FailedError."""
    found = ffi.new("int[]", _ATTACHED_MAX)
    return list(found[0 : _change(lib.gs_device_attached, cgroup, name.encode(), found, _ATTACHED_MAX)])


def checked(found: int, err: Any) -> int:
    """Returns what a function of gs_devices.h returned. Raises FailedError with its message."""
    if found < 0:
        raise FailedError(ffi.string(err.msg).decode(errors="replace"))
    return found


def _change(act: Callable[..., int], cgroup: Path, *arguments: object) -> int:
    err = ffi.new("struct gs_err *")
    try:
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FailedError(f"cgroup {cgroup} cannot be opened: {error.strerror}") from None
    try:
        return checked(act(directory, *arguments, err), err)
    except FailedError as error:
        raise FailedError(f"cgroup {cgroup}: {error}") from None
    finally:
        os.close(directory)
