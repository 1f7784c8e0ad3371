"""Wire types of `POST /v1/plan`: what would become of a grant. Units are those of gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpushare.api.types import GrantRequest

Class = Literal["guaranteed", "borrow"]

AT_ONCE = 100
"""Requests in one call: each takes its part of the daemon's loop."""


class PlanList(Struct, forbid_unknown_fields=True, kw_only=True):
    """Planned one after the other, each as if those before it that fit had been admitted."""

    grants: Annotated[list[GrantRequest], Meta(min_length=1, max_length=AT_ONCE)]


class PlanDevice(Struct, kw_only=True):
    """`guaranteed_milli`: the part of `time_milli` that comes out of the tenant's guarantee; the rest is borrowed."""

    id: str
    index: int
    memory_bytes: int
    time_milli: int
    guaranteed_milli: int


class ExpectedWait(Struct, kw_only=True):
    """In ms: half of all waits, and 99 of 100, were no longer than these. `waits`: how many that is of, in this run of
    the daemon, by grants of the same `class` on the same devices."""

    p50: float
    p99: float
    waits: int


class Victim(Struct, kw_only=True):
    """A grant that would lose something that it borrows now. `time_milli`: of the device's time, by `throttle`: its
    lease ends at a kernel's end, and no work is lost. `memory_bytes`: by a harsher rung, which is the mildest one that
    is tried first; `max_rung`: the harshest that may follow. `rule`: the request is guaranteed it (`guarantee`), is of
    a higher `tier`, or has its part by `weight` of what is lent."""

    grant: str
    tenant: str
    device: str
    index: int
    rung: Literal["throttle", "demote", "suspend", "evict", "kill", "other"] = "throttle"
    max_rung: Literal["throttle", "demote", "suspend", "evict", "kill", "other"] = "throttle"
    rule: Literal["guarantee", "tier", "weight", "other"]
    time_milli: int = 0
    memory_bytes: int = 0


class Plan(Struct, kw_only=True):
    """`class`: `borrow` where a part of its time is not guaranteed, None where it does not fit. `wait_ms`: None where
    nobody has waited yet. `victims`: while it uses all the time it asks for, by who uses and wants how much now; where
    it does not fit, those that would be asked for memory that they have on loan, so that it fits later.
    `reasons`: what `POST /v1/grants` would answer where it does not fit. `grant`: the living one with this key, which
    the request would be answered with."""

    fits: bool
    devices: list[PlanDevice] = field(default_factory=list)
    class_: Class | None = field(name="class", default=None)
    wait_ms: ExpectedWait | None = None
    victims: list[Victim] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    grant: str | None = None


class Plans(Struct, kw_only=True):
    """`fits`: whether all of them do. `plans`: one for each request, in their order."""

    fits: bool
    plans: list[Plan]
