"""Wire types of usage: sums over the ledger. Units are those of gpushare.api.types; device times are summed over
devices: 3600 s of two devices are 7200 s."""

from typing import Literal

from msgspec import Struct

By = Literal["tenant", "grant", "device", "hour", "period", "charge", "holder", "origin"]
Unit = Literal["hour", "minute"]
Each = Literal["node", "device"]


class UsageRow(Struct, kw_only=True):
    """`begins_ns`: start of the hour, of the period or, by charge, of the day. `guaranteed_ns`: device time used within
    what its grants asked for and were granted; `extra_ns`: beyond that, of what no grant has asked for of its tenant's
    guarantee; `borrowed_ns`, `scavenged_ns`: of what others left idle, and of that as a tenant of weight 0. The sum of
    the four is all it used. `lent_ns`: time of its guarantee that others used. `waited_ns`: time that it waited without
    a lease; of that, `waited_owed_ns`: while it was owed guaranteed time, `waited_limit_ns`: while it had used all that
    its limit allows; during the rest it had had its guarantee. `busy_ns`: metered work. `memory_byte_s`: bytes on the
    device times seconds; `hosted_byte_s`: bytes in host memory. `moved_out_bytes`, `moved_in_bytes`: copied to host
    memory and back. `stalled_ns`: for how long calls of its programs waited for memory that was in host memory, in
    `stalls` waits that are over. By holder the rows are of that alone: `holder` and `holder_tenant` are the grant whose
    memory stood in the way, and its tenant; both are empty where it was only the copy, and the tenant `(held)` stands
    for a person who had it stay away. By origin: `origin` is the client machine, as it names itself, whose programs
    used the device over a carrier; several where they used a grant at once; empty: this node's own programs, and what
    moving memory cost. `reclaims`: how often a lease was taken in mid-work. `launches`: kernels, graphs
    and other submitted work."""

    tenant: str = ""
    grant: str = ""
    device: str = ""
    holder: str = ""
    holder_tenant: str = ""
    origin: str = ""
    begins_ns: int = 0
    guaranteed_ns: int = 0
    extra_ns: int = 0
    borrowed_ns: int = 0
    scavenged_ns: int = 0
    lent_ns: int = 0
    waited_ns: int = 0
    waited_owed_ns: int = 0
    waited_limit_ns: int = 0
    busy_ns: int = 0
    memory_byte_s: int = 0
    hosted_byte_s: int = 0
    moved_out_bytes: int = 0
    moved_in_bytes: int = 0
    stalled_ns: int = 0
    stalls: int = 0
    waits: int = 0
    reclaims: int = 0
    launches: int = 0


class DeviceTime(Struct, kw_only=True):
    """What devices were used for: the parts add up to `wall_ns`, within 0.1 %. `missed_ns`: time without a daemon to
    record it. `idle_with_waiters_ns`: the part of the idle time during which grants waited."""

    wall_ns: int = 0
    used_ns: int = 0
    idle_ns: int = 0
    switching_ns: int = 0
    missed_ns: int = 0
    idle_with_waiters_ns: int = 0


class UsagePeriod(Struct, kw_only=True):
    """What devices were used for in the period that begins at `begins_ns`."""

    begins_ns: int
    devices: DeviceTime


class Usage(Struct, kw_only=True):
    """What the ledger has between these moments. Its rows of a minute count where they end, those of an hour where they
    begin, those of a day (UTC) at noon. `periods`: by period, those in which anything is recorded, in order."""

    since_ns: int
    until_ns: int
    by: By
    rows: list[UsageRow]
    devices: DeviceTime
    periods: list[UsagePeriod] = []


class UsageSlot(Struct, kw_only=True):
    """The usage of an hour or a minute; where the ledger is rolled up, of a longer time: after three hours an hour,
    later a day. `length_ns`: how much of it was recorded. `capacity_ns`: of all devices together. `used_ns`,
    `waited_ns`: by tenant, without the tenants below it. `device`: the only device that all these numbers are of;
    empty: all devices."""

    begins_ns: int
    length_ns: int
    capacity_ns: int
    used_ns: dict[str, int]
    waited_ns: dict[str, int]
    device: str = ""


class UsageSlots(Struct, kw_only=True):
    """What the ledger has between these moments."""

    since_ns: int
    until_ns: int
    slots: list[UsageSlot]
