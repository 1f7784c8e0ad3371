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
    "served",
    "taken",
    "took",
    "gave_up",
    "waited",
    "late",
    "lie",
    "ended",
    "other",
]

Due = Literal["guarantee", "fair share"]


class Decision(Struct, kw_only=True):
    """`what`: `admitted`, `resized`, `ended`; `prepared`, `committed` as part of a gang; `guarantee`: what is kept of
    it has changed; `reclaim`: something borrowed, other than a lease; of leases `served`, `taken` from this grant, or
    `took` from another one for it, `gave_up` by itself, `waited` without getting one, `late` to stop, `lie`: its page
    says what cannot be. `text`: all that in a sentence. `rule`: by which; of leases those of LeaseEvent. `numbers`:
    those that it was decided by, names end in their unit."""

    at_ns: int
    what: What
    rule: str
    text: str
    device: int | None = None
    other: str | None = None
    other_tenant: str | None = None
    numbers: dict[str, int] = field(default_factory=dict)


class Explanation(Struct, kw_only=True):
    """`now`: a sentence on each of its devices. `decisions`: the latest, oldest first; those on leases as far as the
    arbiter's record has them."""

    grant: str
    tenant: str
    phase: str
    now: list[str]
    decisions: list[Decision]


class Refused(Struct, kw_only=True):
    """A request that was refused, and would be admitted without the grant it is listed with."""

    at_ns: int
    tenant: str
    memory: int | str
    time_milli: int
    text: str


class IdleHolder(Struct, kw_only=True):
    """A grant that computes nothing. `memory_bytes`: what its processes hold, `memory_limit_bytes`: what is kept for
    it. `idle_ns`: since it had work. `device_idle_milli`: of the device's last second, had by nobody. `in_the_way`:
    who could not be placed."""

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
    """A tenant with more device time than it is entitled to. `grants`: those of it that use a device which the other
    waits for."""

    tenant: str
    used_milli: int
    entitled_milli: int
    guarantee_milli: int
    grants: list[str]


class Waiting(Struct, kw_only=True):
    """A tenant that waits and has less than it is entitled to, in the last second. `rule`: `guarantee` where it has
    less than that, else `fair share`. `over`: on the same devices, most first; none: the device time that it waits
    for is had by tenants within what they are entitled to elsewhere too, or is lost in switching."""

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
    """Who holds devices that do not compute; who waits while who borrows more than is due."""

    idle_holders: list[IdleHolder]
    waiting: list[Waiting]
