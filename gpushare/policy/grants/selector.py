"""Which devices a request accepts: `memory >= 40Gi && arch == 'Hopper'`. Pure.

    expression  = all { "||" all }
    all         = one { "&&" one }
    one         = "!" one | "(" expression ")" | NAME OPERATOR value | NAME "in" "(" value { "," value } ")"
    OPERATOR    = "==" | "!=" | "<" | "<=" | ">" | ">="         of texts only the first two
    value       = a size (40Gi), a number, a version (9.0), a text ('Hopper', in either quotes)

Every comparison with a fact that a device does not have is false.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpushare.errors import UsageError
from gpushare.text.units import parse_size

TEXT_MAX = 512
"""Characters of a selector."""
DEPTH_MAX = 16

Value: TypeAlias = int | str | tuple[int, ...]
Facts: TypeAlias = Mapping[str, Value]

_SIZE, _NUMBER, _VERSION, _TEXT = "a size such as 40Gi", "a whole number", "a version such as 9.0", "a text in quotes"
NAMES = {
    "memory": _SIZE,
    "index": _NUMBER,
    "minor": _NUMBER,
    "numa_node": _NUMBER,
    "compute_capability": _VERSION,
    "driver_version": _VERSION,
    "cuda_version": _VERSION,
    "uuid": _TEXT,
    "product": _TEXT,
    "architecture": _TEXT,
    "backend": _TEXT,
    "pci_bus_id": _TEXT,
    "pcie_root": _TEXT,
}
"""What a device can be selected by, and what it is compared with."""
_ALIASES = {"arch": "architecture", "name": "product", "id": "uuid", "cc": "compute_capability", "numa": "numa_node"}
_ATTRIBUTES = {"cuda_compute_capability": "compute_capability", "cuda_driver_version": "cuda_version"}

_TOKEN = re.compile(r"\s*(?:(&&|\|\||[=!<>]=|[<>!(),])|'([^']*)'|\"([^\"]*)\"|([A-Za-z0-9_.]+))", re.ASCII)
_COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,  # type: ignore[operator]
    "<=": lambda one, other: one <= other,  # type: ignore[operator]
    ">": lambda one, other: one > other,  # type: ignore[operator]
    ">=": lambda one, other: one >= other,  # type: ignore[operator]
}


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: `sign`, `text` or `word`. `column`: from 1."""

    kind: str
    text: str
    column: int


@dataclass(frozen=True, slots=True)
class Compare:
    """True where the device has the name and any of the values matches."""

    name: str
    operator: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    one: "Node"


@dataclass(frozen=True, slots=True)
class Several:
    """All of the parts where `every`, else any."""

    every: bool
    parts: tuple["Node", ...]


Node: TypeAlias = Compare | Not | Several


def version(text: str) -> tuple[int, ...] | None:
    """`9.0` as (9,): trailing zeros do not count. None where it is no version."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}", text, re.ASCII):
        return None
    parts = [int(part) for part in text.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def facts(attributes: Mapping[str, str], **known: Value) -> dict[str, Value]:
    """The facts of a device. `attributes`: of the node API. `known`: further facts by name."""
    found: dict[str, Value] = dict(known)
    for word, text in attributes.items():
        name = _ATTRIBUTES.get(word, word)
        kind = NAMES.get(name)
        if kind is _VERSION and (as_version := version(text)) is not None:
            found[name] = as_version
        elif kind is _NUMBER and text.isascii() and text.isdecimal():
            found[name] = int(text)
        elif kind is _TEXT:
            found[name] = text
    return found


def matches(node: Node, device: Facts) -> bool:
    """Whether the selector accepts the device."""
    match node:
        case Compare(name, operator, values):
            has = device.get(name)
            return has is not None and any(_COMPARE[operator](has, value) for value in values)
        case Not(one):
            return not matches(one, device)
        case Several(every, parts):
            return (all if every else any)(matches(part, device) for part in parts)


def parse(text: str) -> Node:
    """Parses a selector. Raises UsageError with the column."""
    if len(text) > TEXT_MAX:
        raise UsageError(f"the selector has {len(text)} characters: give at most {TEXT_MAX}")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[Token] = []
        self._at = 0
        position, end = 0, len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                shown = text[position:].lstrip()
                raise UsageError(f"selector, column {len(text) - len(shown) + 1}: {shown[:10]!r} is no part of one")
            kind = "sign" if found[1] else "word" if found[4] else "text"
            value = found[1] or found[4] or found[2] or found[3] or ""
            self._tokens.append(Token(kind, value, found.end() - len(found[0].lstrip()) + 1))
            position = found.end()
        self._end = Token("end", "the end", end + 1)

    def whole(self) -> Node:
        node = self._any(0)
        if (left := self._next()).kind != "end":
            raise _wrong(left, "&&, || or the end")
        return node

    def _next(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def _take(self, sign: str) -> bool:
        token = self._next()
        if token.kind == "sign" and token.text == sign:
            self._at += 1
            return True
        return False

    def _any(self, depth: int) -> Node:
        parts = [self._all(depth)]
        while self._take("||"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Several(False, tuple(parts))

    def _all(self, depth: int) -> Node:
        parts = [self._one(depth)]
        while self._take("&&"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else Several(True, tuple(parts))

    def _one(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise UsageError(f"selector, column {self._next().column}: deeper than {DEPTH_MAX} levels: make it simpler")
        if self._take("!"):
            return Not(self._one(depth + 1))
        if self._take("("):
            inner = self._any(depth + 1)
            if not self._take(")"):
                raise _wrong(self._next(), ")")
            return inner
        return self._compare()

    def _compare(self) -> Node:
        token = self._next()
        name = _ALIASES.get(token.text, token.text)
        if token.kind != "word" or name not in NAMES:
            raise _wrong(token, f"a name, of {', '.join(NAMES)}")
        self._at += 1
        operator = self._next()
        if operator.kind == "word" and operator.text == "in":
            self._at += 1
            return Compare(name, "==", self._list(name))
        if operator.kind != "sign" or operator.text not in _COMPARE:
            raise _wrong(operator, f"{', '.join(_COMPARE)} or in")
        if NAMES[name] is _TEXT and operator.text not in ("==", "!="):
            raise UsageError(f"selector, column {operator.column}: {name} is a text: compare it with == or !=")
        self._at += 1
        return Compare(name, operator.text, (self._value(name),))

    def _list(self, name: str) -> tuple[Value, ...]:
        if not self._take("("):
            raise _wrong(self._next(), "(")
        values = [self._value(name)]
        while self._take(","):
            values.append(self._value(name))
        if not self._take(")"):
            raise _wrong(self._next(), ", or )")
        return tuple(values)

    def _value(self, name: str) -> Value:
        token = self._next()
        found = _read(token, NAMES[name])
        if found is None:
            raise _wrong(token, NAMES[name])
        self._at += 1
        return found


def _read(token: Token, kind: str) -> Value | None:
    if kind is _TEXT:
        return token.text if token.kind == "text" else None
    if token.kind != "word":
        return None
    if kind is _VERSION:
        return version(token.text)
    if kind is _NUMBER:
        return int(token.text) if token.text.isdecimal() and len(token.text) < 10 else None
    try:
        return parse_size(token.text)
    except UsageError:
        return None


def _wrong(token: Token, wanted: str) -> UsageError:
    shown = token.text if token.kind == "end" else repr(token.text)
    return UsageError(f"selector, column {token.column}: {shown:.40} where there should be {wanted}")
