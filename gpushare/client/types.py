"""What the client's verbs take and return, as types: answers are plain dicts of these.

Made from gpushare/api by scripts/pages. Change it there, then run make pages.
"""

from typing import Literal, NotRequired, TypedDict


class Version(TypedDict):
    """`api`: the prefix of all paths. `features`: for clients that support several versions of the daemon."""

    version: str
    api: str
    features: list[str]


class Quantity(TypedDict):
    """`time`: milli-GPU, `memory`: bytes."""

    time: int
    memory: int


class LedgerHealth(TypedDict):
    """Whether the ledger can be written. `reason`, `since_ns`: why not, and since when; the node continues without
    it. `waiting`: rows that are kept meanwhile. `lost`: rows of ended grants that were given up. `set_aside`:
    rows that could not be used (table `quarantine`). `damaged`: files that were replaced, for the administrator
    to inspect."""

    healthy: bool
    reason: str
    since_ns: int | None
    waiting: int
    lost: int
    set_aside: int
    damaged: list[str]


class NodeWall(TypedDict):
    """A wall of this node, as tried when the daemon started. `keeps`: what it protects; another wall may protect the
    same. `why`: why it does not hold. `lost`: what a workload can do without it."""

    name: Literal["cgroup", "devices", "memory", "freezer", "watch", "exclusive", "tracepoint"]
    keeps: Literal["processes", "devices", "memory", "time", "evaders", "others"]
    holds: bool
    why: str
    lost: str


class HostPool(TypedDict):
    """The node's memory that device memory of grants can move to, in bytes: the whole pool; what is free; what is
    reserved for grants and not used; what their processes have, with what they gave back a moment ago; and what
    of the free bytes cannot be given to anybody, since a process that gave it back keeps it pinned. `cgroup`:
    what it is charged to, empty where that is the daemon's own, and then `uncharged` says why. `segments`: how
    many pieces there are, of at most `segments_most`, since each takes a descriptor of the daemon."""

    size: int
    free: int
    reserved: int
    used: int
    kept: int
    cgroup: str
    uncharged: str
    segments: int
    segments_most: int


class Node(TypedDict):
    """Facts about this node, and where its run-time files are. `have`: the part of `capacity` on devices that work.
    `degraded`: some tenant has less than its guarantee because of devices that do not work.
    `loop_latency_max_ns`: longest turn of the daemon's loop in the last minute, for which every call had to wait.
    `enforce`, `walls`: see docs/security/walls.md. `placement`: of shares for which neither request nor tenant
    sets one. `host_pool`: see docs/guides/host-pool.md."""

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
    enforce: Literal["best", "required"]
    walls: list[NodeWall]
    placement: Literal["spread", "pack"]
    host_pool: HostPool


class Sensors(TypedDict):
    """What the driver measures of a device, at most a second ago; None: it does not say. `power_milliwatts`: what it
    draws, `power_limit_milliwatts`: the most it may. `utilization_percent`: how much of the driver's last sample
    period any program's kernel ran, as nvidia-smi shows it; `memory_utilization_percent`: how much of it its
    memory was read or written. `ecc_errors`: uncorrected errors of its memory since the driver was loaded.
    `slowed_by`: why its clocks are below what its work asks for: its power limit, its temperature, or something
    else in the hardware. A simulated device has clocks, a power limit and a utilization: it gets no warmer and
    draws no power."""

    temperature_celsius: int | None
    fan_percent: int | None
    power_milliwatts: int | None
    power_limit_milliwatts: int | None
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    memory_clock_mhz: int | None
    utilization_percent: int | None
    memory_utilization_percent: int | None
    ecc_errors: int | None
    slowed_by: list[Literal["power", "heat", "hardware"]]


class Device(TypedDict):
    """`health_reason`, `unhealthy_since_ns`: set if the device does not work. It stays in the list until the daemon
    restarts. `state`: whether it takes new grants; `drain_reason`, `drained_since_ns`: set if it does not.
    `links`: how near the other devices are, by id: `nvlink`, or NVML's topology level, `internal` to `system`.
    `sensors`: what the driver measured last.

    A request that may borrow (`borrow_memory`) can have, besides `allocatable`: `memory_asleep_bytes`, room that
    suspended grants have left and nobody has borrowed, and `memory_idle_bytes`, which grants that lend have and
    have done nothing with for long enough to be moved to host memory first (409 `making_room`)."""

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
    memory_idle_bytes: int
    memory_asleep_bytes: int
    attributes: dict[str, str]
    health: Literal["healthy", "unhealthy"]
    links: dict[str, str]
    health_reason: str
    unhealthy_since_ns: int | None
    state: Literal["ready", "draining", "drained"]
    drain_reason: str
    drained_since_ns: int | None
    wall_ns: int
    leased_ns: int
    switch_ns: int
    idle_ns: int
    idle_with_waiters_ns: int
    sensors: Sensors


