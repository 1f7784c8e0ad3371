"""Wire types of `GET /v1/explain`: the decisions about a grant, and two standing questions. Units are those of
gpushare.api.types."""

from typing import Literal

from msgspec import Struct, field

What = Literal[
    "admitted",
    "prepared",
    "committed",
    "resized",
    "guarantee",
    "reclaim",
    "moved",
    "refused",
    "served",
    "taken",
    "took",
    "gave_up",
    "waited",
    "late",
    "lie",
    "attached",
    "detached",
    "ended",
    "other",
]

Due = Literal["guarantee", "fair share"]


class Decision(Struct, kw_only=True):
    """`what`: `admitted`, `resized`, `ended`; `prepared`, `committed` as part of a gang; `guarantee`: how much of its
    guarantee is kept has changed; `reclaim`: about something borrowed other than a lease; `moved`: about its memory, to
    host memory or back; `refused`: calls of its programs were refused memory; about leases: `served`, `taken` from this
    grant, `took` from another one for it, `gave_up` of its own accord, `waited` without getting one, `late` to stop,
    `lie`: its page contains an impossible value; `attached`, `detached`: another machine's programs began or ceased to
    use it. `text`: the decision in a sentence. `rule`: the rule that decided; for leases as in LeaseEvent. `numbers`:
    those that it was decided by; their names end in their unit."""

    at_ns: int
    what: What
    rule: str
    text: str
    device: int | None = None
    other: str | None = None
    other_tenant: str | None = None
    numbers: dict[str, int] = field(default_factory=dict)


class Explanation(Struct, kw_only=True):
    """`why`: why it is not faster, and memory that it was refused, in sentences that say what to do: the most important
    one first. `now`: a sentence about each of its devices and attachments. `decisions`: the latest, oldest first; those
    about leases as far back as the arbiter's record reaches."""

    grant: str
    tenant: str
    phase: str
    now: list[str]
    why: list[str] = []
    decisions: list[Decision]


class Refused(Struct, kw_only=True):
    """A request that was refused and would be admitted without the grant it is listed with."""

    at_ns: int
    tenant: str
    memory: int | str
    time_milli: int
    text: str


class IdleHolder(Struct, kw_only=True):
    """A grant that computes nothing. `memory_bytes`: what its processes hold; `memory_limit_bytes`: what is kept for
    it. `idle_ns`: time since it had work. `device_idle_milli`: how much of the device nobody used in the last second.
    `in_the_way`: requests that could not be placed because of it."""

    grant: str
    tenant: str
    device: int
    memory_bytes: int
    memory_limit_bytes: int
    guaranteed_milli: int
    lent_milli: int
    idle_ns: int
    device_idle_milli: int
    in_the_way: list[Refused]
    text: str


class Over(Struct, kw_only=True):
    """A tenant with more device time than it is entitled to. `grants`: those of its grants that use a device for which
    the other tenant waits."""

    tenant: str
    used_milli: int
    entitled_milli: int
    guarantee_milli: int
    grants: list[str]


class Waiting(Struct, kw_only=True):
    """A tenant that waited and had less than it is entitled to in the last second. `rule`: `guarantee` if it had less
    than its guarantee, otherwise `fair share`. `over`: tenants above their entitlement on the same devices, most first;
    empty: the device time that it waits for is lost in switching. `entitled_milli`: on the devices that its grants are
    on."""

    tenant: str
    used_milli: int
    entitled_milli: int
    guarantee_milli: int
    waited_milli: int
    rule: Due
    grants: list[str]
    over: list[Over]
    text: str


class Standing(Struct, kw_only=True):
    """Which grants hold devices without computing, and which tenants wait while others have more than is due to
    them."""

    idle_holders: list[IdleHolder]
    waiting: list[Waiting]
