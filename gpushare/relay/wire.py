"""What a client sends first on each connection to a relay, after the TLS handshake where there is one, and the messages
of the connection for control. Both ends use this file.

A connection begins with a preamble of 64 bytes. If the relay takes it, it answers `TAKEN`, one byte, and what follows
depends on the purpose; otherwise it closes the connection and says nothing.

`CONTROL`: one for each attachment, which lives as long as it does: each side sends a line of JSON at least every
`BEAT_SECONDS`, and takes the other for lost after `SILENT_SECONDS` without one.
`DATA`: bytes from and to the carrier's server.
`CHECK`: the client sends a byte that says what it wants, and `CHECK_SECONDS_FORMAT`: for how long (at most
`CHECK_SECONDS_MAX`). `ECHO`: everything comes back. `SINK`: everything is read, and then answered with the number of
bytes (u64, little-endian). `SOURCE`: bytes come for so long, then the connection ends.
"""

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

VERSION = 1
MAGIC = b"gpushare"
PREAMBLE = struct.Struct("<8sBB6x16s32s")
TAKEN = b"\x00"

BEAT_SECONDS = 1.0
SILENT_SECONDS = 10.0
FIRST_USE_SECONDS = 60.0
PREAMBLE_SECONDS = 5.0
"""From the connection to the end of its preamble, with the handshake."""
LINE_MAX = 4096
"""Bytes of a line of the connection for control."""

CHECK_SECONDS_FORMAT = "<d"
CHECK_SECONDS_MAX = 2.0


class Purpose(IntEnum):
    """What a connection is for."""

    CONTROL = 1
    DATA = 2
    CHECK = 3


class Check(IntEnum):
    """What a connection for a check does."""

    ECHO = 1
    SINK = 2
    SOURCE = 3


@dataclass(frozen=True, slots=True)
class Preamble:
    """`attachment`: its id, 16 bytes; `ticket`: 32 bytes."""

    purpose: Purpose
    attachment: bytes
    ticket: bytes

    def pack(self) -> bytes:
        """The 64 bytes."""
        return PREAMBLE.pack(MAGIC, VERSION, self.purpose, self.attachment, self.ticket)

    @classmethod
    def unpack(cls, data: bytes) -> "Preamble | None":
        """None: it is none of this version."""
        if len(data) != PREAMBLE.size:
            return None
        magic, version, purpose, attachment, ticket = PREAMBLE.unpack(data)
        if (magic, version) != (MAGIC, VERSION) or purpose not in list(Purpose) or any(data[10:16]):
            return None
        return cls(Purpose(purpose), attachment, ticket)


def same(one: bytes, other: bytes) -> bool:
    """Compares secrets in a time that tells nothing of them."""
    return hmac.compare_digest(one, other)