class TenantNow(TypedDict):
    """How a tenant, with all tenants below it, stood over the last second, in milli of the node. `demand_milli`:
    what their working grants could use. `entitlement_milli`: what they should get. `borrowed_milli`: used beyond
    their guarantee; `lent_milli`: the part of the guarantee that others used. `waited_milli`: 1000 is one grant
    that waited for one device all the time. State `starved`: it waits, and has less than it is entitled to on the
    devices that its grants are on. `usage_milli_seconds`: what it has borrowed so far, decayed, if the node keeps
    that; `weight`: its weight as corrected by that usage."""

    state: Literal["idle", "in_quota", "borrowing", "starved", "degraded"]
    demand_milli: int
    entitlement_milli: int
    used_milli: int
    borrowed_milli: int
    lent_milli: int
    waited_milli: int
    usage_milli_seconds: int
    weight: float


class Tenant(TypedDict):
    """`guarantee`, `have`, `limit_time` and `now` are those of the tenant with all tenants below it, `allocated` and
    `grants` its own. `guarantee.memory` 0: no memory is held back for this tenant; it gets what fits. `have`:
    what remains of the guarantee on the devices that work. `degraded`: `have` is less than the guarantee.
    `placement`: the one that is in force for its shares. `host_memory`: as in TenantPolicy; None: no limit.
    `idle_after_seconds`: the one that is in force for its grants; 0: none counts as idle."""

    name: str
    parent: str | None
    guarantee: Quantity
    have: Quantity
    degraded: bool
    limit_time: int
    weight: int
    tier: int
    users: list[int | str]
    groups: list[int | str]
    source: str
    allocated: Quantity
    grants: int
    now: TenantNow
    placement: Literal["spread", "pack"]
    host_memory: int | None
    idle_after_seconds: float


class Gang(TypedDict):
    """The job that the grant is part of. `id`: the job's; grants with the same id are never on the same device.
    `size`: how many devices the job has in total, including those on other nodes (default: those of this grant).
    `leases`: given on all devices of this grant at the same instant (`together`), or on each separately
    (`independent`)."""

    id: NotRequired[str | None]
    size: NotRequired[int | None]
    leases: NotRequired[Literal["together", "independent"]]


class PartOf(TypedDict):
    """The gang that a grant was prepared for, and its part on this node (gpushare.api.gangs)."""

    gang: str
    part: str


class InTurn(TypedDict):
    """A grant of a set on one device, some of which never run at once, such as those of a pod's init containers and
    of its other containers. `set`: its name. `parts`: the numbers of the device's parts that are this grant's,
    all worth the same. A part that several grants of the set have is taken once, and belongs to the one that ran
    last; no workload starts in a grant while another that has one of its parts is in use."""

    set: str
    parts: list[int]


class MemoryRefused(TypedDict):
    """A call that was refused device memory. `asked_bytes`: what it asked for; `left_bytes`: what its grant had left
    of `limit_bytes` then. `why`: `limit`: that was too little; `device`: the driver's device was full, although
    the grant had so much left; `away`: the grant's room on the device was others' and not free again in time.
    `at_ns`: wall time at which the daemon heard of it, up to a second later."""

    at_ns: int
    asked_bytes: int
    left_bytes: int
    limit_bytes: int
    why: Literal["limit", "device", "away"]


class GrantDevice(TypedDict):
    """One device of a grant. `guaranteed_milli`: what was asked for and granted: the part of `time_milli` that its
    tenant's guarantee covers now; 0 on a device that does not work. `extra_milli`: what comes on top while it is
    served: its part of what no grant has asked for of its tenant's guarantee. `memory_borrowed_bytes`: the part
    of the limit that it has on loan, of memory that is guaranteed to others. `memory_asked_bytes`: what was asked
    for, of which the limit is the whole pages of 2 MiB. `served_milli`, `served_limit_milli`: what it is served
    with now whenever it wants it, `guaranteed_milli` and `extra_milli` together; and the most that it gets,
    including its part of its tenant's limit. `entitled_milli`: what it should get now: while it works, what it is
    served with and its part of what others leave. `used_milli`: device time that it was charged in the last
    second; `borrowed_milli`: the part of that beyond what it is served with; `lent_milli`: the part of what it is
    served with that it left and others used; `waited_milli`: how much of the second it waited without a lease;
    `busy_milli`: for how much of it the device worked for the grant, less than `used_milli` where a lease was
    held and little was done with it. `share_got_milli`: its part of the work that the device did in that second.
    `waits`, `reclaims`: numbers of ended waits, and of leases taken from it in mid-work whose work has ended;
    `reclaim_ns`: time until that work was done. Counts of leases and revokes are of this run of the daemon, and
    so are histograms: entry i counts those shorter than 2^i us and in no earlier entry, the last one all longer.
    `memory_uncharged_bytes`: the part of the memory it holds that the driver counts beyond what its processes
    were charged. `memory_hosted_bytes`: the part of the memory it holds that is in host memory;
    `memory_clean_bytes`: that is on the device with a current copy in host memory; `memory_fixed_bytes`: that
    cannot be moved, and `memory_fixed` by what it is: `small` (blocks of up to 1 MiB), `direct` (wide rows, calls
    with 32-bit addresses), `pools` (and graphs), `arrays`, `managed`, `mapped` (by the program itself),
    `exported` (to other processes or drivers), `synced` (prepared for a network card), `context` (and code).
    `memory_refusals`: number of calls that were refused device memory, as its processes count them;
    `memory_refused`: the last of them. `marked`: number of processes that wrote impossible values (events of kind
    `lie`): while there is one, `busy_ns` grows with the leases and `memory_bytes` is the limit."""

    id: str
    index: int
    memory_limit_bytes: int
    time_milli: int
    time_limit_milli: int
    guaranteed_milli: int
    extra_milli: int
    memory_borrowed_bytes: int
    memory_asked_bytes: int
    served_milli: int
    served_limit_milli: int
    memory_bytes: int
    memory_uncharged_bytes: int
    memory_hosted_bytes: int
    memory_clean_bytes: int
    memory_fixed_bytes: int
    memory_fixed: dict[str, int]
    memory_peak_bytes: int
    memory_refusals: int
    memory_refused: MemoryRefused | None
    busy_ns: int
    leased_ns: int
    borrowed_ns: int
    wait_ns: int
    leases: int
    waits: int
    wait_max_ns: int
    wait_histogram: list[int]
    reclaims: int
    reclaim_ns: int
    reclaim_max_ns: int
    reclaim_histogram: list[int]
    revokes: int
    wake_to_lease_max_ns: int
    share_got_milli: int
    entitled_milli: int
    used_milli: int
    busy_milli: int
    borrowed_milli: int
    lent_milli: int
    waited_milli: int
    marked: int
    waiting: bool
    held: bool
    health: Literal["healthy", "unhealthy"]


