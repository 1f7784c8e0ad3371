"""Wire types of the node API. Sizes are bytes, times nanoseconds, shares milli-GPU; JSON is snake_case.

A request with an unknown field is refused: it may ask for a guarantee that this daemon does not give. Readers of
answers should ignore fields that they do not know.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from gpushare.api.node import DeviceState, Enforce, HostPool, NodeWall, Wall
from gpushare.api.numbers import MemorySize, MemoryText, TimeLimitMilli, TimeLimitText, TimeMilli, TimeText
from gpushare.api.remote import Attachment
from gpushare.api.residency import Residency
from gpushare.api.sensors import Sensors
from gpushare.api.share import Eviction, Grace, GrantDevice, Health, IdleAfter, InTurn, MaxRung, Priority, Signal
from gpushare.api.workload import Workload

Class = Literal["interactive", "inference", "training"]
Phase = Literal["prepared", "reserved", "bound", "active", "suspended", "released", "expired", "failed"]
Kind = Literal["process", "container"]
Managed = Literal["charge", "refuse"]
IdleMemory = Literal["keep", "lend"]
Leases = Literal["together", "independent"]
Placement = Literal["spread", "pack"]

Name = Literal[
    "",
    "DeviceHealth",
    "DeviceDrain",
    "CapacityChanged",
    "QuotaDegraded",
    "QuotaRestored",
    "EvictionRequested",
    "EvictionResolved",
    "MemoryExceeded",
    "MemoryMoved",
    "MemoryPressure",
    "MemoryRefused",
    "MemoryReturned",
    "GangPrepared",
    "GangCommitted",
    "GangAborted",
    "GangExpired",
    "RemoteAttached",
    "RemoteDetached",
    "RemoteLost",
    "LinkSlow",
]

TTL_SECONDS = 120

Key = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 256})]
GangId = Annotated[
    str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"})
]
GangText = Annotated[
    str,
    Meta(
        extra_json_schema={
            "minLength": 1,
            "pattern": r"^[^:\u0000-\u001f\u007f-\u009f]{0,128}(:[0-9]{0,7}(:(together|independent)?)?)?$",
        }
    ),
]
Uid = Annotated[int, Meta(ge=0, le=(1 << 32) - 2)]
Pid = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 1 << 22})]
Selector = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 512})]
GangSize = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 1 << 20})]


class Gang(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The job that the grant is part of. `id`: the job's; grants with the same id are never on the same device. `size`:
    how many devices the job has in total, including those on other nodes (default: those of this grant). `leases`:
    given on all devices of this grant at the same instant (`together`), or on each separately (`independent`)."""

    id: GangId | None = None
    size: GangSize | None = None
    leases: Leases = "together"


class GrantRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`memory`: bytes, `8GiB` or `35%` of a device. `time`, `time_limit`: milli, `30%` or `0.3`; with a `time` of 0 it
    only borrows. `device`: id, index or `any`; for several `devices` as many, separated by commas. `managed`: whether
    managed memory is charged like device memory or refused. `gang`: also as text, `ID[:SIZE[:LEASES]]`. `idle_memory`:
    whether its memory may be moved to host memory while the program does not use it (docs/guides/idle-memory.md);
    `idle_after_seconds`: after how long without work it counts as not used; with `lend` only; left out: as its tenant
    or the node sets it.

    `borrow_memory`: how much of the memory, per device, may be memory that is guaranteed to others and not used by
    them; `true`: all of it. The grant is asked to give it back within `grace_seconds` (default: the node's), also by
    `eviction_signal` if one is named; with a `max_rung` of `kill` it is ended after that. `priority`: of a tenant's
    grants, the lower one is asked first.

    `selector`: which devices are suitable (gpushare/policy/grants/selector.py). `placement`: of a single share, among
    the devices where it fits: the one with most free (`spread`), or the one that it leaves least of (`pack`); left out:
    as its tenant or the node sets it.

    `in_turn`: which parts of a device it shares with grants that never run at the same time; for root only, of one
    device, and without memory on loan.

    `keep`: the grant stays until it is released, whatever happens to its workloads: any number of containers, or of
    processes of one user, run in it at once or in turn. `ttl_seconds`: how long it may stay without a workload
    (default: 120, and unlimited with `keep`). `uid`: the user who owns the grant, if root asks for it."""

    memory: MemorySize | MemoryText
    time: TimeMilli | TimeText
    time_limit: TimeLimitMilli | TimeLimitText = 1000
    tenant: str = "default"
    class_: Class = field(name="class", default="training")
    devices: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 16})] = 1
    device: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 15})] | str = "any"
    managed: Managed = "charge"
    idle_memory: IdleMemory = "keep"
    idle_after_seconds: IdleAfter | None = None
    gang: Gang | GangText | None = None
    key: Key | None = None
    ttl_seconds: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 86400})] | None = None
    borrow_memory: bool | MemorySize | MemoryText = False
    max_rung: MaxRung | None = None
    grace_seconds: Grace | None = None
    priority: Priority = 0
    eviction_signal: Signal | None = None
    keep: bool = False
    uid: Uid | None = None
    selector: Selector | None = None
    placement: Placement | None = None
    in_turn: InTurn | None = None


class GrantChange(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The fields to change; those left out stay as they are."""

    memory: MemorySize | MemoryText | None = None
    time: TimeMilli | TimeText | None = None
    time_limit: TimeLimitMilli | TimeLimitText | None = None


SomeChange = Annotated[
    GrantChange,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"required": [name], "properties": {name: {"type": ["integer", "string"]}}}
                for name in ("memory", "time", "time_limit")
            ]
        }
    ),
]
"""A GrantChange that changes something."""


class BindRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`process`: the calling process, or the process `pid` of the same user (of any user, if root asks); if root asks
    and the grant is kept, also all processes of the user `uid` with the group `gid`. `container`: one that an engine is
    about to start."""

    kind: Kind
    pid: Pid | None = None
    uid: Uid | None = None
    gid: Uid | None = None


class Mount(Struct, kw_only=True):
    """A bind mount of a container: `source` on the host, `destination` in it, `options` as in mount(8)."""

    source: str
    destination: str
    options: list[str]


class Binding(Struct, kw_only=True):
    """What the workload gets: the environment of a process; for a container also its mounts. `unset`: variables that a
    process must not inherit, since they number devices as outside the share."""

    grant: str
    dir: str
    env: dict[str, str]
    mounts: list[Mount]
    unset: list[str] = []


class PartOf(Struct, kw_only=True):
    """The gang that a grant was prepared for, and its part on this node (gpushare.api.gangs)."""

    gang: str
    part: str


class Grant(Struct, kw_only=True):
    """`part_of`: set if it was prepared for a gang across nodes; while its phase is `prepared` it cannot be used.
    `notice`: what the owner needs to know now, such as a device that does not work; usually empty. `walls`: empty
    before anything runs in it. `max_rung`, `grace_seconds`: how memory that it has on loan may be taken back.
    `eviction`: set while that memory is wanted back. `residency`: where its memory is, if it may be moved; its
    phase is `suspended` while that is in host memory. `idle_after_seconds`: the one that is in force for it, if it
    may be moved; 0: it never counts as idle. `uid`: its owner's. `workload`: what runs in it. `attachments`: the
    machines whose programs use it now (docs/guides/remote). `sync_calls`: synchronising calls of its programs so
    far: those that return when work is done, or return something that only the driver knows; `host_bytes_in`,
    `host_bytes_out`: bytes that they copied to its devices and from them; `running_ns`: how long they did
    something, to about a second. A link to a device elsewhere makes programs slower by these."""

    id: str
    key: str | None
    tenant: str
    class_: Class = field(name="class")
    managed: Managed = "charge"
    idle_memory: IdleMemory = "keep"
    idle_after_seconds: float | None = None
    gang: Gang | None = None
    part_of: PartOf | None = None
    in_turn: InTurn | None = None
    phase: Phase
    devices: list[GrantDevice]
    borrow: bool
    cdi: list[str]
    dir: str
    pid: int | None
    kind: Kind | None
    uid: int
    processes: list[int]
    workload: Workload = Workload()
    keep: bool = False
    created_ns: int
    expires_ns: int | None
    ended_ns: int | None
    reason: str
    notice: str = ""
    walls: list[Wall] = []
    priority: int = 0
    max_rung: MaxRung = "throttle"
    grace_seconds: float = 0
    eviction: Eviction | None = None
    residency: Residency | None = None
    attachments: list[Attachment] = []
    sync_calls: int = 0
    host_bytes_in: int = 0
    host_bytes_out: int = 0
    running_ns: int = 0
    rv: int


class Grants(Struct, kw_only=True):
    """`epoch`: number of the daemon's run. `rv`: position of the watch stream at this moment, for `since` of
    /v1/watch."""

    epoch: int
    rv: int
    grants: list[Grant]


class Quantity(Struct, kw_only=True):
    """`time`: milli-GPU, `memory`: bytes."""

    time: int
    memory: int


class Device(Struct, kw_only=True):
    """`health_reason`, `unhealthy_since_ns`: set if the device does not work. It stays in the list until the daemon
    restarts. `state`: whether it takes new grants; `drain_reason`, `drained_since_ns`: set if it does not. `links`: how
    near the other devices are, by id: `nvlink`, or NVML's topology level, `internal` to `system`. `sensors`: what the
    driver measured last.

    A request that may borrow (`borrow_memory`) can have, besides `allocatable`: `memory_asleep_bytes`, room that
    suspended grants have left and nobody has borrowed, and `memory_idle_bytes`, which grants that lend have and have
    done nothing with for long enough to be moved to host memory first (409 `making_room`)."""

    id: str
    index: int
    minor: int
    backend: Literal["native", "simulated"]
    name: str
    pci_bus_id: str
    capacity: Quantity
    reserved: Quantity
    guaranteed: Quantity
    allocatable: Quantity
    context_bytes: int
    memory_used_bytes: int
    memory_idle_bytes: int = 0
    memory_asleep_bytes: int = 0
    attributes: dict[str, str]
    health: Health
    links: dict[str, str] = field(default_factory=dict)
    health_reason: str = ""
    unhealthy_since_ns: int | None = None
    state: DeviceState = "ready"
    drain_reason: str = ""
    drained_since_ns: int | None = None
    wall_ns: int = 0
    leased_ns: int = 0
    switch_ns: int = 0
    idle_ns: int = 0
    idle_with_waiters_ns: int = 0
    sensors: Sensors = field(default_factory=Sensors)


class Devices(Struct, kw_only=True):
    """`epoch`, `rv`: as in Grants."""

    epoch: int
    rv: int
    devices: list[Device]


class Version(Struct, kw_only=True):
    """`api`: the prefix of all paths. `features`: for clients that support several versions of the daemon."""

    version: str
    api: str
    features: list[str]


class LedgerHealth(Struct, kw_only=True):
    """Whether the ledger can be written. `reason`, `since_ns`: why not, and since when; the node continues without it.
    `waiting`: rows that are kept meanwhile. `lost`: rows of ended grants that were given up. `set_aside`: rows that
    could not be used (table `quarantine`). `damaged`: files that were replaced, for the administrator to inspect."""

    healthy: bool
    reason: str
    since_ns: int | None
    waiting: int
    lost: int
    set_aside: int
    damaged: list[str]


class Node(Struct, kw_only=True):
    """Facts about this node, and where its run-time files are. `have`: the part of `capacity` on devices that work.
    `degraded`: some tenant has less than its guarantee because of devices that do not work. `loop_latency_max_ns`:
    longest turn of the daemon's loop in the last minute, for which every call had to wait. `enforce`, `walls`: see
    docs/security/walls.md. `placement`: of shares for which neither request nor tenant sets one.
    `host_pool`: see docs/guides/host-pool.md."""

    version: str
    epoch: int
    pid: int
    simulated: bool
    devices: int
    devices_working: int
    capacity: Quantity
    have: Quantity
    degraded: bool
    driver_version: str
    run_dir: str
    grants_dir: str
    state_dir: str
    cdi_dir: str
    socket: str
    lib_dir: str
    driver_dir: str
    sim_dir: str | None
    sim_pid: int | None
    started_ns: int
    loop_latency_max_ns: int
    ledger: LedgerHealth
    enforce: Enforce = "best"
    walls: list[NodeWall] = []
    placement: Placement = "spread"
    host_pool: HostPool


class Event(Struct, kw_only=True):
    """One line of the watch stream. `object`: the grant, device, tenant, node, eviction, finding, attachment or
    part of a gang as of this event; a bookmark has none. `name`: what happened, if `type` alone does not say it.
    QuotaDegraded: the tenant's `have` fell below its guarantee. EvictionRequested: the node wants a grant to end or
    to shrink, and does nothing to it before the deadline. MemoryExceeded: a process took more memory from the
    driver than its grant may have; its `notice` says more. MemoryRefused: calls of its programs were refused memory
    (`memory_refused` of its devices), at most once a second. MemoryMoved, MemoryReturned: its movable memory is in
    host memory, or is back. MemoryPressure: for too long, borrowers of a device's memory have kept each other from
    working. RemoteAttached, RemoteDetached: another machine may use a grant, or does so no more (`ending` says
    why). RemoteLost: the same, because nothing was heard of it any more, or the relay ended. LinkSlow: its link has
    been worse than the class of its check for ten seconds."""

    rv: int
    epoch: int
    kind: Literal["grant", "tenant", "device", "node", "eviction", "gang", "finding", "attachment", "bookmark"]
    type: Literal["added", "changed", "removed", "bookmark"]
    name: Name = ""
    object: Any = None


class ErrorBody(Struct, kw_only=True, omit_defaults=True):
    """`code`: a name for programs (gpushare/errors.py). `message`: one line for people, with what to do.
    `estimate_seconds`: with `making_room`, when the request should fit."""

    code: str
    message: str
    estimate_seconds: float | None = None


class Error(Struct, kw_only=True):
    """The body of every answer with a status of 400 or more."""

    error: ErrorBody
