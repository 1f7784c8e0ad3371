"""The lines of the connection for control: JSON, each an object that ends with a newline. Both ends use this file."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from gpushare.api.remote import LinkReport
from gpushare.relay.wire import LINE_MAX


class FromRelay(Struct, omit_defaults=True):
    """`beat`: counts up. `notice`: a line for the program's user. `end`: the attachment has ended, as Attachment.ending
    says, and so does this connection; `text`: a line for the program's user about it, or empty."""

    beat: int | None = None
    notice: str | None = None
    end: str | None = None
    text: str = ""


class FromClient(Struct, omit_defaults=True):
    """`beat`: counts up. `checked`: what the link check found. `bye`: the client ends the attachment."""

    beat: int | None = None
    checked: LinkReport | None = None
    bye: bool = False


_Line = TypeVar("_Line", FromRelay, FromClient)


def _decoder(kind: type[_Line]) -> Callable[[bytes], _Line]:
    decode = msgspec.json.Decoder(kind).decode

    def decoded(line: bytes) -> _Line:
        """Raises ValueError."""
        try:
            return decode(line)
        except RecursionError:  # of nested values in a field that nobody knows
            raise ValueError("a line is too deep") from None

    return decoded


from_relay = _decoder(FromRelay)
from_client = _decoder(FromClient)


def encode(line: FromRelay | FromClient) -> bytes:
    """The line's bytes. A text that would make it too long is cut."""
    data = msgspec.json.encode(line)
    if len(data) >= LINE_MAX and isinstance(line, FromRelay):
        most = LINE_MAX // 16  # of 6 bytes each at worst, in two texts
        notice = line.notice and line.notice[:most]
        data = msgspec.json.encode(FromRelay(line.beat, notice, line.end, line.text[:most]))
    return data + b"\n"


class Splitter:
    """Cuts what comes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Returns the lines that are complete, without newlines. Raises ValueError: one is too long."""
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if any(len(line) >= LINE_MAX for line in (*lines, self._rest)):
            raise ValueError("a line is too long")
        return lines