class Pod(TypedDict):
    """A Kubernetes pod, and which of its containers, as its engine names them."""

    namespace: str
    name: str
    container: str
    uid: str


class Workload(TypedDict):
    """`program`: command line of the grant's first process, printable and at most 200 characters, as it was when
    somebody last asked; empty: nothing has run, it has ended since, it cannot be read, or nobody had asked before
    (ask again). `container`: the engine's id of the container, empty: a plain process, or not known. `pod`: set
    if the container is one of a pod. All of it is said by the workload itself or by its engine: a label, and no
    proof of anything."""

    program: str
    container: str
    pod: Pod | None


class Wall(TypedDict):
    """What contains a running workload. `cgroup`: its processes are known and are ended together. `devices`: it can
    open the nodes of the devices that it was granted, and no others. `memory`: the driver gives its processes no
    more than it was granted. `freezer`: it can be stopped without being ended. `watch`: its use of a device
    without joining is found from the driver's own numbers, and stopped. `exclusive`: users without a grant cannot
    open the devices' nodes, if the configuration asks for that. `tracepoint`: the kernel sees its requests to the
    driver. `why`: why the wall does not hold."""

    name: Literal["cgroup", "devices", "memory", "freezer", "watch", "exclusive", "tracepoint"]
    holds: bool
    why: str


class Eviction(TypedDict):
    """A grant is asked to give back memory that it has on loan: to end, or to shrink. `bytes`: what it has on loan.
    `rung`: how it is asked now; `max_rung`: the harshest rung that it allows. `deadline_ns`: wall time at which
    that rung ends; after `evict` the grant is ended if it allows that and the memory is still needed, and
    otherwise stays as it is. `outcome`: `asked` until the eviction has ended; `refused`: it gave nothing back and
    may not be ended. `ms`: how long the eviction took."""

    grant: str
    tenant: str
    reason: str
    deadline_ns: int
    bytes: int
    for_tenant: str
    rung: Literal["throttle", "demote", "suspend", "evict", "kill"]
    max_rung: Literal["throttle", "demote", "suspend", "evict", "kill"]
    started_ns: int
    outcome: Literal["asked", "released", "not needed", "ended", "refused"]
    ms: float | None


class Residency(TypedDict):
    """`where`: on its device, in host memory, or on its way there or back. `hold`: it stays away until somebody
    resumes it, whatever its programs call. `wanted`: it is to come back; `waits`: what for, in words. `since_ns`:
    wall time at which it came to be there; 0: it always was. `why`: why it did not leave when that was last asked
    for; empty: it did. `said_idle`: its programs have said that they are idle, and not since that they are back.
    `receipt`: of its last move, in words: who had its room, or how memory that it had on loan was taken back;
    empty: neither."""

    where: Literal["resident", "suspending", "suspended", "resuming"]
    hold: bool
    wanted: bool
    waits: str
    why: str
    since_ns: int
    said_idle: bool
    receipt: str


class Link(TypedDict):
    """The network path of an attachment, as the node's relay measures it every second. `rtt_us`: the kernel's
    smoothed round trip time; `rate_bps`: what went both ways in the last second; 0: nothing known yet. `checked`:
    its class at the last link check, empty if there was none."""

    kind: Literal["tls", "plain"]
    rtt_us: int
    rate_bps: int
    checked: Literal["", "good", "fair", "poor", "refused"]


