"""Protobuf messages as plain dicts, encoded and decoded by tables of their fields; for services with many messages.

    CLAIM = Table(namespace=text(1), uid=text(2), name=text(3))
    CLAIM.encode({"uid": "u"})  ->  b"\\x12\\x01u"
    CLAIM.decode(b"\\x12\\x01u")  ->  {"namespace": "", "uid": "u", "name": ""}

What a message leaves out decodes to its type's zero: "", 0, False, [], {}; None for a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gpushare.adapters.protobuf import Message, every, field, number, parse, raw

_Of: TypeAlias = "Literal['text', 'bytes', 'number', 'flag'] | Table"
_SIGN, _WORD = 1 << 63, 1 << 64


@dataclass(frozen=True)
class Field:
    """One field. `many`: repeated. `by_key`: a map with string keys."""

    number: int
    of: _Of
    many: bool = False
    by_key: bool = False


def text(at: int, *, many: bool = False) -> Field:
    """A string."""
    return Field(at, "text", many)


def data(at: int) -> Field:
    """Bytes."""
    return Field(at, "bytes")


def whole(at: int) -> Field:
    """An integer or an enum, not zigzag."""
    return Field(at, "number")


def flag(at: int) -> Field:
    """A bool."""
    return Field(at, "flag")


def message(at: int, of: "Table", *, many: bool = False) -> Field:
    """A message."""
    return Field(at, of, many)


def keyed(at: int, of: "Table | None" = None) -> Field:
    """A map from strings to messages, or to strings."""
    return Field(at, of or "text", by_key=True)


class Table:
    """A message's fields by their names."""

    def __init__(self, **fields: Field) -> None:
        self.fields = fields

    def encode(self, given: Mapping[str, Any]) -> bytes:
        """Encodes a message. Raises KeyError for an unknown field name."""
        return b"".join(_encode(self.fields[name], value) for name, value in given.items())

    def decode(self, given: bytes) -> dict[str, Any]:
        """Decodes a message. Raises ValueError if it is malformed."""
        found = parse(given)
        return {name: _decode(one, found) for name, one in self.fields.items()}


EMPTY = Table()


def _encode(one: Field, value: Any) -> bytes:
    if one.by_key:
        pairs = (field(1, key) + field(2, _payload(one.of, of)) for key, of in value.items())
        return field(one.number, *pairs)
    if one.many:
        return field(one.number, *(_payload(one.of, of) for of in value))
    if value in ("", b"", 0, None):
        return b""
    return field(one.number, _payload(one.of, value))


def _payload(of: _Of, value: Any) -> int | bytes | str:
    if isinstance(of, Table):
        return of.encode(value)
    if of in ("number", "flag"):
        return int(value)
    assert isinstance(value, (str, bytes))
    return value


def _decode(one: Field, found: Message) -> Any:
    if one.by_key:
        pairs = (parse(entry) for entry in every(found, one.number))
        return {raw(pair, 1).decode(): _value(one.of, raw(pair, 2)) for pair in pairs}
    if one.many:
        return [_value(one.of, of) for of in every(found, one.number)]
    if one.of == "number":
        value = number(found, one.number)
        return value - _WORD if value & _SIGN else value
    if one.of == "flag":
        return bool(number(found, one.number))
    if isinstance(one.of, Table) and one.number not in found:
        return None
    return _value(one.of, raw(found, one.number))


def _value(of: _Of, given: bytes) -> Any:
    if isinstance(of, Table):
        return of.decode(given)
    return given.decode() if of == "text" else given
