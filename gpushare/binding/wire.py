"""The messages of a grant's socket (native/page/gs_wire.h) as typed objects."""

import enum
from dataclasses import dataclass
from typing import Self

from gpushare._native import ffi, lib

VERSION = lib.GS_WIRE_VERSION
NO_SLOT = lib.GS_NO_SLOT
REQUEST_BYTES = ffi.sizeof("struct gs_join_request")
SEGMENT_REQUEST_BYTES = ffi.sizeof("struct gs_segment_request")
SEGMENT_MOST = lib.GS_SEGMENT_MOST


class JoinError(enum.IntEnum):
    """`error` of a reply."""

    OK = lib.GS_JOIN_OK
    VERSION = lib.GS_JOIN_VERSION
    FULL = lib.GS_JOIN_FULL
    REFUSED = lib.GS_JOIN_REFUSED
    RELEASED = lib.GS_JOIN_RELEASED


class Yield(enum.IntEnum):
    """What a grant's programs say of its memory."""

    IDLE = lib.GS_YIELD_IDLE
    NOW = lib.GS_YIELD_NOW
    BACK = lib.GS_YIELD_BACK


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a process sends. Nothing in it is trusted."""

    magic: int
    version: int
    slot: int
    generation: int

    @classmethod
    def parse(cls, message: bytes) -> Self | None:
        """The request, None if the message has another size."""
        if len(message) != REQUEST_BYTES:
            return None
        words = ffi.from_buffer("struct gs_join_request *", message)
        return cls(words.magic, words.version, words.slot, words.generation)

    @property
    def understood(self) -> bool:
        """Whether it is a join of this version."""
        return (self.magic, self.version) == (lib.GS_JOIN_MAGIC, VERSION)

    @property
    def wants_page(self) -> bool:
        """Whether it asks for the usage page, in this version."""
        return (self.magic, self.version) == (lib.GS_PASS_MAGIC, VERSION)

    @property
    def looks(self) -> bool:
        """Whether it says that its residency words have changed, in this version."""
        return (self.magic, self.version) == (lib.GS_LOOK_MAGIC, VERSION)

    @property
    def yields(self) -> Yield | None:
        """What it says of the grant's memory, in this version; None: nothing."""
        says = (self.magic, self.version) == (lib.GS_YIELD_MAGIC, VERSION)
        return Yield(self.slot) if says and self.slot in set(Yield) else None


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """What a process sends that wants a segment of the host pool; 0 bytes: it gives all back. Not trusted."""

    slot: int
    generation: int
    device: int
    size: int

    @classmethod
    def parse(cls, message: bytes) -> Self | None:
        """The request; None if the message is another one."""
        if len(message) != SEGMENT_REQUEST_BYTES:
            return None
        words = ffi.from_buffer("struct gs_segment_request *", message)
        if (words.magic, words.version) != (lib.GS_SEGMENT_MAGIC, VERSION):
            return None
        return cls(words.slot, words.generation, words.device, words.bytes)


def reply(error: JoinError, text: str = "", *, slot: int = NO_SLOT, generation: int = 0, host_pid: int = 0) -> bytes:
    """The daemon's reply. A long text is truncated."""
    words = ffi.new("struct gs_join_reply *")
    words.magic, words.version, words.error = lib.GS_JOIN_MAGIC, VERSION, error
    words.slot, words.generation, words.host_pid = slot, generation, host_pid
    words.message = text.encode(errors="replace")[: ffi.sizeof(words.message) - 1]
    return bytes(ffi.buffer(words))