class Attachment(TypedDict):
    """One client machine's use of a grant. `origin`: the client's host, as it names itself; `address`: where its
    connections come from, empty before the first. `uid`: who attached it. `connections`: now, without that for
    control. `bytes_in`: from the client; `bytes_out`: to it. `ending`: empty while it lives; `detached`: the
    client ended it; `lost`: nothing was heard of it for too long; `expired`: it was not used in time; `server`:
    the carrier's server ended; `released`: the grant did; `relay`: the relay did."""

    id: str
    grant: str
    carrier: str
    origin: str
    address: str
    uid: int
    link: Link
    created_ns: int
    ended_ns: int | None
    ending: Literal["", "detached", "lost", "expired", "server", "released", "relay"]
    connections: int
    bytes_in: int
    bytes_out: int


_Grant = TypedDict("_Grant", {"class": Literal["interactive", "inference", "training"]})


class Grant(_Grant):
    """`part_of`: set if it was prepared for a gang across nodes; while its phase is `prepared` it cannot be used.
    `notice`: what the owner needs to know now, such as a device that does not work; usually empty. `walls`: empty
    before anything runs in it. `max_rung`, `grace_seconds`: how memory that it has on loan may be taken back.
    `eviction`: set while that memory is wanted back. `residency`: where its memory is, if it may be moved; its
    phase is `suspended` while that is in host memory. `idle_after_seconds`: the one that is in force for it, if
    it may be moved; 0: it never counts as idle. `uid`: its owner's. `workload`: what runs in it. `attachments`:
    the machines whose programs use it now (docs/guides/remote). `sync_calls`: synchronising calls of its programs
    so far: those that return when work is done, or return something that only the driver knows; `host_bytes_in`,
    `host_bytes_out`: bytes that they copied to its devices and from them; `running_ns`: how long they did
    something, to about a second. A link to a device elsewhere makes programs slower by these."""

    id: str
    key: str | None
    tenant: str
    managed: Literal["charge", "refuse"]
    idle_memory: Literal["keep", "lend"]
    idle_after_seconds: float | None
    gang: Gang | None
    part_of: PartOf | None
    in_turn: InTurn | None
    phase: Literal["prepared", "reserved", "bound", "active", "suspended", "released", "expired", "failed"]
    devices: list[GrantDevice]
    borrow: bool
    cdi: list[str]
    dir: str
    pid: int | None
    kind: Literal["process", "container"] | None
    uid: int
    processes: list[int]
    workload: Workload
    keep: bool
    created_ns: int
    expires_ns: int | None
    ended_ns: int | None
    reason: str
    notice: str
    walls: list[Wall]
    priority: int
    max_rung: Literal["throttle", "demote", "suspend", "evict", "kill"]
    grace_seconds: float
    eviction: Eviction | None
    residency: Residency | None
    attachments: list[Attachment]
    sync_calls: int
    host_bytes_in: int
    host_bytes_out: int
    running_ns: int
    rv: int


class DebugLease(TypedDict):
    """One device's lease as the processes of the grant read it. `bound_ns`: how much estimated device time may be in
    flight. `residency`: where its memory is to be, since `residency_epoch`; `room`: without a daemon it may come
    back."""

    ordinal: int
    epoch: int
    held: bool
    contended: bool
    bound_ns: int
    residency: Literal["resident", "prepared", "hosted"]
    residency_epoch: int
    room: bool


class DebugDevice(TypedDict):
    """What one process reports about itself on one device; none of it is trusted.

    `ordinal`: the device's in the grant. `drained_epoch`: epoch of the last lease for which it reported that its
    work was done. `dependent`: it has been let past the bound on work in flight. `hosted_bytes`, `clean_bytes`:
    of its `movable_bytes`, in host memory, and on the device with a current copy there. `residency_epoch`: the
    last at which it carried out where its memory is to be, or could not; `move`: how (enum gs_move).
    `wants_memory`: a call waits for memory that is in host memory."""

    ordinal: int
    memory_bytes: int
    memory_pending_bytes: int
    busy_ns: int
    launches: int
    wait_ns: int
    waiting: int
    inflight: int
    queue_ns: int
    drained_epoch: int
    dependent: bool
    movable_bytes: int
    hosted_bytes: int
    clean_bytes: int
    residency_epoch: int
    move: int
    wants_memory: bool


class DebugEvent(TypedDict):
    """An event that a process recorded. `at_ns`: wall time. `device`: its ordinal in the grant, or None. `text`: as
    the process wrote it."""

    at_ns: int
    area: str
    device: int | None
    text: str


class DebugProcess(TypedDict):
    """What one process of the grant reports about itself; none of it is trusted."""

    pid: int
    slot: int
    devices: list[DebugDevice]
    events: list[DebugEvent]


class GrantDebug(TypedDict):
    """What the pages of a grant contain. `daemon_epoch`: how many daemons have served the grant."""

    grant: str
    daemon_epoch: int
    leases: list[DebugLease]
    processes: list[DebugProcess]


