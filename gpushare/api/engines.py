"""Wire types of the calls made for container engines by the runtime wrapper and the hooks."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

# Text, which the daemon itself does not decode: every runtime must read it as the daemon does (reader/config.py).
Config = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]

WAIT_SECONDS = 5.0
"""A third of what the runtime wrapper and the hooks wait for an answer (hooks/node_api.h: GS_START_MS): the rest is for
a busy machine."""


class OciEditRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`starts`: the calling process becomes the runtime; if it ends before the container starts, the start has failed.
    `bundle`: left out if there is none yet; nothing is known of the image then. `wait_seconds`: how long the answer may
    wait for memory that is moved away for the container."""

    bundle: str | None = None
    config: Config
    starts: bool = False
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = WAIT_SECONDS


class OciEditAnswer(Struct, kw_only=True):
    """The config to start the container with. `grant`: None if the container asks for no share; the config is unchanged
    then."""

    config: Config
    grant: str | None


class OciPlaceRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A container that is created but not started: its OCI state, which names its bundle, and its config.json."""

    state: "ContainerState"
    config: Config


class PlacedMount(Struct, kw_only=True):
    """A bind mount as in config.json. `inside`: its source is a path in the container, not on the host. `make`: its
    mount point may be made. `optional`: without it the container starts too. `shows`: files in it, by their names, over
    which nothing may be mounted."""

    source: str
    destination: str
    options: list[str]
    inside: bool
    make: bool
    optional: bool
    shows: list[str]


class OciPlaceAnswer(Struct, kw_only=True):
    """What the container's hook has to do (hooks/place.c). `root`: the container's root file system on the host.
    `mounts`: to be seen below the root, and to be mounted there in this order where they are not. `hidden`: device
    nodes to hide, since they are not its grant's."""

    grant: str
    root: str
    mounts: list[PlacedMount]
    hidden: list[str]


class ContainerState(Struct, kw_only=True):
    """The fields of a container's OCI state that the daemon reads. `pid`: of its first process. `annotations`: identify
    its pod, for people and metrics only; values other than text are ignored. `bundle`: absolute path of its directory.
    `id`: the engine's name for it."""

    pid: Annotated[int, Meta(extra_json_schema={"minimum": 2, "maximum": 1 << 22})]
    annotations: Any = None
    id: Any = None
    bundle: str | None = None
