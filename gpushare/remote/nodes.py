"""The nodes that a user names: nodes.toml, and destinations as they are typed.

```toml
[nodes.gpu1]                    # where only its name is needed, that is all: ssh gpu1
target = "ssh:me@gpu1.example"  # or unix:/PATH, a node on this machine
socket = "/srv/gpu/node.sock"   # the daemon's there, if not the usual one
relay = "10.0.0.1:7433"         # how its relay is reached from here, if not as the node says
labels = { rack = "r1" }
```
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from gpushare.errors import UsageError
from gpushare.paths import DEFAULT_SOCKET
from gpushare.processes import ssh
from gpushare.text import toml

UNIX = "unix:"
NODES_MAX = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_FORM = 'nodes are written as [nodes.NAME] with target = "ssh:HOST" or "unix:/PATH"'
_SHOWN = 80


def files() -> tuple[Path, ...]:
    """Where nodes are written down, the one that counts more first."""
    return Path("~/.config/gpushare/nodes.toml").expanduser(), Path("/etc/gpushare/nodes.toml")


@dataclass(frozen=True, slots=True)
class Target:
    """A node, and how it is reached. `name`: as the user calls it. `host`: for ssh; empty: it is on this machine.
    `socket`: the daemon's, there. `relay`: host and port, instead of those that the node says. `labels`: what the user
    says of it."""

    name: str
    host: str
    socket: Path
    relay: tuple[str, int] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class _Table(Struct, forbid_unknown_fields=True):
    target: str = ""
    socket: str = ""
    relay: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


def find(text: str, given: Path | None = None) -> Target:
    """Returns the node of this name in nodes.toml, or the one that `ssh:HOST[:/PATH]`, `unix:PATH` or a host's name
    says. `given`: a file instead of those of the user and the site. Raises UsageError."""
    named = text.startswith((ssh.PREFIX, UNIX))
    if not named and (known := table(given).get(text)) is not None:
        return known
    try:
        return _parsed(text, text)
    except UsageError as error:
        raise UsageError(f"node {text[:_SHOWN]!r}: {error}") from None


def table(given: Path | None = None) -> dict[str, Target]:
    """Returns the nodes in nodes.toml by name: the user's, and those of the site that the user has not written another
    way. `given`: a file instead, which has to be there. Raises UsageError."""
    found: dict[str, Target] = {}
    for path in (given,) if given is not None else reversed(files()):
        try:
            found |= _read(path)
        except FileNotFoundError:
            if given is not None:
                raise UsageError(f"{path}: there is no such file") from None
    return found


def _read(path: Path) -> dict[str, Target]:
    file = toml.read(path)
    if unknown := sorted(set(file.values) - {"nodes"}):
        raise UsageError(f"{file.place(unknown[0])}: unknown {unknown[0][:_SHOWN]!r}: {_FORM}")
    tables = file.values.get("nodes", {})
    if not isinstance(tables, dict):
        raise UsageError(f"{file.place('nodes')}: nodes is not a table: {_FORM}")
    if len(tables) > NODES_MAX:
        raise UsageError(f"{path}: it has {len(tables)} nodes: {NODES_MAX} are the most")
    return {name: _node(file, name, values) for name, values in tables.items()}


def _node(file: toml.File, name: str, values: Any) -> Target:
    def refuse(reason: str, *key: str) -> NoReturn:
        raise UsageError(f"{file.place('nodes', name, *key)}: node {name[:_SHOWN]}: {reason}")

    if not _NAME.fullmatch(name) or name == "any":
        refuse("that is no name: give up to 63 letters, digits, dots, - and _, and not `any`")
    if not isinstance(values, dict):
        refuse(_FORM)
    try:
        row = msgspec.convert(values, _Table)
    except msgspec.ValidationError as error:
        refuse(str(error), *_keys(values, str(error)))
    try:
        target = _parsed(name, row.target or f"{ssh.PREFIX}{name}")
    except UsageError as error:
        refuse(f"target: {error}", "target")
    if row.target and not row.target.startswith((ssh.PREFIX, UNIX)):
        refuse(f"target {row.target[:_SHOWN]!r}: {_FORM}", "target")
    socket = target.socket
    if row.socket:
        if not row.socket.startswith("/") or row.target.startswith(UNIX):
            refuse("socket: give an absolute path, and only with ssh", "socket")
        socket = Path(row.socket)
    try:
        relay = address(row.relay) if row.relay else None
    except UsageError as error:
        refuse(f"relay: {error}", "relay")
    return Target(name, target.host, socket, relay, row.labels)


def _keys(values: Mapping[str, Any], message: str) -> Sequence[str]:
    """The key that a message of msgspec is about."""
    return [key for key in values if f"`{key}`" in message or f"$.{key}" in message][:1]


def _parsed(name: str, text: str) -> Target:
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path or "\0" in path:
            raise UsageError("write unix:/PATH with the path of a daemon's socket")
        return Target(name, "", Path(path))
    host, path = ssh.split(text.removeprefix(ssh.PREFIX))
    return Target(name, host, Path(path) if path else DEFAULT_SOCKET)


def address(text: str) -> tuple[str, int]:
    """Parses `HOST:PORT` or `[IPv6]:PORT`. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else "" if ":" in host else host
    if not colon or not host or not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UsageError(f"{text[:_SHOWN]!r} is no HOST:PORT")
    return host, int(port)