class GrantRequest(TypedDict):
    """`memory`: bytes, `8GiB` or `35%` of a device. `time`, `time_limit`: milli, `30%` or `0.3`; with a `time` of 0
    it only borrows. `device`: id, index or `any`; for several `devices` as many, separated by commas. `managed`:
    whether managed memory is charged like device memory or refused. `gang`: also as text, `ID[:SIZE[:LEASES]]`.
    `idle_memory`: whether its memory may be moved to host memory while the program does not use it
    (docs/guides/idle-memory.md); `idle_after_seconds`: after how long without work it counts as not used; with
    `lend` only; left out: as its tenant or the node sets it.

    `borrow_memory`: how much of the memory, per device, may be memory that is guaranteed to others and not used
    by them; `true`: all of it. The grant is asked to give it back within `grace_seconds` (default: the node's),
    also by `eviction_signal` if one is named; with a `max_rung` of `kill` it is ended after that. `priority`: of
    a tenant's grants, the lower one is asked first.

    `selector`: which devices are suitable (gpushare/policy/grants/selector.py). `placement`: of a single share,
    among the devices where it fits: the one with most free (`spread`), or the one that it leaves least of
    (`pack`); left out: as its tenant or the node sets it.

    `in_turn`: which parts of a device it shares with grants that never run at the same time; for root only, of
    one device, and without memory on loan.

    `keep`: the grant stays until it is released, whatever happens to its workloads: any number of containers, or
    of processes of one user, run in it at once or in turn. `ttl_seconds`: how long it may stay without a workload
    (default: 120, and unlimited with `keep`). `uid`: the user who owns the grant, if root asks for it."""

    memory: int | str
    time: int | str
    time_limit: NotRequired[int | str | None]
    tenant: NotRequired[str | None]
    class_: NotRequired[Literal["interactive", "inference", "training"] | None]
    devices: NotRequired[int | None]
    device: NotRequired[int | str | None]
    managed: NotRequired[Literal["charge", "refuse"] | None]
    idle_memory: NotRequired[Literal["keep", "lend"] | None]
    idle_after_seconds: NotRequired[float | None]
    gang: NotRequired[Gang | str | None]
    key: NotRequired[str | None]
    ttl_seconds: NotRequired[int | None]
    borrow_memory: NotRequired[bool | int | str | None]
    max_rung: NotRequired[Literal["throttle", "demote", "suspend", "evict", "kill"] | None]
    grace_seconds: NotRequired[float | None]
    priority: NotRequired[int | None]
    eviction_signal: NotRequired[Literal["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"] | None]
    keep: NotRequired[bool | None]
    uid: NotRequired[int | None]
    selector: NotRequired[str | None]
    placement: NotRequired[Literal["spread", "pack"] | None]
    in_turn: NotRequired[InTurn | None]


class PlanDevice(TypedDict):
    """`guaranteed_milli`: the part of `time_milli` that comes out of the tenant's guarantee; the rest is borrowed.
    `memory_asked_bytes`: as in Grant. `rule`, `why`: the rule that chose this device, and a sentence about it, as
    in the decisions of `GET /v1/explain`; empty for a grant that is there already."""

    id: str
    index: int
    memory_bytes: int
    time_milli: int
    guaranteed_milli: int
    memory_asked_bytes: int
    rule: str
    why: str


class ExpectedWait(TypedDict):
    """In ms: half of all waits were no longer than `p50`, 99 of 100 no longer than `p99`. `waits`: the number of
    these waits, which are of this run of the daemon and of grants of the same `class` on the same devices."""

    p50: float
    p99: float
    waits: int


class Victim(TypedDict):
    """A grant that would lose something that it borrows now. `time_milli`: of the device's time, taken by
    `throttle`: its lease ends at the end of a kernel, and no work is lost. `memory_bytes`: taken by a harsher
    rung. `rung`: the mildest one that is tried first; `max_rung`: the harshest that may follow. `rule`: the
    request is guaranteed it (`guarantee`), is of a higher `tier`, or gets its part of what is lent by `weight`."""

    grant: str
    tenant: str
    device: str
    index: int
    rung: Literal["throttle", "demote", "suspend", "evict", "kill", "other"]
    max_rung: Literal["throttle", "demote", "suspend", "evict", "kill", "other"]
    rule: Literal["guarantee", "tier", "weight", "other"]
    time_milli: int
    memory_bytes: int


class Moved(TypedDict):
    """A grant that does nothing, or whose turn is over, and whose memory would be moved to host memory.
    `memory_bytes`: how much of it."""

    grant: str
    tenant: str
    memory_bytes: int


_Plan = TypedDict("_Plan", {"class": Literal["guaranteed", "borrow"] | None})


