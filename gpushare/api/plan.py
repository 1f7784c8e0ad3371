"""Wire types of `POST /v1/plan`: whether a request would be granted, where, and who would lose by it. Units are those
of gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpushare.api.types import GrantRequest

Class = Literal["guaranteed", "borrow"]

AT_ONCE = 100
"""Most requests in one call: each occupies the daemon's loop for a while."""


class PlanList(Struct, forbid_unknown_fields=True, kw_only=True):
    """Requests that are planned one after the other, each as if the earlier ones that fit had been admitted."""

    grants: Annotated[list[GrantRequest], Meta(min_length=1, max_length=AT_ONCE)]


class PlanDevice(Struct, kw_only=True):
    """`guaranteed_milli`: the part of `time_milli` that comes out of the tenant's guarantee; the rest is borrowed.
    `memory_asked_bytes`: as in Grant. `rule`, `why`: the rule that chose this device, and a sentence about it, as in
    the decisions of `GET /v1/explain`; empty for a grant that is there already."""

    id: str
    index: int
    memory_bytes: int
    time_milli: int
    guaranteed_milli: int
    memory_asked_bytes: int = 0
    rule: str = ""
    why: str = ""


class ExpectedWait(Struct, kw_only=True):
    """In ms: half of all waits were no longer than `p50`, 99 of 100 no longer than `p99`. `waits`: the number of these
    waits, which are of this run of the daemon and of grants of the same `class` on the same devices."""

    p50: float
    p99: float
    waits: int


class Victim(Struct, kw_only=True):
    """A grant that would lose something that it borrows now. `time_milli`: of the device's time, taken by `throttle`:
    its lease ends at the end of a kernel, and no work is lost. `memory_bytes`: taken by a harsher rung. `rung`: the
    mildest one that is tried first; `max_rung`: the harshest that may follow. `rule`: the request is guaranteed it
    (`guarantee`), is of a higher `tier`, or gets its part of what is lent by `weight`."""

    grant: str
    tenant: str
    device: str
    index: int
    rung: Literal["throttle", "demote", "suspend", "evict", "kill", "other"] = "throttle"
    max_rung: Literal["throttle", "demote", "suspend", "evict", "kill", "other"] = "throttle"
    rule: Literal["guarantee", "tier", "weight", "other"]
    time_milli: int = 0
    memory_bytes: int = 0


class Moved(Struct, kw_only=True):
    """A grant that does nothing, or whose turn is over, and whose memory would be moved to host memory.
    `memory_bytes`: how much of it."""

    grant: str
    tenant: str
    memory_bytes: int


class Plan(Struct, kw_only=True):
    """`class`: `borrow` if a part of its time is not guaranteed, null if it does not fit. `wait_ms`: null if no grant
    has waited yet. `victims`: those that would lose while it uses all the time it asks for, judged by what each grant
    uses and wants now; if it does not fit, those that would be asked for memory that they have on loan, so that it fits
    later. `moved`: those that would be moved to host memory now, so that it fits after about `making_room_seconds`.
    `reasons`: if it does not fit, what `POST /v1/grants` would answer. `grant`: the living grant with this key, which
    the request would be answered with."""

    fits: bool
    devices: list[PlanDevice] = field(default_factory=list)
    class_: Class | None = field(name="class", default=None)
    wait_ms: ExpectedWait | None = None
    victims: list[Victim] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    making_room_seconds: float | None = None
    reasons: list[str] = field(default_factory=list)
    grant: str | None = None


class Plans(Struct, kw_only=True):
    """`fits`: whether all of them fit. `plans`: one for each request, in their order."""

    fits: bool
    plans: list[Plan]
