"""Wire types of findings: what the driver reports about a device and the books of the grants do not account for. Units
are those of gpushare.api.types."""

from typing import Literal

from msgspec import Struct

FindingKind = Literal["evader", "outside", "excess", "kept-memory", "overuse", "unowned"]
Act = Literal["told", "frozen", "stopped", "killed", "held"]
Outcome = Literal["", "joined", "left", "ended", "released", "within"]


class Finding(Struct, kw_only=True):
    """`seq`: counts findings in a run of the daemon. `evader`: a process in the cgroup of `grant` uses the device
    without having joined, so nothing meters or limits it. `outside`: a process of no grant uses it. `excess`: by the
    driver's count, the processes of a grant hold more memory than it may; `pid` is the one that holds most.
    `kept-memory`: the same of a grant whose memory is said to be in host memory: some of it is still on the device.
    `overuse`: by the driver's count, they use the device for longer than they are charged and than is due to them;
    `pid` is the one that used it most when this was found. `unowned`: `memory_bytes` of the device are in use that no
    process has: shared memory that outlived its owner; `pid` is 0.

    `command`: its command line, at most 200 printable characters; empty: unknown. `memory_bytes`, `busy_ns`: the
    driver's counts when it was found; null: the driver does not report it. `act`: what is done to the process. `told`:
    it is only reported. `frozen`: the grant's cgroup is frozen, with all processes in it. `stopped`: the process alone
    is stopped, by a signal. `held`: the grant's cgroups are frozen as often and as long as it takes to keep it to its
    share. `stop_ns`: time from the first sight of it until none of its threads ran any more; null: it runs. `note`: why
    no more than that is done; empty: nothing is in the way.

    `outcome`: how the finding ended, at `ended_ns`: the process has joined its grant (`joined`), no longer uses the
    device (`left`) or has ended (`ended`), or its grant has ended (`released`) or has kept to its share for a while
    (`within`). Empty and null while it lasts."""

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
    """The latest findings, oldest first. `open`: number of findings that last. `total`: number of all findings in this
    run of the daemon."""

    epoch: int
    total: int
    open: int
    findings: list[Finding]
