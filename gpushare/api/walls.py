"""Walls: what contains a workload that bypasses the interposer."""

from typing import Literal

from msgspec import Struct

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
