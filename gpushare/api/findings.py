"""Wire types of findings: what the driver says of a device that the books of the grants do not. Units are those of
gpushare.api.types."""

from typing import Literal

from msgspec import Struct

FindingKind = Literal["evader", "outside", "excess", "overuse", "unowned"]
Act = Literal["told", "frozen", "stopped", "killed", "held"]
Outcome = Literal["", "joined", "left", "ended", "released", "within"]


class Finding(Struct, kw_only=True):
    """`seq`: counts them, in a run of the daemon. `evader`: a process in the cgroup of `grant` uses the device and has
    not joined: nothing meters or limits it. `outside`: one of no grant does.
    `excess`: the processes of a grant hold more memory than it may, by the driver's count; `pid` is the one with most.
    `overuse`: they use the device for longer than they are charged and is due to them, by the driver's count; `pid` is
    the one that did last and most. `unowned`: so much of the device's memory is in use and no process has it, which was
    shared and outlives who had it; `pid` is 0.

    `command`: its command line, at most 200 printable characters; empty: not known. `memory_bytes`, `busy_ns`: as the
    driver counted when it was found; null: it does not say. `act`: what is done to it. `frozen`: the grant's cgroup is,
    with all processes in it; `stopped`: the process alone, by a signal; `held`: the grant's cgroups are frozen as often
    and as long as it takes to keep it to its share. `stop_ns`: from the first sight of it until no thread ran any more;
    null: it runs. `note`: why no more than that is done; empty: nothing is in the way.

    `outcome`: how it ended, at `ended_ns`: the process has joined its grant, uses the device no more, has ended, or its
    grant has, or (`within`) it has kept to its share for a while. Empty and null while it lasts."""

    seq: int
    kind: FindingKind
    at_ns: int
    device: int
    device_id: str
    grant: str | None
    tenant: str | None
    pid: int
    command: str
    memory_bytes: int | None
    busy_ns: int
    act: Act
    note: str = ""
    stop_ns: int | None = None
    outcome: Outcome = ""
    ended_ns: int | None = None


class Findings(Struct, kw_only=True):
    """The latest, oldest first. `open`: how many of them last; `total`: all of this run of the daemon."""

    epoch: int
    total: int
    open: int
    findings: list[Finding]
