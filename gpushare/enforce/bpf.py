"""The part of bpf(2) that the device programs need: instructions, programs, maps, and attachment to a cgroup.

The programs are short, so they are assembled by hand: the node needs neither a compiler nor a BPF library.
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
MAP_LOOKUP, GET_UID_GID, GET_ANCESTOR_CGROUP_ID = 1, 15, 123  # BPF helper function numbers
R0, R1, R2, R3, R6, R10 = 0, 1, 2, 3, 6, 10
_PSEUDO_MAP_FD = 1
_SYSCALL = {"x86_64": 321, "aarch64": 280}

_ATTRIBUTE_BYTES = 128  # the kernel accepts a longer union bpf_attr than it knows if the rest is zero
_NAME_BYTES = 16
_INFO_BYTES, _INFO_NAME = 128, 64  # size of struct bpf_prog_info that is read, and the offset of its name
_ATTACHED_MAX = 64  # the kernel's limit per cgroup (BPF_CGROUP_MAX_PROGS)


def instruction(code: int, destination: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """Encodes one instruction (8 bytes)."""
    return struct.pack("<BBhi", code, destination | source << 4, offset, immediate)


def map_address(destination: int, descriptor: int) -> bytes:
    """Two instruction slots that load a map's address. `descriptor`: the map's, open while the program is loaded."""
    return instruction(LD_IMM64, destination, _PSEUDO_MAP_FD, immediate=descriptor) + instruction(0)


def leave(answer: int) -> bytes:
    """Two instructions that end the program. `answer`: 1 allows, 0 denies."""
    return instruction(MOV_IMM, R0, immediate=answer) + instruction(EXIT)


def load(code: bytes, name: str = "") -> int:
    """Loads a cgroup device program and returns its descriptor, which the caller closes. `name`: at most 15 letters,
    digits and `_`. Raises FailedError."""
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
    """Attaches the program to a v2 cgroup for the cgroup's lifetime, alongside programs that are there: an open must be
    allowed by all programs of the cgroup and of its ancestors. Raises FailedError."""
    _change(_PROG_ATTACH, cgroup, program, _F_ALLOW_MULTI)


def detach(cgroup: Path, program: int) -> None:
    """Detaches the program. Raises FailedError, also if it is not attached."""
    _change(_PROG_DETACH, cgroup, program, 0)


def _change(command: int, cgroup: Path, program: int, flags: int) -> None:
    directory = _directory(cgroup)
    try:
        attribute = struct.pack("<IIII", directory, program, _CGROUP_DEVICE, flags)
        _call(command, attribute, f"change the device program of {cgroup}")
    finally:
        os.close(directory)


def attached(cgroup: Path, name: str) -> list[int]:
    """Returns descriptors of the device programs with this name that are attached to the cgroup itself; the caller
    closes them. Raises FailedError."""
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
    """A set of 64-bit numbers that a program can look up: a hash map whose values are ignored. Raises FailedError."""

    def __init__(self, name: str, most: int) -> None:
        attribute = struct.pack("<IIIIIII16s", _MAP_TYPE_HASH, 8, 1, most, _F_NO_PREALLOC, 0, 0, name.encode())
        self.descriptor = _call(_MAP_CREATE, attribute, "make a map")

    def add(self, number: int) -> None:
        """Adds a number; no error if it is there already."""
        key, value = ctypes.c_uint64(number), ctypes.c_uint8(1)
        attribute = struct.pack("<IIQQQ", self.descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0)
        _call(_MAP_UPDATE, attribute, "fill a map")

    def discard(self, number: int) -> None:
        """Removes a number; no error if it is not there."""
        key = ctypes.c_uint64(number)
        attribute = struct.pack("<IIQ", self.descriptor, 0, ctypes.addressof(key))
        _call(_MAP_DELETE, attribute, "change a map", fine=(errno.ENOENT,))

    def close(self) -> None:
        """Closes the descriptor. The map lives on while a program uses it."""
        os.close(self.descriptor)


def _directory(cgroup: Path) -> int:
    try:
        return os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FailedError(f"cgroup {cgroup} cannot be opened: {error.strerror}") from None


def _buffer(attribute: bytes) -> "ctypes.Array[ctypes.c_char]":
    return ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)


def _call(command: int, attribute: "bytes | ctypes.Array[ctypes.c_char]", what: str, fine: Sequence[int] = ()) -> int:
    """Calls bpf(2). `what`: the action, for error messages. `fine`: errnos that are not failures."""
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
