"""What the relays ask of TCP."""

import contextlib
import socket
import struct

_TCP_INFO_BYTES = 104
_RTT = struct.Struct("68xI32x")
"""tcpi_rtt of struct tcp_info (linux/tcp.h)."""


def prepare(sock: socket.socket, silent_seconds: float) -> None:
    """For a connection between relays that is not for data yet: nothing waits for more to send, and the kernel gives
    the other end up after that time. Raises OSError."""
    _prepare(sock, silent_seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(silent_seconds * 1000)))


def prepare_data(sock: socket.socket, silent_seconds: float) -> None:
    """For one with data. It may stand still for as long as its reader wants, which TCP_USER_TIMEOUT would take for the
    other end's silence; the connection for control notices that. Never fails: a broken connection is seen where it is
    used."""
    with contextlib.suppress(OSError):
        _prepare(sock, silent_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def _prepare(sock: socket.socket, silent_seconds: float) -> None:
    seconds = max(1, int(silent_seconds / 2))
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, seconds),
        (socket.TCP_KEEPINTVL, max(1, int(silent_seconds / 10))),
        (socket.TCP_KEEPCNT, 5),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def acknowledge(sock: socket.socket) -> None:
    """Acknowledges what has come now, and what comes next at once; the kernel forgets it after a while."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def rtt_us(sock: socket.socket) -> int:
    """The kernel's smoothed round trip time; 0: not known."""
    with contextlib.suppress(OSError, struct.error):
        return int(_RTT.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES))[0])
    return 0


def host_of(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """The host of a socket's address, an IPv4 one as such also where it came over IPv6."""
    return address[0].removeprefix("::ffff:").partition("%")[0]
