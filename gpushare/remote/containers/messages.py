"""Messages between an attachment's client relay, its helper for containers, and the process that looks at an image."""

from typing import Any

import msgspec
from msgspec import Struct

from gpushare.api.engines import PlacedMount

MESSAGE_MAX = 1 << 17
BEGUN = b"-"
"""The helper's answer to an offer that it has made; any other is a pair of an error's code and line, in JSON."""


class Wanted(Struct, kw_only=True):
    """A library of the carrier for the container. `host`: its file. `needed`, `versions`: as elf.Library has them.
    `driver`: programs are to find it instead of any other of that name; the others only serve those."""

    host: str
    needed: list[str]
    versions: dict[str, list[str]]
    driver: bool


class Offer(Struct, kw_only=True):
    """What the helper offers. `name`: of the CDI device; `port`: on which programs reach the client relay; `env`:
    NAME=value; `libraries`: by name; `cdi`: directory of the spec; `run`: directory of the hook's socket."""

    carrier: str
    name: str
    port: int
    env: list[str]
    libraries: dict[str, Wanted]
    cdi: str
    run: str


class Look(Struct, kw_only=True):
    """A container that is created: which mounts does it need? `config`: the text of its config.json."""

    bundle: str
    config: bytes
    carrier: str
    libraries: dict[str, Wanted]


class Found(Struct, kw_only=True):
    """The answer. `root`: the container's, on the host. `error`: code and line of why it is not started, instead."""

    root: str = ""
    mounts: list[PlacedMount] = []
    error: tuple[str, str] | None = None


class State(Struct, kw_only=True):
    """What the hook says of the container (api.engines.ContainerState)."""

    pid: int
    bundle: str


class Call(Struct, kw_only=True):
    """The hook's request (hooks/hook.c:place_in)."""

    state: State
    config: msgspec.Raw


encode = msgspec.msgpack.encode


def decode(data: bytes, kind: type[Any]) -> Any:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=kind)
