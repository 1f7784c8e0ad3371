"""Walls: what holds a workload that goes round the interposer."""

from typing import Literal

from msgspec import Struct

WallName = Literal["cgroup", "devices", "memory", "freezer", "watch", "exclusive", "tracepoint"]
Keeps = Literal["processes", "devices", "memory", "time", "evaders", "others"]
Enforce = Literal["best", "required"]


class Wall(Struct, kw_only=True):
    """What holds a workload that runs. `cgroup`: its processes are known and ended as one. `devices`: it opens the
    devices' nodes that it was granted, and none other. `memory`: the driver gives its processes no more than it was
    granted. `freezer`: it can be stopped without being ended. `watch`: what it takes of a device without joining is
    found by the driver's own numbers, and stopped. `exclusive`: users without a grant do not open the devices' nodes,
    where the configuration asks for that. `tracepoint`: the kernel sees its requests to the driver. `why`: of one that
    does not hold, or that can be left."""

    name: WallName
    holds: bool
    why: str = ""


class NodeWall(Struct, kw_only=True):
    """A wall of this node, tried when the daemon started. `keeps`: what it is for; another wall may keep the same.
    `why`: it does not hold. `lost`: what a workload can do without it."""

    name: WallName
    keeps: Keeps
    holds: bool
    why: str = ""
    lost: str
