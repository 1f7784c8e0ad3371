"""How a process asks NVIDIA's driver for device memory: numbers and struct layouts of the resource manager's ioctls,
and the driver versions that they are valid for. From the headers of NVIDIA's open kernel modules (nv_escape.h, nvos.h,
nv-ioctl.h, cl0040.h); offsets in bytes.
"""

from dataclasses import dataclass, field
from typing import Any

from gpushare._native import ffi, lib

MEMORY_LOCAL_USER, MEMORY_EXTENDED_USER = 0x40, 0x42
ALLOC, FREE, DUP, HEAP, XFER = 0x2B, 0x29, 0x34, 0x4A, 0xD3
"""ioctl numbers; the driver ignores the other parts of a command."""

_FIRST_KNOWN, _LAST_KNOWN = 535, 620


@dataclass(frozen=True, slots=True)
class Escape:
    """An ioctl. `kind`: GS_ESCAPE_*. `status`: offset of the driver's status in its struct; `long_status`: the same in
    the longer struct, of `long_size` bytes."""

    kind: int
    status: int = 0
    long_size: int = 0
    long_status: int = 0


_ESCAPES = {
    ALLOC: Escape(lib.GS_ESCAPE_ALLOC, 28, 48, 40),  # NVOS21, NVOS64
    FREE: Escape(lib.GS_ESCAPE_FREE, 12),  # NVOS00
    DUP: Escape(lib.GS_ESCAPE_DUP, 24),  # NVOS55
    HEAP: Escape(lib.GS_ESCAPE_HEAP, 20),  # NVOS32
    XFER: Escape(lib.GS_ESCAPE_XFER),  # nv_ioctl_xfer_t
}
# NVOS32: function, attributes, size, height, pitch.
_HEAPS = ((2, 56, 88, 0, 0), (6, 64, 88, 56, 60), (14, 56, 80, 0, 0))


@dataclass(frozen=True, slots=True)
class Nodes:
    """A range of character devices to which the ioctls apply."""

    major: int
    first: int = 0
    last: int = 255


@dataclass(frozen=True, slots=True)
class Layout:
    """The driver's ioctl layout, for `struct gs_guard_layout`."""

    nodes: tuple[Nodes, ...]
    escapes: dict[int, Escape] = field(default_factory=lambda: dict(_ESCAPES))

    def native(self) -> Any:
        """Returns it as a `struct gs_guard_layout *`."""
        found = ffi.new("struct gs_guard_layout *")
        for number, one in self.escapes.items():
            found.escapes[number] = (one.kind, one.status, one.long_size, one.long_status)
        for index, nodes in enumerate(self.nodes):
            found.nodes[index] = (nodes.major, nodes.first, nodes.last, 1)
        found.classes = (MEMORY_LOCAL_USER, MEMORY_EXTENDED_USER)
        found.memory_size = 64  # NV_MEMORY_ALLOCATION_PARAMS
        found.heap_function, found.heap_handle, found.heap_flags, found.heap_free = 8, 44, 52, 3
        for index, row in enumerate(_HEAPS):
            found.heaps[index] = row
        return found


def is_known(version: str) -> bool:
    """Whether this driver version is in the range of branches whose headers were compared with these structs."""
    branch = version.partition(".")[0]
    return branch.isdecimal() and _FIRST_KNOWN <= int(branch) <= _LAST_KNOWN
