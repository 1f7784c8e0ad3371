"""The cgroup device program: which GPU nodes a workload may open, held by the kernel.

The engine's own device rules stay in force: every program on the path to the root must allow an open. This one only
denies device files of guarded majors that were not granted, in so few instructions that no compiler is needed.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

from gpushare.errors import FailedError

# include/uapi/linux/bpf.h
_BPF_PROG_LOAD, _BPF_PROG_ATTACH, _BPF_PROG_DETACH = 5, 8, 9
_BPF_PROG_TYPE_CGROUP_DEVICE = 15
_BPF_CGROUP_DEVICE = 6
_BPF_F_ALLOW_MULTI = 2
_BPF_DEVCG_DEV_CHAR = 2
_LDX_W, _MOV_IMM, _AND_IMM, _JEQ_IMM, _JNE_IMM, _EXIT = 0x61, 0xB7, 0x57, 0x15, 0x55, 0x95
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_CONTEXT_ACCESS_TYPE, _CONTEXT_MAJOR, _CONTEXT_MINOR = 0, 4, 8  # offsets in struct bpf_cgroup_dev_ctx
_R0, _R1, _R2, _R3 = 0, 1, 2, 3

_ATTRIBUTE_BYTES = 128  # the kernel takes longer ones when the rest is zero


def _instruction(code: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhi", code, destination | source << 4, offset, immediate)


def program(guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> bytes:
    """BPF instructions: deny character devices whose major is in `guarded` and (major, minor) not in `granted`."""
    allow = _instruction(_MOV_IMM, _R0, immediate=1) + _instruction(_EXIT)
    deny = _instruction(_MOV_IMM, _R0, immediate=0) + _instruction(_EXIT)
    wanted = sorted(set(granted))
    code = _instruction(_LDX_W, _R2, _R1, _CONTEXT_ACCESS_TYPE)
    code += _instruction(_AND_IMM, _R2, immediate=0xFFFF)
    code += _instruction(_JEQ_IMM, _R2, offset=2, immediate=_BPF_DEVCG_DEV_CHAR) + allow
    code += _instruction(_LDX_W, _R2, _R1, _CONTEXT_MAJOR) + _instruction(_LDX_W, _R3, _R1, _CONTEXT_MINOR)
    for major in sorted(set(guarded)):
        minors = b""
        for minor in [minor for found, minor in wanted if found == major]:
            minors += _instruction(_JNE_IMM, _R3, offset=2, immediate=minor) + allow
        minors += deny
        code += _instruction(_JNE_IMM, _R2, offset=len(minors) // 8, immediate=major) + minors
    return code + allow


def attach(cgroup: Path, guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> None:
    """Loads the program and attaches it to a v2 cgroup, as long as that exists.

    `guarded`: majors of which everything is denied but `granted`, the (major, minor) pairs. Raises FailedError.
    """
    descriptor = _load(program(guarded, granted))
    try:
        _attach_call(_BPF_PROG_ATTACH, cgroup, descriptor, _BPF_F_ALLOW_MULTI)
    finally:
        os.close(descriptor)


def _load(code: bytes) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attribute = struct.pack(
        "<IIQQIIQII",
        _BPF_PROG_TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        *(0, 0, 0, 0, 0),
    )
    return _bpf(_BPF_PROG_LOAD, attribute, "load the device program")


def _attach_call(command: int, cgroup: Path, descriptor: int, flags: int) -> None:
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        attribute = struct.pack("<IIII", directory, descriptor, _BPF_CGROUP_DEVICE, flags)
        _bpf(command, attribute, f"change the device program of {cgroup}")
    finally:
        os.close(directory)


def _bpf(command: int, attribute: bytes, what: str) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise FailedError(f"cannot {what}: no bpf(2) number known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, command, buffer, _ATTRIBUTE_BYTES))
    if found < 0:
        code = ctypes.get_errno()
        hint = ": it needs CAP_BPF and CAP_NET_ADMIN, or root" if code == errno.EPERM else ""
        raise FailedError(f"cannot {what}: {os.strerror(code)}{hint}")
    return found
