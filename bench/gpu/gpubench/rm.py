"""Controls of NVIDIA's resource manager, issued through an open device file of another process.

Layouts, commands and codes are of NVIDIA's open GPU kernel modules 580.142: nvos.h, ctrl/ctrla06c.h,
ctrl/ctrla06f/ctrla06fgpfifo.h (three bytes since 575), ctrl/ctrl2080/ctrl2080fifo.h, nvstatuscodes.h, nv_escape.h.
rmapi/client.c lets a client be used only through the open file that it was made with: whoever else wants to needs that
very file, which pidfd_getfd gives to a process that may trace its owner.
"""

import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUBDEVICE, CHANNEL_GROUP = 0x2080, 0xA06C
GRAPHICS = 1  # the engine that computes
SET_TIMESLICE, GET_TIMESLICE = 0xA06C0103, 0xA06C0104
GPFIFO_SCHEDULE, PREEMPT = 0xA06C0101, 0xA06C0105
DISABLE_CHANNELS, DISABLE_CHANNELS_MAX = 0x2080110B, 64
_SYS_PIDFD_GETFD = 438  # the same on every architecture
_LIBC = ctypes.CDLL(None, use_errno=True)


class Control(ctypes.Structure):
    """NVOS54_PARAMETERS"""

    _fields_ = (
        ("client", ctypes.c_uint32),
        ("object", ctypes.c_uint32),
        ("command", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("parameters", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("status", ctypes.c_uint32),
    )


class Timeslice(ctypes.Structure):
    """NVA06C_CTRL_TIMESLICE_PARAMS"""

    _fields_ = (("us", ctypes.c_uint64),)


class Schedule(ctypes.Structure):
    """NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS"""

    _fields_ = (("enable", ctypes.c_uint8), ("skip_submit", ctypes.c_uint8), ("skip_enable", ctypes.c_uint8))


class Preempt(ctypes.Structure):
    """NVA06C_CTRL_PREEMPT_PARAMS"""

    _fields_ = (("wait", ctypes.c_uint8), ("manual_timeout", ctypes.c_uint8), ("timeout_us", ctypes.c_uint32))


class DisableChannels(ctypes.Structure):
    """NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS"""

    _fields_ = (
        ("disable", ctypes.c_uint8),
        ("count", ctypes.c_uint32),
        ("only_scheduling", ctypes.c_uint8),
        ("rewind", ctypes.c_uint8),
        ("event", ctypes.c_uint64),
        ("clients", ctypes.c_uint32 * DISABLE_CHANNELS_MAX),
        ("channels", ctypes.c_uint32 * DISABLE_CHANNELS_MAX),
    )


for _layout, _size in ((Control, 32), (Timeslice, 8), (Schedule, 3), (Preempt, 8), (DisableChannels, 536)):
    assert ctypes.sizeof(_layout) == _size, _layout
assert (DisableChannels.count.offset, DisableChannels.event.offset) == (4, 16)
assert (DisableChannels.clients.offset, DisableChannels.channels.offset) == (24, 280)

# Read and write, magic F, NV_ESC_RM_CONTROL.
_RM_CONTROL = 3 << 30 | ctypes.sizeof(Control) << 16 | ord("F") << 8 | 0x2A

_STATUS = {
    0x00: "NV_OK",
    0x17: "NV_ERR_IN_USE",
    0x1A: "NV_ERR_INSUFFICIENT_RESOURCES",
    0x1B: "NV_ERR_INSUFFICIENT_PERMISSIONS",
    0x1F: "NV_ERR_INVALID_ARGUMENT",
    0x21: "NV_ERR_INVALID_CHANNEL",
    0x23: "NV_ERR_INVALID_CLIENT",
    0x24: "NV_ERR_INVALID_COMMAND",
    0x31: "NV_ERR_INVALID_OBJECT",
    0x33: "NV_ERR_INVALID_OBJECT_HANDLE",
    0x38: "NV_ERR_INVALID_OPERATION",
    0x39: "NV_ERR_INVALID_OWNER",
    0x3A: "NV_ERR_INVALID_PARAM_STRUCT",
    0x40: "NV_ERR_INVALID_STATE",
    0x51: "NV_ERR_NO_MEMORY",
    0x56: "NV_ERR_NOT_SUPPORTED",
    0x57: "NV_ERR_OBJECT_NOT_FOUND",
    0x58: "NV_ERR_OBJECT_TYPE_MISMATCH",
    0x65: "NV_ERR_TIMEOUT",
    0xFFFF: "NV_ERR_GENERIC",
}
REFUSED = frozenset(_STATUS.values()) - {"NV_OK", "NV_ERR_TIMEOUT", "NV_ERR_GENERIC"}
"""With these, nothing was changed."""


def status_name(code: int) -> str:
    return _STATUS.get(code, f"NV status 0x{code:x}")


def control(descriptor: int, client: int, handle: int, command: int, parameters: ctypes.Structure) -> str:
    """The status' name. `parameters` may be written."""
    call = Control(
        client=client,
        object=handle,
        command=command,
        parameters=ctypes.addressof(parameters),
        size=ctypes.sizeof(parameters),
        status=0xFFFF,
    )
    try:
        fcntl.ioctl(descriptor, _RM_CONTROL, call, True)
    except OSError as error:
        return f"ioctl: {os.strerror(error.errno or 0)}"
    return status_name(call.status)


@dataclass(frozen=True)
class Object:
    """One line of native/iolog.c."""

    file: str
    descriptor: int
    client: int
    parent: int
    handle: int
    class_: int
    engine: int


def objects(log: Path) -> list[Object]:
    """The channels, channel groups and subdevices that a process made; some of them may be gone again."""
    lines = log.read_text().splitlines() if log.exists() else []
    found = []
    for line in lines:
        kind, file, *numbers = line.split()
        if kind == "object":
            found.append(Object(file, *(int(number, 16) for number in numbers)))
    return found


class Owner:
    """A process whose open files are borrowed. Raises OSError where that cannot be."""

    def __init__(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)

    @contextmanager
    def borrowed(self, file: str, descriptor: int) -> Iterator[int]:
        """A duplicate, closed at once: a held one would keep the owner's objects alive after its end."""
        found = _LIBC.syscall(_SYS_PIDFD_GETFD, self._pidfd, descriptor, 0)
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
        try:
            if os.readlink(f"/proc/self/fd/{found}") != file:  # closed since, and the number used again
                raise OSError(0, f"descriptor {descriptor} is no longer {file}")
            yield found
        finally:
            os.close(found)
