"""Wire types of a node's walls, which contain a workload that bypasses the interposer, of draining its devices: a
drained one takes no new grants, and its present ones continue; and of losing simulated ones."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

WallName = Literal["cgroup", "devices", "memory", "freezer", "watch", "exclusive", "tracepoint"]
Keeps = Literal["processes", "devices", "memory", "time", "evaders", "others"]
Enforce = Literal["best", "required"]


class Wall(Struct, kw_only=True):
    """What contains a running workload. `cgroup`: its processes are known and are ended together. `devices`: it can
    open the nodes of the devices that it was granted, and no others. `memory`: the driver gives its processes no more
    than it was granted. `freezer`: it can be stopped without being ended. `watch`: its use of a device without joining
    is found from the driver's own numbers, and stopped. `exclusive`: users without a grant cannot open the devices'
    nodes, if the configuration asks for that. `tracepoint`: the kernel sees its requests to the driver. `why`: why the
    wall does not hold."""

    name: WallName
    holds: bool
    why: str = ""


class NodeWall(Struct, kw_only=True):
    """A wall of this node, as tried when the daemon started. `keeps`: what it protects; another wall may protect the
    same. `why`: why it does not hold. `lost`: what a workload can do without it."""

    name: WallName
    keeps: Keeps
    holds: bool
    why: str = ""
    lost: str


class HostPool(Struct, kw_only=True):
    """The node's memory that device memory of grants can move to, in bytes: the whole pool; what is free; what is
    reserved for grants and not used; what their processes have, with what they gave back a moment ago; and what of the
    free bytes cannot be given to anybody, since a process that gave it back keeps it pinned. `cgroup`: what it is
    charged to, empty where that is the daemon's own, and then `uncharged` says why. `segments`: how many pieces there
    are, of at most `segments_most`, since each takes a descriptor of the daemon."""

    size: int
    free: int
    reserved: int
    used: int
    kept: int
    cgroup: str
    uncharged: str
    segments: int
    segments_most: int


DeviceState = Literal["ready", "draining", "drained"]
"""`draining`: it takes no new grants and still has some; `drained`: it has none left."""

DeviceName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128})]
REASON_MAX = 200
Reason = Annotated[str, Meta(extra_json_schema={"maxLength": REASON_MAX, "pattern": "^[ -~]*$"})]


class DrainRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`device`: its id, or its index as text. `reason`: shown to users whose requests are refused because of it."""

    device: DeviceName
    reason: Reason = ""


class UndrainRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`device`: as in DrainRequest."""

    device: DeviceName


class SimDevice(Struct, forbid_unknown_fields=True, kw_only=True):
    """`lost`: the simulated device answers no request, and its work pauses."""

    lost: bool
