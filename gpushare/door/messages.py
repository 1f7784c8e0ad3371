"""Messages between the daemon and its door, over a socket pair that preserves message boundaries. A message carries at
most one descriptor.

A connection's number is never reused in the life of a door. `grant` is the daemon's number for a grant's socket.
"""

import msgspec
from msgspec import Struct

MESSAGE_MAX = 4096
REQUEST_MAX = 256
"""Bytes of a tenant's message that are passed on; a longer one is truncated, which makes it invalid."""


class Open(Struct, array_like=True, tag=1):
    """daemon: serve this listener (the descriptor)."""

    grant: int


class Shut(Struct, array_like=True, tag=2):
    """daemon: close the grant's listener and all its connections."""

    grant: int


class Answer(Struct, array_like=True, tag=3):
    """daemon: send this. A descriptor is sent along, and the connection stays; without one the connection is closed."""

    connection: int
    message: bytes


class HangUp(Struct, array_like=True, tag=4):
    """daemon: close a connection that stayed. `Ended` does not follow."""

    connection: int


class Look(Struct, array_like=True, tag=5):
    """daemon: which system call is the process in?"""

    pid: int


class Ping(Struct, array_like=True, tag=6):
    """daemon: are you there?"""


class Asked(Struct, array_like=True, tag=7):
    """door: a tenant's process sent this. The descriptor is its pidfd; none: the process is gone."""

    grant: int
    connection: int
    pid: int
    uid: int
    gid: int
    message: bytes


class Ended(Struct, array_like=True, tag=8):
    """door: a connection to which an answer was sent with a descriptor has ended. `answered`: it was delivered."""

    connection: int
    answered: bool


class Looked(Struct, array_like=True, tag=9):
    """door: the first word of /proc/PID/syscall; empty: unknown."""

    pid: int
    word: str


class Pong(Struct, array_like=True, tag=10):
    """door: I am here."""


FromDaemon = Open | Shut | Answer | HangUp | Look | Ping
FromDoor = Asked | Ended | Looked | Pong

encode = msgspec.msgpack.encode
from_daemon = msgspec.msgpack.Decoder(FromDaemon).decode
from_door = msgspec.msgpack.Decoder(FromDoor).decode
