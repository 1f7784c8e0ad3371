"""The nodes that a page shows, and the socket of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import UsageError
from gpushare.paths import DEFAULT_SOCKET, client_socket
from gpushare.processes import ssh

NODES_MAX = 32
_NAME_MAX = 200


@dataclass(frozen=True, slots=True)
class Source:
    """`socket`: the daemon's, on this machine or, if `host` is not empty, on that host, forwarded by ssh."""

    name: str
    socket: Path
    host: str = ""


def parse(text: str) -> Source:
    """Parses `NAME=SOCKET`, `NAME=ssh:HOST` or `NAME=ssh:HOST:/PATH`. Raises UsageError."""
    name, equals, where = text.partition("=")
    if not equals or not name.strip() or not where:
        raise UsageError(f"--node {text[:80]!r}: write NAME=SOCKET or NAME=ssh:HOST, such as a1=ssh:a1.example.org")
    if len(name) > _NAME_MAX or any(ord(one) < 32 or 0xD800 <= ord(one) < 0xE000 for one in name):
        raise UsageError(f"--node {name[:40]!r}: give a name of at most {_NAME_MAX} characters on one line")
    if not where.startswith(ssh.PREFIX):
        return Source(name, Path(where))
    try:
        host, path = ssh.split(where.removeprefix(ssh.PREFIX))
    except UsageError as error:
        raise UsageError(f"--node {name[:40]}: {error}") from None
    return Source(name, Path(path) if path else DEFAULT_SOCKET, host)


def sources(nodes: Sequence[str], socket: str | None) -> list[Source]:
    """Returns the sources of the options; without --node, the socket that a client would use. Raises UsageError."""
    if not nodes:
        return [Source("this node", client_socket(socket))]
    if socket is not None:
        raise UsageError("--socket and --node both name nodes: give --node NAME=SOCKET for each")
    found = [parse(text) for text in nodes]
    if len(found) > NODES_MAX:
        raise UsageError(f"--node is given {len(found)} times: one page has {NODES_MAX} nodes at most")
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise UsageError("--node: two nodes have the same name: give each its own")
    return found
