"""bpf(2) as far as the device programs need it: instructions, programs, maps, and what is attached to a cgroup.

Written by hand, since these programs are so short that neither a compiler nor a library is worth having on the node.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

from gpushare.errors import FailedError

# include/uapi/linux/bpf.h
_MAP_CREATE, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 0, 2, 3, 5, 8, 9
_PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 13, 15, 16
_PROG_TYPE_CGROUP_DEVICE, _MAP_TYPE_HASH = 15, 1
_CGROUP_DEVICE = 6
_F_ALLOW_MULTI, _F_NO_PREALLOC = 2, 1
DEVCG_DEV_CHAR = 2
CONTEXT_ACCESS_TYPE, CONTEXT_MAJOR, CONTEXT_MINOR = 0, 4, 8  # offsets in struct bpf_cgroup_dev_ctx
LDX_W, STX_DW, MOV, MOV_IMM, MOV32, ADD_IMM, AND_IMM, OR = 0x61, 0x7B, 0xBF, 0xB7, 0xBC, 0x07, 0x57, 0x4F
JA, JEQ_IMM, JNE_IMM, JLT_IMM, JGT_IMM, CALL, EXIT, LD_IMM64 = 0x05, 0x15, 0x55, 0xA5, 0x25, 0x85, 0x95, 0x18
MAP_LOOKUP, GET_UID_GID, GET_ANCESTOR_CGROUP_ID = 1, 15, 123  # of the kernel's functions
R0, R1, R2, R3, R6, R10 = 0, 1, 2, 3, 6, 10
_PSEUDO_MAP_FD = 1
_SYSCALL = {"x86_64": 321, "aarch64": 280}

_ATTRIBUTE_BYTES = 128  # the kernel takes longer ones when the rest is zero
_NAME_BYTES = 16
_INFO_BYTES, _INFO_NAME = 128, 64  # struct bpf_prog_info, and where its name is
_ATTACHED_MAX = 64  # what the kernel takes at one cgroup (BPF_CGROUP_MAX_PROGS)


def instruction(code: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """One of 8 bytes."""
    return struct.pack("<BBhi", code, destination | source << 4, offset, immediate)


def map_address(destination: int, descriptor: int) -> bytes:
    """Two instructions: a map's address, by the descriptor that it has while the program is loaded."""
    return instruction(LD_IMM64, destination, _PSEUDO_MAP_FD, immediate=descriptor) + instruction(0)


def leave(answer: int) -> bytes:
    """Two instructions: 1 allows, 0 denies."""
    return instruction(MOV_IMM, R0, immediate=answer) + instruction(EXIT)


def load(code: bytes, name: str = "") -> int:
    """A program for device files; the caller closes the descriptor. `name`: at most 15 characters of letters, digits
    and `_`. Raises FailedError."""
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attribute = struct.pack(
        "<IIQQIIQII16s",
        _PROG_TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        *(0, 0, 0, 0, 0),
        name.encode(),
    )
    return _call(_PROG_LOAD, attribute, "load the device program")


def attach(cgroup: Path, program: int) -> None:
    """To a v2 cgroup, as long as that exists, beside what is there: an open has to be allowed by all programs of the
    cgroup and of those above. Raises FailedError."""
    _change(_PROG_ATTACH, cgroup, program, _F_ALLOW_MULTI)


def detach(cgroup: Path, program: int) -> None:
    """Raises FailedError, also where it is not attached."""
    _change(_PROG_DETACH, cgroup, program, 0)


def _change(command: int, cgroup: Path, program: int, flags: int) -> None:
    directory = _directory(cgroup)
    try:
        attribute = struct.pack("<IIII", directory, program, _CGROUP_DEVICE, flags)
        _call(command, attribute, f"change the device program of {cgroup}")
    finally:
        os.close(directory)


def attached(cgroup: Path, name: str) -> list[int]:
    """Descriptors, which the caller closes, of the device programs of this name at the cgroup itself. Raises
    FailedError."""
    directory = _directory(cgroup)
    found = (ctypes.c_uint32 * _ATTACHED_MAX)()
    try:
        asked = struct.pack("<IIIIQI", directory, _CGROUP_DEVICE, 0, 0, ctypes.addressof(found), _ATTACHED_MAX)
        buffer = _buffer(asked)
        _call(_PROG_QUERY, buffer, f"list the device programs of {cgroup}")
        (count,) = struct.unpack_from("<I", buffer, 24)
    finally:
        os.close(directory)
    kept = []
    for number in found[:count]:
        descriptor = _call(_PROG_GET_FD_BY_ID, struct.pack("<I", number), "open a device program")
        if _name(descriptor) == name:
            kept.append(descriptor)
        else:
            os.close(descriptor)
    return kept


def _name(program: int) -> str:
    info = ctypes.create_string_buffer(_INFO_BYTES)
    asked = struct.pack("<IIQ", program, _INFO_BYTES, ctypes.addressof(info))
    _call(_OBJ_GET_INFO_BY_FD, asked, "look at a device program")
    return info.raw[_INFO_NAME : _INFO_NAME + _NAME_BYTES].rstrip(b"\0").decode(errors="replace")


class Numbers:
    """A set of numbers of 64 bits that a program can look into: a hash map without values. Raises FailedError."""

    def __init__(self, name: str, most: int) -> None:
        attribute = struct.pack("<IIIIIII16s", _MAP_TYPE_HASH, 8, 1, most, _F_NO_PREALLOC, 0, 0, name.encode())
        self.descriptor = _call(_MAP_CREATE, attribute, "make a map")

    def add(self, number: int) -> None:
        """One that is there already stays."""
        key, value = ctypes.c_uint64(number), ctypes.c_uint8(1)
        attribute = struct.pack("<IIQQQ", self.descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0)
        _call(_MAP_UPDATE, attribute, "fill a map")

    def discard(self, number: int) -> None:
        """One that is not there is no error."""
        key = ctypes.c_uint64(number)
        attribute = struct.pack("<IIQ", self.descriptor, 0, ctypes.addressof(key))
        _call(_MAP_DELETE, attribute, "change a map", fine=(errno.ENOENT,))

    def close(self) -> None:
        """A program that looks into it keeps it."""
        os.close(self.descriptor)


def _directory(cgroup: Path) -> int:
    try:
        return os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FailedError(f"cgroup {cgroup} cannot be opened: {error.strerror}") from None


def _buffer(attribute: bytes) -> "ctypes.Array[ctypes.c_char]":
    return ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)


def _call(command: int, attribute: "bytes | ctypes.Array[ctypes.c_char]", what: str, fine: Sequence[int] = ()) -> int:
    """`fine`: errnos that are no failure."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise FailedError(f"cannot {what}: no bpf(2) number known for {platform.machine()}")
    buffer = _buffer(attribute) if isinstance(attribute, bytes) else attribute
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, command, buffer, _ATTRIBUTE_BYTES))
    if found < 0 and (code := ctypes.get_errno()) not in fine:
        hint = ": it needs CAP_BPF and CAP_NET_ADMIN, or root" if code == errno.EPERM else ""
        raise FailedError(f"cannot {what}: {os.strerror(code)}{hint}")
    return found