class Plan(_Plan):
    """`class`: `borrow` if a part of its time is not guaranteed, null if it does not fit. `wait_ms`: null if no
    grant has waited yet. `victims`: those that would lose while it uses all the time it asks for, judged by what
    each grant uses and wants now; if it does not fit, those that would be asked for memory that they have on
    loan, so that it fits later. `moved`: those that would be moved to host memory now, so that it fits after
    about `making_room_seconds`. `reasons`: if it does not fit, what `POST /v1/grants` would answer. `grant`: the
    living grant with this key, which the request would be answered with."""

    fits: bool
    devices: list[PlanDevice]
    wait_ms: ExpectedWait | None
    victims: list[Victim]
    moved: list[Moved]
    making_room_seconds: float | None
    reasons: list[str]
    grant: str | None


Kind = Literal["process", "container"]


class Mount(TypedDict):
    """A bind mount of a container: `source` on the host, `destination` in it, `options` as in mount(8)."""

    source: str
    destination: str
    options: list[str]


class Binding(TypedDict):
    """What the workload gets: the environment of a process; for a container also its mounts. `unset`: variables that
    a process must not inherit, since they number devices as outside the share."""

    grant: str
    dir: str
    env: dict[str, str]
    mounts: list[Mount]
    unset: list[str]


class GrantChange(TypedDict):
    """The fields to change; those left out stay as they are."""

    memory: NotRequired[int | str | None]
    time: NotRequired[int | str | None]
    time_limit: NotRequired[int | str | None]


class AttachRequest(TypedDict):
    """`carrier`: one of those of GET /v1/remote; left out: the node's only one. `version`: that of the client's
    side, which has to be the node's. `link`: `plain` for networks that encrypt below. `host_memory`: how much of
    the node's memory the carrier's server may use, with what it copies through; bytes or `4GiB`; left out: as the
    node sets it. `origin`: the client's host."""

    carrier: NotRequired[str | None]
    version: NotRequired[str | None]
    link: NotRequired[Literal["tls", "plain"] | None]
    host_memory: NotRequired[int | str | None]
    origin: NotRequired[str | None]


class RelayAddress(TypedDict):
    """Where the relay of a node is. `host`: empty: where the node is reached by ssh. `cert_sha256`: of its
    certificate (DER), 64 hexadecimal digits."""

    host: str
    port: int
    cert_sha256: str


class Carrier(TypedDict):
    """A carrier that the node can serve. `version`: as its `version` command says; empty: it has none. `trouble`:
    why it cannot be served now, otherwise empty."""

    name: str
    version: str
    trouble: str


class Attached(TypedDict):
    """The answer to an attachment. `ticket`: its secret, 64 hexadecimal digits: whoever has it uses the grant. It is
    told once, and stands in no other answer. `expires_ns`: wall time until which it has to be used first."""

    id: str
    grant: str
    ticket: str
    relay: RelayAddress
    link: Literal["tls", "plain"]
    carrier: Carrier
    expires_ns: int


class Remote(TypedDict):
    """Whether programs of other machines may use this node. `relay`: null: they may not, for `reason`.
    `attachments`: those that live, and the latest that have ended. `attachments_max`: how many may live; 0:
    remote grants are off."""

    relay: RelayAddress | None
    reason: str
    carriers: list[Carrier]
    attachments: list[Attachment]
    attachments_max: int


class GangPart(TypedDict):
    """A gang's part on this node. `phase`: it stays `committed` after its grants have ended. `reason`: why it was
    aborted or expired. `grant_ids`: all its grants, in the order of the request; `grants`: those that have not
    ended. `expires_ns`: null unless it is prepared. `ttl_seconds`: 0 if it was aborted before it was prepared."""

    gang: str
    part: str
    uid: int
    phase: Literal["prepared", "committed", "aborted", "expired"]
    reason: str
    grant_ids: list[str]
    grants: list[Grant]
    ttl_seconds: int
    expires_ns: int | None


class TenantPolicy(TypedDict):
    """A table of tenants.toml, and the body of PUT. `time`: milli of the node (1000 per device) or `600%`. `memory`:
    bytes or a size, per node. `host_memory`: the most of the node's own memory that device memory of its grants
    may move to, and of those of the tenants below it; left out: what the host pool has.

    `parent`: the tenant that it is part of; if left out, the one whose name is the beginning of its own (`ml` for
    `ml/a`), if there is one. `users`, `groups`: names or numbers of the users and groups that may name this
    tenant, in addition to root. `placement`: of its shares and of those of the tenants below it, as in
    GrantRequest, where neither their requests nor these tenants say one; left out: as the node.
    `idle_after_seconds`: the same for how long their programs have to do nothing before memory that they lend
    counts as idle. `source`: who set it, `file` or `adapter:NAME`; nobody else may change it."""

    parent: NotRequired[str | None]
    time: NotRequired[int | str]
    memory: NotRequired[int | str]
    time_limit: NotRequired[int | str | None]
    weight: NotRequired[int]
    tier: NotRequired[int]
    users: NotRequired[list[int | str]]
    groups: NotRequired[list[int | str]]
    placement: NotRequired[Literal["spread", "pack"] | None]
    host_memory: NotRequired[int | str | None]
    idle_after_seconds: NotRequired[float | None]
    source: NotRequired[str]


