"""Wire types of memory on loan, and of how it is taken back. Units are those of gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

MaxRung = Literal["throttle", "demote", "suspend", "evict", "kill"]
Outcome = Literal["asked", "released", "not needed", "ended", "refused"]
Signal = Literal["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"]

GRACE_SECONDS_MAX = 3600
PRIORITY_MAX = 1000

Grace = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": GRACE_SECONDS_MAX})]
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
