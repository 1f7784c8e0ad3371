"""The host pool: whether the node has the memory that it may take, and what that is charged to."""

from collections.abc import Iterator
from typing import Any

from gpushare.doctor.finding import Check, Finding
from gpushare.hostpool import memory_file
from gpushare.text.units import GIB, format_size

_WHAT = "host pool"
_LOWER = "lower host_pool in the section [memory] of gpushare.toml, and restart the daemon"
LARGER_THAN_NODE = Check(
    _WHAT,
    "wrong",
    "{size}, and the node has {total} of memory in all",
    _LOWER,
    "The daemon promises grants room for memory that leaves their devices, and the node cannot hold as much.",
)
LARGER_THAN_FREE = Check(
    _WHAT,
    "note",
    "{left} of its {size} are not taken yet, and the node has {free} of memory free",
    f"end what takes the node's memory, or {_LOWER}",
    "A segment that the node cannot give is refused: a grant whose memory should leave its device then stays there.",
)
UNCHARGED = Check(
    _WHAT,
    "note",
    "its memory counts as the daemon's own: {why}",
    "run the daemon as root on a machine whose memory controller is mounted, with the host's cgroups writable",
    "A limit of the daemon's unit or container (MemoryMax) then bounds the pool, and may end its helpers.",
)
FEW_DESCRIPTORS = Check(
    _WHAT,
    "note",
    "at most {most} segments for {size}: the daemon may open too few files",
    "raise LimitNOFILE of the unit, or the limit of open files (`ulimit -n`) where it is started by hand",
    "Each segment takes a descriptor, and has at most 1 GiB. Half of the daemon's descriptors are for segments.",
)
PINNED = Check(
    _WHAT,
    "note",
    "{kept} were given back, but processes keep them pinned: they are given to nobody else",
    "end those processes: gpushare's library lets go of memory before it gives it back, so they are other programs",
    "The memory of a file that a process has pinned is freed when the process lets go of it or ends.",
)

_SMALL = 256
"""Segments that a node with few grants needs besides those of 1 GiB."""


def look(pool: dict[str, Any]) -> Iterator[Finding]:
    """Yields what is wrong with it, and how large it is. `pool`: as the node API shows it."""
    if not pool["size"]:
        yield Finding(_WHAT, "ok", "none, host_pool is 0: no memory of grants leaves their devices")
        return
    size, free, left = pool["size"], memory_file.available(), pool["size"] - pool["used"]
    where = f", charged to {pool['cgroup']}" if pool["cgroup"] else ""
    yield Finding(
        _WHAT,
        "ok",
        f"{format_size(pool['free'])} of {format_size(size)} free, the node has {format_size(free)}{where};"
        f" {pool['segments']} of at most {pool['segments_most']} segments",
    )
    if size > memory_file.total():
        yield LARGER_THAN_NODE(size=format_size(size), total=format_size(memory_file.total()))
    elif left > free:
        yield LARGER_THAN_FREE(left=format_size(left), size=format_size(size), free=format_size(free))
    if pool["uncharged"]:
        yield UNCHARGED(why=pool["uncharged"])
    if pool["segments_most"] < size // GIB + _SMALL:
        yield FEW_DESCRIPTORS(most=pool["segments_most"], size=format_size(size))
    if pool["kept"]:
        yield PINNED(kept=format_size(pool["kept"]))