class TenantPatch(TypedDict):
    """The body of PATCH, a JSON merge patch (RFC 7396) of TenantPolicy: what it names is changed, null makes that as
    if it had never been set, and all else stays. `source`: who asks; of a new tenant, who has set it."""

    parent: NotRequired[str | None]
    time: NotRequired[int | str | None]
    memory: NotRequired[int | str | None]
    time_limit: NotRequired[int | str | None]
    weight: NotRequired[int | None]
    tier: NotRequired[int | None]
    users: NotRequired[list[int | str] | None]
    groups: NotRequired[list[int | str] | None]
    placement: NotRequired[Literal["spread", "pack"] | None]
    host_memory: NotRequired[int | str | None]
    idle_after_seconds: NotRequired[float | None]
    source: NotRequired[str]


class Accounts(TypedDict):
    """Names of users and of groups."""

    users: list[str]
    groups: list[str]


class TenantChange(TypedDict):
    """The answer to PATCH. `before`: the policy that was in force; null: there was no such entry. `after`: the one
    that is in force now. Both have time in milli and memory in bytes. `unknown`: names in the patch that the
    node's user database does not have, so that they match nobody; null: it did not answer in time."""

    tenant: Tenant
    after: TenantPolicy
    before: TenantPolicy | None
    unknown: Accounts | None


By = Literal["tenant", "grant", "device", "hour", "period", "charge", "holder", "origin"]


class UsageRow(TypedDict):
    """`begins_ns`: start of the hour, of the period or, by charge, of the day. `guaranteed_ns`: device time used
    within what its grants asked for and were granted; `extra_ns`: beyond that, of what no grant has asked for of
    its tenant's guarantee; `borrowed_ns`, `scavenged_ns`: of what others left idle, and of that as a tenant of
    weight 0. The sum of the four is all it used. `lent_ns`: time of its guarantee that others used. `waited_ns`:
    time that it waited without a lease; of that, `waited_owed_ns`: while it was owed guaranteed time,
    `waited_limit_ns`: while it had used all that its limit allows; during the rest it had had its guarantee.
    `busy_ns`: metered work. `memory_byte_s`: bytes on the device times seconds; `hosted_byte_s`: bytes in host
    memory. `moved_out_bytes`, `moved_in_bytes`: copied to host memory and back. `stalled_ns`: for how long calls
    of its programs waited for memory that was in host memory, in `stalls` waits that are over. By holder the rows
    are of that alone: `holder` and `holder_tenant` are the grant whose memory stood in the way, and its tenant;
    both are empty where it was only the copy, and the tenant `(held)` stands for a person who had it stay away.
    By origin: `origin` is the client machine, as it names itself, whose programs used the device over a carrier;
    several where they used a grant at once; empty: this node's own programs, and what moving memory cost.
    `reclaims`: how often a lease was taken in mid-work. `launches`: kernels, graphs and other submitted work."""

    tenant: str
    grant: str
    device: str
    holder: str
    holder_tenant: str
    origin: str
    begins_ns: int
    guaranteed_ns: int
    extra_ns: int
    borrowed_ns: int
    scavenged_ns: int
    lent_ns: int
    waited_ns: int
    waited_owed_ns: int
    waited_limit_ns: int
    busy_ns: int
    memory_byte_s: int
    hosted_byte_s: int
    moved_out_bytes: int
    moved_in_bytes: int
    stalled_ns: int
    stalls: int
    waits: int
    reclaims: int
    launches: int


class DeviceTime(TypedDict):
    """What devices were used for: the parts add up to `wall_ns`, within 0.1 %. `missed_ns`: time without a daemon to
    record it. `idle_with_waiters_ns`: the part of the idle time during which grants waited."""

    wall_ns: int
    used_ns: int
    idle_ns: int
    switching_ns: int
    missed_ns: int
    idle_with_waiters_ns: int


class UsagePeriod(TypedDict):
    """What devices were used for in the period that begins at `begins_ns`."""

    begins_ns: int
    devices: DeviceTime


class Usage(TypedDict):
    """What the ledger has between these moments. Its rows of a minute count where they end, those of an hour where
    they begin, those of a day (UTC) at noon. `periods`: by period, those in which anything is recorded, in order."""

    since_ns: int
    until_ns: int
    by: Literal["tenant", "grant", "device", "hour", "period", "charge", "holder", "origin"]
    rows: list[UsageRow]
    devices: DeviceTime
    periods: list[UsagePeriod]


Unit = Literal["hour", "minute"]


Each = Literal["node", "device"]


class UsageSlot(TypedDict):
    """The usage of an hour or a minute; where the ledger is rolled up, of a longer time: after three hours an hour,
    later a day. `length_ns`: how much of it was recorded. `capacity_ns`: of all devices together. `used_ns`,
    `waited_ns`: by tenant, without the tenants below it. `device`: the only device that all these numbers are of;
    empty: all devices."""

    begins_ns: int
    length_ns: int
    capacity_ns: int
    used_ns: dict[str, int]
    waited_ns: dict[str, int]
    device: str


class UsageSlots(TypedDict):
    """What the ledger has between these moments."""

    since_ns: int
    until_ns: int
    slots: list[UsageSlot]


