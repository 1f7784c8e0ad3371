"""The messages of a grant's socket: as a process sends and reads them, and as a test answers them."""

from typing import Any

from gpushare._native import ffi, lib


def request(
    slot: int = lib.GS_NO_SLOT,
    generation: int = 0,
    magic: int = lib.GS_JOIN_MAGIC,
    version: int = lib.GS_WIRE_VERSION,
) -> bytes:
    return bytes(ffi.buffer(ffi.new("struct gs_join_request *", [magic, version, slot, generation])))


def segment_request(
    size: int, slot: int, generation: int, device: int = 0, version: int = lib.GS_WIRE_VERSION
) -> bytes:
    words = [lib.GS_SEGMENT_MAGIC, version, slot, generation, size, device, 0]
    return bytes(ffi.buffer(ffi.new("struct gs_segment_request *", words)))


def asked(message: bytes) -> Any:
    """A struct gs_join_request."""
    return ffi.from_buffer("struct gs_join_request *", message)


def reply(
    error: int = lib.GS_JOIN_OK,
    slot: int = 0,
    generation: int = 1,
    text: bytes = b"",
    magic: int = lib.GS_JOIN_MAGIC,
) -> bytes:
    words = [magic, lib.GS_WIRE_VERSION, error, slot, generation, 1, text]
    return bytes(ffi.buffer(ffi.new("struct gs_join_reply *", words)))


def answered(message: bytes) -> Any:
    """A struct gs_join_reply."""
    assert len(message) == ffi.sizeof("struct gs_join_reply")
    return ffi.from_buffer("struct gs_join_reply *", message)
