"""The loader's cache (/etc/ld.so.cache), as glibc 2.2 and later write it (sysdeps/generic/dl-cache.h), little-endian.

It consists of a header, entries in descending order of name, strings and, from 2.33 on, an extension. All offsets are
relative to the header.
"""

import platform
import re
import struct
from collections.abc import Mapping

PATH = "/etc/ld.so.cache"
SIZE_MAX = 1 << 20  # a desktop's is about 250 KB

_OLD = b"ld.so-1.7.0"  # magic of an old-format cache that may come first: header with entry count, 12-byte entries
_OLD_HEADER, _OLD_ENTRY = struct.Struct("<11sxI"), 12
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")  # magic, entries, bytes of strings, byte order, offset of the extension
_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, (unused), hardware capabilities
_LITTLE_ENDIAN = 2
# FLAG_ELF_LIBC6 with FLAG_X8664_LIB64 or FLAG_AARCH64_LIB64
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}

_EXTENSION, _EXTENSION_MAGIC = struct.Struct("<II"), 0xEAA42174  # magic, number of sections
_SECTION = struct.Struct("<IIII")  # tag, (unused), offset, bytes
_TAG_HWCAPS = 1  # an array of offsets of strings

_NAME_MAX = 255


def added(data: bytes, libraries: Mapping[str, str]) -> bytes | None:
    """Returns the cache `data` with `libraries` (path by name) added before others of the same name. `data`: empty if
    there is no cache.

    None: the loader would reject `data`, or its format is unknown here.
    """
    try:
        return _added(data or _HEADER.pack(_MAGIC, 0, 0, _LITTLE_ENDIAN, 0), libraries)
    except (struct.error, _UnknownError):
        return None


class _UnknownError(Exception):
    pass


def _added(data: bytes, libraries: Mapping[str, str]) -> bytes:
    combined = data.startswith(_OLD)
    if combined:
        before = _OLD_HEADER.size + _OLD_HEADER.unpack_from(data)[1] * _OLD_ENTRY
        data = data[(before + 7) & ~7 :]
    magic, count, string_bytes, order, extension = _HEADER.unpack_from(data)
    first = _HEADER.size + count * _ENTRY.size  # end of the entries
    if magic != _MAGIC or order not in (0, _LITTLE_ENDIAN) or first > len(data) or platform.machine() not in _FLAGS:
        raise _UnknownError
    moved = len(libraries) * _ENTRY.size
    rest = bytearray(data[first:])
    if extension:
        if combined:  # its offsets are relative to the old-format cache
            raise _UnknownError
        _move_extension(rest, first, extension, moved)
    entries = list(_ENTRY.iter_unpack(data[_HEADER.size : first]))
    names = [data[entry[1] : entry[1] + _NAME_MAX].partition(b"\0")[0] for entry in entries]
    entries = [(flags, name + moved, path + moved, unused, needs) for flags, name, path, unused, needs in entries]
    for library, path in libraries.items():
        name, offset = library.encode(), first + moved + len(rest)
        rest += name + b"\0" + path.encode() + b"\0"
        rank = _rank(name)
        at = next((place for place, other in enumerate(names) if _rank(other) <= rank), len(names))
        names.insert(at, name)
        entries.insert(at, (_FLAGS[platform.machine()], offset, offset + len(name) + 1, 0, 0))
    grown = len(rest) - (len(data) - first)
    header = _HEADER.pack(magic, len(entries), string_bytes + grown, order, extension + moved if extension else 0)
    return header + b"".join(_ENTRY.pack(*entry) for entry in entries) + rest


def _move_extension(rest: bytearray, first: int, extension: int, moved: int) -> None:
    """Adds `moved` to all offsets in the extension. `rest`: the bytes from offset `first`, the end of the entries."""
    at = extension - first
    if at < 0:
        raise _UnknownError
    magic, count = _EXTENSION.unpack_from(rest, at)
    if magic != _EXTENSION_MAGIC or count > len(rest) // _SECTION.size:
        raise _UnknownError
    for number in range(count):
        place = at + _EXTENSION.size + number * _SECTION.size
        tag, unused, offset, size = _SECTION.unpack_from(rest, place)
        begin = offset - first
        if begin < 0 or begin + size > len(rest):
            raise _UnknownError
        _SECTION.pack_into(rest, place, tag, unused, offset + moved, size)
        if tag == _TAG_HWCAPS:
            words = struct.Struct(f"<{size // 4}I")
            words.pack_into(rest, begin, *(word + moved for word in words.unpack_from(rest, begin)))


def _rank(name: bytes) -> list[tuple[int, int]]:
    """Sort key that orders names as the loader does (_dl_cache_libcmp): numbers by value, after other characters."""
    parts = re.findall(rb"\d+|.", name, re.DOTALL)
    return [(1, int(part)) if part.isdigit() else (0, part[0]) for part in parts]
