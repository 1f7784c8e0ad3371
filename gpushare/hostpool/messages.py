"""Messages between the daemon and a helper of the host pool, over a socket pair that preserves message boundaries. One
job at a time; each message carries at most one descriptor."""

import msgspec
from msgspec import Struct

MESSAGE_MAX = 4096


class Make(Struct, array_like=True, tag=1):
    """daemon: make a memory file of so many bytes, all of them taken from the node's memory now. `numa`: the node it
    should lie on; negative: any."""

    size: int
    numa: int


class Empty(Struct, array_like=True, tag=2):
    """daemon: give all memory of this file (the descriptor) back to the node."""


class Made(Struct, array_like=True, tag=3):
    """helper: here it is (the descriptor)."""


class Emptied(Struct, array_like=True, tag=4):
    """helper: it holds nothing any more."""


class Failed(Struct, array_like=True, tag=5):
    """helper: that could not be done, for this reason."""

    reason: str


Job = Make | Empty
Answer = Made | Emptied | Failed

encode = msgspec.msgpack.encode
job = msgspec.msgpack.Decoder(Job).decode
answer = msgspec.msgpack.Decoder(Answer).decode
