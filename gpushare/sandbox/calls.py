"""System calls that a server does without: a seccomp filter, which its children inherit. It has no rights without them
too; what it cannot ask, it cannot ask in a way that the kernel gets wrong.

A filter that cannot be made for this machine's architecture is left out.
"""

import ctypes
import errno
import platform
import socket
import struct
from dataclasses import dataclass

from gpushare.inject import mounts


@dataclass(frozen=True, slots=True)
class _Machine:
    """`audit`: its number in linux/audit.h. `clone`: where the namespace flags are its first argument. `socket`: where
    the family is. `refused`: unshare, setns, ptrace, process_vm_readv, process_vm_writev, add_key, request_key, keyctl,
    bpf, perf_event_open."""

    audit: int
    clone: int
    socket: int
    refused: tuple[int, ...]


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 56, 41, (272, 308, 101, 310, 311, 248, 249, 250, 321, 298)),
    "aarch64": _Machine(0xC00000B7, 220, 198, (97, 268, 117, 270, 271, 217, 218, 219, 280, 241)),
}
# The same on every architecture: io_uring_setup, io_uring_enter, io_uring_register, clone3, whose flags are in memory.
# Programs go on without them as on an older kernel.
_ABSENT = (425, 426, 427, 435)
_PIDFD_GETFD = 438
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Those that a network namespace keeps apart: AF_VSOCK, for one, reaches the host of a virtual machine from any."""
_OTHER_TABLE = 0x40000000  # the first number of x86-64's calls with 32-bit pointers
_NAMESPACES = 0x7E020000  # all CLONE_NEW... of sched.h

# linux/filter.h, linux/seccomp.h, linux/prctl.h
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x50000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data; the lower half of the first argument
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def restrict() -> None:
    """Restricts this process for good; it must have given up gaining rights (no_new_privs). Raises OSError."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return
    program = _program(machine)
    kept = ctypes.create_string_buffer(program, len(program))
    filled = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(kept))
    mounts.check(mounts.libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, filled, 0, 0), "seccomp filter")


def _program(machine: _Machine) -> bytes:
    lines = [
        _line(_LOAD, _ARCHITECTURE_AT),
        *_unless(_JUMP_EQUAL, machine.audit, errno.ENOSYS),
        _line(_LOAD, _NUMBER_AT),
        *_if(_JUMP_AT_LEAST, _OTHER_TABLE, errno.ENOSYS),
    ]
    for number in (*machine.refused, _PIDFD_GETFD):
        lines += _if(_JUMP_EQUAL, number, errno.EPERM)
    for number in _ABSENT:
        lines += _if(_JUMP_EQUAL, number, errno.ENOSYS)
    lines += _case(machine.clone, [*_if(_JUMP_SET, _NAMESPACES, errno.EPERM), _line(_RETURN, _ALLOW)])
    families = [_line(_JUMP_EQUAL, one, met=len(_FAMILIES) - at) for at, one in enumerate(_FAMILIES)]
    lines += _case(machine.socket, [*families, _line(_RETURN, _ERRNO | errno.EAFNOSUPPORT), _line(_RETURN, _ALLOW)])
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _case(number: int, lines: list[bytes]) -> list[bytes]:
    """For this call, `lines`, which look at its first argument and return."""
    return [_line(_JUMP_EQUAL, number, otherwise=len(lines) + 1), _line(_LOAD, _ARGUMENT_AT), *lines]


def _if(jump: int, value: int, error: int) -> tuple[bytes, bytes]:
    return _line(jump, value, met=0, otherwise=1), _line(_RETURN, _ERRNO | error)


def _unless(jump: int, value: int, error: int) -> tuple[bytes, bytes]:
    return _line(jump, value, met=1, otherwise=0), _line(_RETURN, _ERRNO | error)


def _line(code: int, value: int, *, met: int = 0, otherwise: int = 0) -> bytes:
    """`met`, `otherwise`: how many lines are skipped where a jump's condition holds, or does not."""
    return struct.pack("HBBI", code, met, otherwise, value)
