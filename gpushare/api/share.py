"""Wire types of what a grant has of its devices, and on which terms: in turn with other grants, or on loan. Units are
those of gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpushare.text.units import IDLE_SECONDS_MAX, IDLE_SECONDS_MIN

Health = Literal["healthy", "unhealthy"]


RefusedWhy = Literal["limit", "device", "away"]


class MemoryRefused(Struct, frozen=True, kw_only=True):
    """A call that was refused device memory. `asked_bytes`: what it asked for; `left_bytes`: what its grant had left of
    `limit_bytes` then. `why`: `limit`: that was too little; `device`: the driver's device was full, although the grant
    had so much left; `away`: the grant's room on the device was others' and not free again in time. `at_ns`: wall time
    at which the daemon heard of it, up to a second later."""

    at_ns: int
    asked_bytes: int
    left_bytes: int
    limit_bytes: int
    why: RefusedWhy


class GrantDevice(Struct, kw_only=True):
    """One device of a grant. `guaranteed_milli`: what was asked for and granted: the part of `time_milli` that its
    tenant's guarantee covers now; 0 on a device that does not work. `extra_milli`: what comes on top while it is
    served: its part of what no grant has asked for of its tenant's guarantee. `memory_borrowed_bytes`: the part of the
    limit that it has on loan, of memory that is guaranteed to others. `memory_asked_bytes`: what was asked for, of
    which the limit is the whole pages of 2 MiB. `served_milli`, `served_limit_milli`: what it is served with now
    whenever it wants it, `guaranteed_milli` and `extra_milli` together; and the most that it gets, including its part
    of its tenant's limit. `entitled_milli`: what it should get now: while it works, what it is served with and its part
    of what others leave. `used_milli`: device time that it was charged in the last second; `borrowed_milli`: the part
    of that beyond what it is served with; `lent_milli`: the part of what it is served with that it left and others
    used; `waited_milli`: how much of the second it waited without a lease; `busy_milli`: for how much of it the device
    worked for the grant, less than `used_milli` where a lease was held and little was done with it. `share_got_milli`:
    its part of the work that the device did in that second. `waits`, `reclaims`: numbers of ended waits, and of leases
    taken from it in mid-work whose work has ended; `reclaim_ns`: time until that work was done. Counts of leases and
    revokes are of this run of the daemon, and so are histograms: entry i counts those shorter than 2^i us and in no
    earlier entry, the last one all longer. `memory_uncharged_bytes`: the part of the memory it holds that the driver
    counts beyond what its processes were charged. `memory_hosted_bytes`: the part of the memory it holds that is in
    host memory; `memory_clean_bytes`: that is on the device with a current copy in host memory; `memory_fixed_bytes`:
    that cannot be moved, and `memory_fixed` by what it is: `small` (blocks of up to 1 MiB), `direct` (wide rows, calls
    with 32-bit addresses), `pools` (and graphs), `arrays`, `managed`, `mapped` (by the program itself), `exported` (to
    other processes or drivers), `synced` (prepared for a network card), `context` (and code). `memory_refusals`: number
    of calls that were refused device memory, as its processes count them; `memory_refused`: the last of them. `marked`:
    number of processes that wrote impossible values (events of kind `lie`): while there is one, `busy_ns` grows with
    the leases and `memory_bytes` is the limit."""

    id: str
    index: int
    memory_limit_bytes: int
    time_milli: int
    time_limit_milli: int
    guaranteed_milli: int
    extra_milli: int = 0
    memory_borrowed_bytes: int = 0
    memory_asked_bytes: int = 0
    served_milli: int = 0
    served_limit_milli: int = 0
    memory_bytes: int = 0
    memory_uncharged_bytes: int = 0
    memory_hosted_bytes: int = 0
    memory_clean_bytes: int = 0
    memory_fixed_bytes: int = 0
    memory_fixed: dict[str, int] = {}
    memory_peak_bytes: int = 0
    memory_refusals: int = 0
    memory_refused: MemoryRefused | None = None
    busy_ns: int = 0
    leased_ns: int = 0
    borrowed_ns: int = 0
    wait_ns: int = 0
    leases: int = 0
    waits: int = 0
    wait_max_ns: int = 0
    wait_histogram: list[int] = []
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0
    reclaim_histogram: list[int] = []
    revokes: int = 0
    wake_to_lease_max_ns: int = 0
    share_got_milli: int = 0
    entitled_milli: int = 0
    used_milli: int = 0
    busy_milli: int = 0
    borrowed_milli: int = 0
    lent_milli: int = 0
    waited_milli: int = 0
    marked: int = 0
    waiting: bool = False
    held: bool = False
    health: Health = "healthy"


PARTS_MAX = 1024

SetName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128})]
Part = Annotated[int, Meta(ge=0, lt=PARTS_MAX)]


class InTurn(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A grant of a set on one device, some of which never run at once, such as those of a pod's init containers and of
    its other containers. `set`: its name. `parts`: the numbers of the device's parts that are this grant's, all worth
    the same. A part that several grants of the set have is taken once, and belongs to the one that ran last; no
    workload starts in a grant while another that has one of its parts is in use."""

    set: SetName
    parts: Annotated[list[Part], Meta(min_length=1, max_length=PARTS_MAX)]


MaxRung = Literal["throttle", "demote", "suspend", "evict", "kill"]
Outcome = Literal["asked", "released", "not needed", "ended", "refused"]
Signal = Literal["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"]

GRACE_SECONDS_MAX = 3600
PRIORITY_MAX = 1000

Grace = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": GRACE_SECONDS_MAX})]
IdleAfter = Annotated[float, Meta(extra_json_schema={"minimum": IDLE_SECONDS_MIN, "maximum": IDLE_SECONDS_MAX})]
Priority = Annotated[int, Meta(extra_json_schema={"minimum": -PRIORITY_MAX, "maximum": PRIORITY_MAX})]


class Eviction(Struct, kw_only=True):
    """A grant is asked to give back memory that it has on loan: to end, or to shrink. `bytes`: what it has on loan.
    `rung`: how it is asked now; `max_rung`: the harshest rung that it allows. `deadline_ns`: wall time at which that
    rung ends; after `evict` the grant is ended if it allows that and the memory is still needed, and otherwise stays as
    it is. `outcome`: `asked` until the eviction has ended; `refused`: it gave nothing back and may not be ended. `ms`:
    how long the eviction took."""

    grant: str
    tenant: str
    reason: str
    deadline_ns: int
    bytes: int
    for_tenant: str
    rung: MaxRung
    max_rung: MaxRung
    started_ns: int
    outcome: Outcome = "asked"
    ms: float | None = None
