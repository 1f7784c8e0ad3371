"""Wire types of receipts: what the arbiter did for whom, and how long each tenant waited. Units are those of
gpushare.api.types."""

from typing import Literal

from msgspec import Struct

EventKind = Literal["lease", "revoke", "handover", "wake", "late", "beside", "drained", "left", "lie", "other"]
Way = Literal["environment", "annotation", "device"]
Path = Literal["wrapper", "hook", "nri"]
Rule = Literal[
    "none",
    "idle",
    "sleeping",
    "gone",
    "unused",
    "limit",
    "wake",
    "guarantee",
    "tier",
    "term",
    "excess",
    "gang",
    "ended",
    "free",
    "room",
    "other",
]


class LeaseEvent(Struct, kw_only=True):
    """From the arbiter's record. Every wait ends with `lease`, `beside` or `left`, every lease with `revoke`; one taken
    in mid-work is followed by `drained` once nothing of it is on the device any more. `handover`: the device is
    `other`'s, `late`: it had not drained by then, `wake`: a quiet grant wants the device. `lie`: a process of the grant
    wrote `value` (at most 2^63 - 1) as `word` of the slot of `pid`, which cannot be: until `pid` has ended, the grant
    is charged as if it had used every lease in full and held all its memory.

    `t_ns`: the node's monotonic clock; `at_ns`: wall time. `other`: of a lease who had the device before it, else who
    it was taken for. `wait_ns`: since the grant began to wait without a lease; `reclaim_ns`: since the revoke, of a
    lease that part of the wait in which the holder before it still ran. `value_ns`: the one of both that the kind is
    about. `woke`: the wait began as a wake. `running`: it had not drained, but got another lease, ended, or showed no
    end for a second. `rule`: why the lease was taken; of a lease given: why the one before it was, or how there was one
    to give. `level`: what the lease is given for; surplus is borrowed. `guarantee_milli`, `had_milli`: on this device,
    and in the last second: of a lease its own, else of `other`."""

    seq: int
    t_ns: int
    at_ns: int
    kind: EventKind
    device: int
    device_id: str
    grant: str | None
    tenant: str | None
    other: str | None
    other_tenant: str | None
    value_ns: int
    wait_ns: int
    reclaim_ns: int
    rule: Rule
    level: Literal["none", "guarantee", "slack", "surplus", "other"]
    woke: bool
    running: bool
    guarantee_milli: int
    had_milli: int
    word: str | None = None
    slot: int | None = None
    pid: int | None = None
    value: int | None = None


class LeaseEvents(Struct, kw_only=True):
    """`after`: to pass to the next call. `newest`: number of the newest event. `lost`: how many events after `after`
    the record no longer has. Numbers start again with each run of the daemon; `epoch` is the number of the run."""

    epoch: int
    after: int
    newest: int
    lost: int
    events: list[LeaseEvent]


class Attempt(Struct, kw_only=True):
    """A container without a share that asked for a GPU in NVIDIA's ways. `seq`: counts them, in a run of the daemon.
    `container`: its id, or the path of its bundle where the engine says none. `by`: `environment`:
    NVIDIA_VISIBLE_DEVICES; `annotation`: one of NVIDIA's that is not read; `device`: its engine hands it nodes of the
    driver, which nothing here prevents. `path`: who saw it."""

    seq: int
    at_ns: int
    container: str
    by: list[Way]
    path: Path


class Attempts(Struct, kw_only=True):
    """The latest, oldest first. `total`: all of this run of the daemon."""

    epoch: int
    total: int
    attempts: list[Attempt]


class TenantWaits(Struct, kw_only=True):
    """Sums and maxima of the fields of GrantDevice over all grants of a tenant, including ended ones that the ledger
    still has."""

    tenant: str
    waits: int = 0
    wait_ns: int = 0
    wait_max_ns: int = 0
    reclaims: int = 0
    reclaim_ns: int = 0
    reclaim_max_ns: int = 0


class Waits(Struct, kw_only=True):
    """How long each tenant waited."""

    tenants: list[TenantWaits]
