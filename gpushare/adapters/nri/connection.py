"""The engine's socket: ttrpc messages in frames, multiplexed over two connections.

The engine calls the plugin on one, the plugin calls the engine on the other. Sizes are bounded by MESSAGE_MAX, so that
a peer that is not an engine cannot use more memory than that.
"""

import select
import socket
import struct
from typing import NamedTuple

from gpushare.errors import FailedError

MESSAGE_MAX = 4 << 20  # ttrpc's limit
TO_PLUGIN, TO_ENGINE = 1, 2  # connection numbers, by the callee
REQUEST, RESPONSE = 1, 2

_FRAME = struct.Struct(">II")  # connection, length
_HEAD = struct.Struct(">IIBB")  # length, stream, type, flags
_FRAME_MAX = MESSAGE_MAX + _HEAD.size
# The engine reads a frame into a buffer of this size and fails on a larger one.
_CHUNK = 4096
_REST_SECONDS = 10.0  # for the rest of a frame that has begun, and for sending


class Incoming(NamedTuple):
    """One message."""

    connection: int
    stream: int
    kind: int
    payload: bytes


class Connection:
    """A connected socket. Every method raises OSError if the engine is away, and FailedError if it violates the
    protocol."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(_REST_SECONDS)
        self._parts = {TO_PLUGIN: bytearray(), TO_ENGINE: bytearray()}

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    @property
    def ended(self) -> bool:
        """Whether the engine has closed the connection, even if data is still unread."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def receive(self) -> Incoming | None:
        """Waits without limit for the next message; None at the end of the connection."""
        while True:
            for connection, data in self._parts.items():
                message = self._whole(connection, data)
                if message is not None:
                    return message
            if not self._read_frame():
                return None

    def _whole(self, connection: int, data: bytearray) -> Incoming | None:
        if len(data) < _HEAD.size:
            return None
        size, stream, kind, _flags = _HEAD.unpack_from(data)
        if size > MESSAGE_MAX:
            raise FailedError(f"a message of {size} bytes, {MESSAGE_MAX} at most")
        end = _HEAD.size + size
        if len(data) < end:
            return None
        payload = bytes(data[_HEAD.size : end])
        del data[:end]
        return Incoming(connection, stream, kind, payload)

    def _read_frame(self) -> bool:
        select.select([self._socket], [], [])
        first = self._socket.recv(_FRAME.size)
        if not first:
            return False
        connection, size = _FRAME.unpack(first + self._exactly(_FRAME.size - len(first)))
        if connection not in self._parts or size > _FRAME_MAX:
            raise FailedError(f"a frame of {size} bytes for connection {connection}: this is no NRI")
        self._parts[connection] += self._exactly(size)
        return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 16))
            if not part:
                raise ConnectionResetError("it ended within a frame")
            data += part
        return bytes(data)

    def send(self, connection: int, stream: int, kind: int, payload: bytes) -> None:
        """Sends a message."""
        whole = _HEAD.pack(len(payload), stream, kind, 0) + payload
        parts = [whole[at : at + _CHUNK] for at in range(0, len(whole), _CHUNK)]
        self._socket.sendall(b"".join(_FRAME.pack(connection, len(part)) + part for part in parts))
