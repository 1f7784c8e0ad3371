"""Wire types of what engines call: the runtime wrapper and the hooks."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

# Text, which the daemon itself does not decode: every runtime must read in it what the daemon does (reader/config.py).
Config = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]


class OciEditRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`starts`: the calling process becomes the runtime; where it ends before the container starts, that has failed.
    `bundle`: left out where there is none yet, so that nothing is known of the image."""

    bundle: str | None = None
    config: Config
    starts: bool = False


class OciEditAnswer(Struct, kw_only=True):
    """The config to start the container with. `grant` is None where it asks for no share: it is unchanged then."""

    config: Config
    grant: str | None


class OciPlaceRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A container that is made and not started: its OCI state, which has its bundle, and its config.json."""

    state: "ContainerState"
    config: Config


class PlacedMount(Struct, kw_only=True):
    """A bind mount of config.json. `inside`: its source is not the host's, but a path in the container."""

    source: str
    destination: str
    options: list[str]
    inside: bool = False


class OciPlaceAnswer(Struct, kw_only=True):
    """What its hook does now (hooks/place.c). `root`: its root file system on the host. `mounts`: in this order, below
    the root. `hidden`: device nodes that are not its grant's."""

    grant: str
    root: str
    mounts: list[PlacedMount]
    hidden: list[str]


class ContainerState(Struct, kw_only=True):
    """What the daemon reads of the OCI state of a container. `pid`: of its first process. `annotations`: say whose pod
    it is, for the metrics alone; others than text are left out. `bundle`: its directory, an absolute path."""

    pid: Annotated[int, Meta(extra_json_schema={"minimum": 2, "maximum": 1 << 22})]
    annotations: Any = None
    bundle: str | None = None
