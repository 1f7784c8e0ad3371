"""Messages between the daemon and the relay, over a unix socket that preserves message boundaries (SOCK_SEQPACKET).

The relay outlives the daemon: running attachments do not notice that it is restarted. The relay listens on this
socket, in the daemon's run directory; each daemon connects to it, and the relay first sends `Here`, then an `Is` for
each attachment, ended ones included that no daemon has acknowledged (`Noted`), then `All`.
"""

import msgspec
from msgspec import Struct

VERSION = 1
MESSAGE_MAX = 64 << 10


class Add(Struct, array_like=True, tag=1):
    """daemon: serve an attachment. `ticket_sha256`: 32 bytes. The descriptor, for a grant that has no server here yet,
    is one end of a stream socket to the server's connector (gpushare/sandbox/connector.py); the relay owns it from now
    on, and closes it when the grant's last attachment has ended, upon which the server ends."""

    id: str
    grant: str
    carrier: str
    origin: str
    uid: int
    link: str
    ticket_sha256: bytes
    created_ns: int


class End(Struct, array_like=True, tag=2):
    """daemon: end an attachment, or all of a grant's (`id` empty). `why`: as Attachment.ending. `text`: a line for the
    program's user; empty: none."""

    grant: str
    id: str
    why: str
    text: str = ""


class Notice(Struct, array_like=True, tag=3):
    """daemon: a line for the users of a grant's attachments."""

    grant: str
    text: str


class Noted(Struct, array_like=True, tag=4):
    """daemon: an end was recorded: the relay forgets the attachment."""

    id: str


class Stop(Struct, array_like=True, tag=5):
    """daemon: end all attachments and then this process."""


class Here(Struct, array_like=True, tag=6):
    """relay: who it is. `port`: where it listens; `cert_sha256`: 32 bytes; `listen`: as it was told at its start."""

    version: int
    pid: int
    port: int
    cert_sha256: bytes
    listen: str = ""


class Is(Struct, array_like=True, tag=7):
    """relay: an attachment as it is now: at its change, and once a second while bytes go through it. `ending`: empty
    while it lives. `silent_s`: for how long nothing was heard of it before it was lost, otherwise 0. `checked`: class
    of the link at the last check, from the client."""

    id: str
    grant: str
    carrier: str
    origin: str
    address: str
    uid: int
    link: str
    created_ns: int
    ended_ns: int
    ending: str
    connections: int
    bytes_in: int
    bytes_out: int
    rtt_us: int
    rate_bps: int
    checked: str
    silent_s: float = 0.0


class All(Struct, array_like=True, tag=8):
    """relay: every attachment was told."""


FromDaemon = Add | End | Notice | Noted | Stop
FromRelay = Here | Is | All

encode = msgspec.msgpack.encode
from_daemon = msgspec.msgpack.Decoder(FromDaemon).decode
from_relay = msgspec.msgpack.Decoder(FromRelay).decode
