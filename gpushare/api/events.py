"""Wire types of receipts: what the arbiter did for whom, and how long each tenant waited. Units are those of
gpushare.api.types."""

from typing import Literal

from msgspec import Struct

from gpushare.api.share import MemoryRefused

EventKind = Literal[
    "lease", "revoke", "handover", "wake", "late", "beside", "drained", "left", "lie", "refused", "other"
]
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
    "away",
    "other",
]


class LeaseEvent(Struct, kw_only=True):
    """One event of the arbiter's record. Every wait ends with `lease`, `beside` or `left`, and every lease with
    `revoke`. A lease that is revoked in mid-work is followed by `drained` once none of that work is on the device
    any more. `handover`: the device passes to `other`. `late`: the grant had not drained by the handover. `wake`:
    an idle grant wants the device. `lie`: a process of the grant wrote an impossible `value` (at most 2^63 - 1) as
    `word` of the slot of `pid`; until `pid` has ended, the grant is charged as if it had used every lease in full
    and held all its memory. `refused`: `value` calls of the grant were refused device memory since the last such event,
    at most one a second for a grant; `refused` is the last of them.

    `t_ns`: the node's monotonic clock; `at_ns`: wall time. `other`: for a lease, the grant that had the device before,
    otherwise the grant for which it was taken. `wait_ns`: time since the grant began to wait without a lease.
    `reclaim_ns`: time since the revoke; for a lease, the part of the wait in which the previous holder still ran.
    `value_ns`: whichever of the two the kind is about. `woke`: the wait began with a wake. `running`: the work had not
    drained, but the grant got another lease, ended, or did not report the end of its work for one second. `rule`: why
    the lease was revoked; for a new lease, why the previous one was revoked, or why the device was free. `level`: what
    the lease is paid from; surplus is borrowed. `guarantee_milli`, `extra_milli`, `had_milli`: what was asked for on
    this device and granted, what came on top of that of its tenant's guarantee, and time had in the last second; for a
    lease those of its own grant, otherwise those of `other`."""

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
    extra_milli: int = 0
    word: str | None = None
    slot: int | None = None
    pid: int | None = None
    value: int | None = None
    refused: MemoryRefused | None = None


class LeaseEvents(Struct, kw_only=True):
    """`after`: value to pass to the next call. `newest`: number of the newest event. `lost`: how many events after the
    request's `after` the record no longer has. Numbers start again with each run of the daemon; `epoch` is the number
    of the run."""

    epoch: int
    after: int
    newest: int
    lost: int
    events: list[LeaseEvent]


class Attempt(Struct, kw_only=True):
    """A container without a share that asked for a GPU in one of NVIDIA's ways. `seq`: counts attempts in a run of the
    daemon. `container`: its id, or the path of its bundle if the engine gives no id. `by`: `environment`:
    NVIDIA_VISIBLE_DEVICES; `annotation`: one of NVIDIA's that gpushare does not read; `device`: its engine gives it
    device nodes of the driver, which gpushare does not prevent. `path`: where it was noticed."""

    seq: int
    at_ns: int
    container: str
    by: list[Way]
    path: Path


class Attempts(Struct, kw_only=True):
    """The latest attempts, oldest first. `total`: number of all attempts in this run of the daemon."""

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
