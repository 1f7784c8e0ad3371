"""Whose a connection on loopback is."""

import socket
import struct
from pathlib import Path

_MAPPED = "0000000000000000FFFF0000"
"""Before an IPv4 address that a program uses through a socket of IPv6."""
_TABLES = ((Path("/proc/net/tcp"), ""), (Path("/proc/net/tcp6"), _MAPPED))


def owner(connection: socket.socket) -> int | None:
    """The uid of the process at the other end of an IPv4 connection that both ends have on this machine; None if it has
    closed it meanwhile. Raises OSError if it was reset."""
    local, remote = _written(connection.getpeername()), _written(connection.getsockname())
    for table, before in _TABLES:
        if table.exists() and (found := _listed(table, before + local, before + remote)) is not None:
            return found
    return None


def _listed(table: Path, local: str, remote: str) -> int | None:
    with table.open() as rows:
        next(rows)
        for row in rows:
            _, here, there, *_, uid, _, inode = row.split()[:10]
            # One that no process has any more says uid 0, whosever it was.
            if (here, there) == (local, remote) and inode != "0":
                return int(uid)
    return None


def _written(address: tuple[str, int]) -> str:
    """An address as the kernel writes it there: the bytes as one number of this machine, and the port."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
