"""What a 64-bit little-endian ELF library needs of other libraries, and which versions of its functions it has, in the
terms in which the loader compares the two (LSB, symbol versioning). Pure: bytes in, facts out."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SIZE_MAX = 64 << 20
"""Bytes of a library that are read; a glibc has 2 MiB."""

# elf.h: Elf64_Ehdr from e_phoff to e_phnum, Elf64_Phdr, Elf64_Dyn, and the tables of versions.
_HEADER = struct.Struct("<32xQ14xHH")
_SEGMENT = struct.Struct("<IIQQ8xQ16x")
_DYNAMIC = struct.Struct("<QQ")
_NEED, _NEED_AUX = struct.Struct("<2xHIII"), struct.Struct("<4xH2xII")
_DEFINED, _DEFINED_AUX = struct.Struct("<6xH4xII"), struct.Struct("<I4x")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5
_VERSIONS, _VERSION_COUNT = 0x6FFFFFFC, 0x6FFFFFFD
_NEEDS, _NEED_COUNT = 0x6FFFFFFE, 0x6FFFFFFF
_WEAK = 2
# Of any one table: a file may be made to be endless.
_ENTRIES_MAX = 4096
_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class Library:
    """`needed`: the libraries that it links, by name. `versions`: for some of them, the versions that they have to
    have; the loader starts nothing without. `has`: its own versions."""

    needed: tuple[str, ...] = ()
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    has: frozenset[str] = frozenset()


def read(data: bytes) -> Library | None:
    """None: it is no such library, or a damaged one."""
    if not data.startswith(b"\x7fELF\x02\x01"):
        return None
    try:
        return _Reader(data).library()
    except (struct.error, OverflowError, _DamagedError):
        return None


class _DamagedError(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        offset, size, count = _HEADER.unpack_from(data)
        if size < _SEGMENT.size or count > _ENTRIES_MAX:
            raise _DamagedError
        segments = [_SEGMENT.unpack_from(data, offset + number * size) for number in range(count)]
        self._loaded = [(address, start, length) for kind, _, start, address, length in segments if kind == _PT_LOAD]
        self._dynamic = list(self._entries(segments))
        self._strings = self._at(dict(self._dynamic)[_STRINGS]) if _STRINGS in dict(self._dynamic) else 0

    def _entries(self, segments: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
        for kind, _, start, _, length in segments:
            if kind == _PT_DYNAMIC:
                for number in range(min(length // _DYNAMIC.size, _ENTRIES_MAX)):
                    yield _DYNAMIC.unpack_from(self._data, start + number * _DYNAMIC.size)

    def _at(self, address: int) -> int:
        """Where in the file that address is."""
        for begin, start, length in self._loaded:
            if begin <= address < begin + length:
                return int(start + address - begin)
        raise _DamagedError

    def _text(self, offset: int) -> str:
        begin = self._strings + offset
        return self._data[begin : begin + _NAME_MAX].partition(b"\0")[0].decode("utf-8", "replace")

    def library(self) -> Library:
        needed = tuple(self._text(value) for tag, value in self._dynamic if tag == _NEEDED)
        table = dict(self._dynamic)
        return Library(needed, dict(self._needs(table)), frozenset(self._defined(table)))

    def _needs(self, table: dict[int, int]) -> Iterator[tuple[str, frozenset[str]]]:
        if _NEEDS not in table:
            return
        at = self._at(table[_NEEDS])
        for _ in range(min(table.get(_NEED_COUNT, 0), _ENTRIES_MAX)):
            count, file, first, following = _NEED.unpack_from(self._data, at)
            yield self._text(file), frozenset(self._wanted(at + first, count))
            if not following:
                return
            at += following

    def _wanted(self, at: int, count: int) -> Iterator[str]:
        for _ in range(min(count, _ENTRIES_MAX)):
            flags, name, following = _NEED_AUX.unpack_from(self._data, at)
            if not flags & _WEAK:
                yield self._text(name)
            if not following:
                return
            at += following

    def _defined(self, table: dict[int, int]) -> Iterator[str]:
        if _VERSIONS not in table:
            return
        at = self._at(table[_VERSIONS])
        for _ in range(min(table.get(_VERSION_COUNT, 0), _ENTRIES_MAX)):
            count, first, following = _DEFINED.unpack_from(self._data, at)
            if count:
                (name,) = _DEFINED_AUX.unpack_from(self._data, at + first)
                yield self._text(name)
            if not following:
                return
            at += following
