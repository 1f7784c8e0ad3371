"""The part of protobuf's wire format that the adapters' messages need. Fields are identified by number."""

from collections.abc import Iterable
from typing import TypeAlias

Message: TypeAlias = dict[int, list[int | bytes]]
"""The values of each field, in order: numbers, and length-delimited or fixed-size values as bytes."""
Given: TypeAlias = int | bytes | str

_NUMBER, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_MAX = 10  # bytes


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, *values: Given) -> bytes:
    """Encodes a field with these values; several for a repeated field."""
    out = b""
    for value in values:
        if isinstance(value, int):
            out += _varint(number << 3 | _NUMBER) + _varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | _LENGTH) + _varint(len(raw)) + raw
    return out


def parse(data: bytes) -> Message:
    """Decodes a message into its fields. Raises ValueError if it is malformed."""
    found: Message = {}
    at, end = 0, len(data)
    while at < end:
        key, at = _read_varint(data, at)
        kind, value = key & 7, 0
        if kind == _NUMBER:
            value, at = _read_varint(data, at)
            found.setdefault(key >> 3, []).append(value)
            continue
        if kind == _LENGTH:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of the unknown type {kind}")
        if size > end - at:
            raise ValueError("a field is longer than its message")
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + _VARINT_MAX]:
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number does not end")


def number(message: Message, of: int) -> int:
    """Returns the number in a field; 0 if it is absent."""
    value = message.get(of, [0])[-1]
    return value if isinstance(value, int) else 0


def raw(message: Message, of: int) -> bytes:
    """Returns the bytes in a field; empty if it is absent."""
    value = message.get(of, [b""])[-1]
    return value if isinstance(value, bytes) else b""


def every(message: Message, of: int) -> Iterable[bytes]:
    """Returns all bytes values of a repeated field."""
    return (value for value in message.get(of, ()) if isinstance(value, bytes))