class Finding(TypedDict):
    """`seq`: counts findings in a run of the daemon. `evader`: a process in the cgroup of `grant` uses the device
    without having joined, so nothing meters or limits it. `outside`: a process of no grant uses it. `excess`: by
    the driver's count, the processes of a grant hold more memory than it may; `pid` is the one that holds most.
    `kept-memory`: the same of a grant whose memory is said to be in host memory: some of it is still on the
    device. `overuse`: by the driver's count, they use the device for longer than they are charged and than is due
    to them; `pid` is the one that used it most when this was found. `unowned`: `memory_bytes` of the device are
    in use that no process has: shared memory that outlived its owner; `pid` is 0.

    `command`: its command line, at most 200 printable characters; empty: unknown. `memory_bytes`, `busy_ns`: the
    driver's counts when it was found; null: the driver does not report it. `act`: what is done to the process.
    `told`: it is only reported. `frozen`: the grant's cgroup is frozen, with all processes in it. `stopped`: the
    process alone is stopped, by a signal. `held`: the grant's cgroups are frozen as often and as long as it takes
    to keep it to its share. `stop_ns`: time from the first sight of it until none of its threads ran any more;
    null: it runs. `note`: why no more than that is done; empty: nothing is in the way.

    `outcome`: how the finding ended, at `ended_ns`: the process has joined its grant (`joined`), no longer uses
    the device (`left`) or has ended (`ended`), or its grant has ended (`released`) or has kept to its share for a
    while (`within`). Empty and null while it lasts."""

    seq: int
    kind: Literal["evader", "outside", "excess", "kept-memory", "overuse", "unowned"]
    at_ns: int
    device: int
    device_id: str
    grant: str | None
    tenant: str | None
    pid: int
    command: str
    memory_bytes: int | None
    busy_ns: int
    act: Literal["told", "frozen", "stopped", "killed", "held"]
    note: str
    stop_ns: int | None
    outcome: Literal["", "joined", "left", "ended", "released", "within"]
    ended_ns: int | None


What = Literal[
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


class GrantEvent(TypedDict):
    """One line of the watch stream. `object`: the grant, device, tenant, node, eviction, finding, attachment or part
    of a gang as of this event; a bookmark has none. `name`: what happened, if `type` alone does not say it.
    QuotaDegraded: the tenant's `have` fell below its guarantee. EvictionRequested: the node wants a grant to end
    or to shrink, and does nothing to it before the deadline. MemoryExceeded: a process took more memory from the
    driver than its grant may have; its `notice` says more. MemoryRefused: calls of its programs were refused
    memory (`memory_refused` of its devices), at most once a second. MemoryMoved, MemoryReturned: its movable
    memory is in host memory, or is back. MemoryPressure: for too long, borrowers of a device's memory have kept
    each other from working. RemoteAttached, RemoteDetached: another machine may use a grant, or does so no more
    (`ending` says why). RemoteLost: the same, because nothing was heard of it any more, or the relay ended.
    LinkSlow: its link has been worse than the class of its check for ten seconds."""

    rv: int
    epoch: int
    kind: Literal["grant"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Grant


class DeviceEvent(TypedDict):
    """An event of kind `device`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["device"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Device


class TenantEvent(TypedDict):
    """An event of kind `tenant`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["tenant"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Tenant


class NodeEvent(TypedDict):
    """An event of kind `node`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["node"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Node


class EvictionEvent(TypedDict):
    """An event of kind `eviction`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["eviction"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Eviction


class GangEvent(TypedDict):
    """An event of kind `gang`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["gang"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: GangPart


class FindingEvent(TypedDict):
    """An event of kind `finding`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["finding"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Finding


class AttachmentEvent(TypedDict):
    """An event of kind `attachment`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["attachment"]
    type: Literal["added", "changed", "removed"]
    name: What
    object: Attachment


class BookmarkEvent(TypedDict):
    """An event of kind `bookmark`: see GrantEvent."""

    rv: int
    epoch: int
    kind: Literal["bookmark"]
    type: Literal["bookmark"]
    name: What
    object: None


class Listed(TypedDict):
    """All grants, as an event of `follow`."""

    rv: int
    epoch: int
    kind: Literal["grants"]
    type: Literal["listed"]
    name: str
    object: list[Grant]


class Away(TypedDict):
    """No daemon answers, as an event of `follow`; `object` has the reason."""

    rv: None
    epoch: None
    kind: Literal["node"]
    type: Literal["away"]
    name: str
    object: dict[str, str]


Event = (
    GrantEvent
    | DeviceEvent
    | TenantEvent
    | NodeEvent
    | EvictionEvent
    | GangEvent
    | FindingEvent
    | AttachmentEvent
    | BookmarkEvent
)
FollowEvent = (
    GrantEvent
    | DeviceEvent
    | TenantEvent
    | NodeEvent
    | EvictionEvent
    | GangEvent
    | FindingEvent
    | AttachmentEvent
    | Listed
    | Away
)
