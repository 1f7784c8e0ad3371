"""CUDA's forward compatibility: a newer driver library in an image, for use with an older driver's kernel module.

https://docs.nvidia.com/deploy/cuda-compatibility: the package puts it into /usr/local/cuda/compat. From 590 on an ELF
note in the library lists the host driver branches it supports; earlier ones support all older branches.
"""

import json
import re
import struct
from collections.abc import Iterator

from gpushare.inject.view import View

DIRECTORY = "/usr/local/cuda/compat"

_NAME = re.compile(r"libcuda\.so\.([0-9]+(?:\.[0-9]+)+)")
_OWNER = b"NVIDIA Corporation\0"
# The linker places notes right after the program headers, near the start of the file.
_HEAD_BYTES = 65536
# elf.h: Elf64_Ehdr from e_phoff to e_phnum, Elf64_Phdr, Elf64_Nhdr
_HEADER = struct.Struct("<32xQ14xHH")
_SEGMENT = struct.Struct("<IIQ16xQ")
_NOTE = struct.Struct("<III")
_PT_NOTE = 4


def directory(view: View, driver_version: str) -> str | None:
    """Returns the image's directory with a library that programs should use instead of the host driver's; None if there
    is none that is newer than `driver_version`, the host's, and supports it. Raises what View raises."""
    host = _version(driver_version)
    names = [name for name in view.names(DIRECTORY, "libcuda.so.") if _NAME.fullmatch(name)]
    if not host or len(names) != 1:
        return None
    place = view.resolve(f"{DIRECTORY}/{names[0]}")
    own = _version(names[0].removeprefix("libcuda.so."))
    if not place.is_file() or own <= host:
        return None
    made_for = _branches(view.read(place.container, _HEAD_BYTES))
    fits = host[0] in made_for if made_for is not None else own[0] > host[0]
    return view.resolve(DIRECTORY).container if fits else None


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("."))) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", text) else ()


def _branches(head: bytes) -> list[int] | None:
    """Returns the driver branches that the library's note lists; None if it has no note."""
    for text in _notes(head):
        try:
            note = {str(name).lower(): value for name, value in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError):
            continue
        listed = note.get("driver")
        return [branch for branch in listed if isinstance(branch, int)] if isinstance(listed, list) else []
    return None


def _notes(head: bytes) -> Iterator[bytes]:
    """Yields the texts of NVIDIA's notes in the first bytes of a 64-bit library."""
    if len(head) < _HEADER.size or not head.startswith(b"\x7fELF\x02\x01"):
        return
    offset, size, count = _HEADER.unpack_from(head)
    for number in range(count):
        at = offset + number * size
        if size < _SEGMENT.size or at + _SEGMENT.size > len(head):
            return
        kind, _, start, length = _SEGMENT.unpack_from(head, at)
        if kind == _PT_NOTE:
            yield from _in_segment(head[start : start + length])


def _in_segment(segment: bytes) -> Iterator[bytes]:
    at = 0
    while at + _NOTE.size <= len(segment):
        name, text, _ = _NOTE.unpack_from(segment, at)
        begin = at + _NOTE.size
        behind = begin + (name + 3 & ~3)
        if segment[begin : begin + name] == _OWNER:
            yield segment[behind : behind + text].rstrip(b"\0")
        at = behind + (text + 3 & ~3)
