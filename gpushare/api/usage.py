"""Wire types of usage: what the ledger adds up. Units are those of gpushare.api.types; times of devices are of one
device, so that 3600 s of two devices are 7200 s."""

from typing import Literal

from msgspec import Struct

By = Literal["tenant", "grant", "device", "hour", "charge"]
Unit = Literal["hour", "minute"]
Each = Literal["node", "device"]


class UsageRow(Struct, kw_only=True):
    """`begins_ns`: of the hour or, by charge, of the day. `guaranteed_ns`, `borrowed_ns`, `scavenged_ns`: device time
    that it used by its guarantee, of what others left, and of that as a tenant of weight 0; together all it used.
    `lent_ns`: of its guarantee, used by others. `waited_ns`: without a lease; of that `waited_owed_ns`: while it was
    owed guaranteed time, `waited_limit_ns`: while it had used all that its limit allows, and in the rest it had had its
    guarantee. `busy_ns`: metered work. `memory_byte_s`: bytes times seconds. `reclaims`: how often a lease was taken in
    mid-work. `launches`: kernels, graphs and other work that was submitted."""

    tenant: str = ""
    grant: str = ""
    device: str = ""
    begins_ns: int = 0
    guaranteed_ns: int = 0
    borrowed_ns: int = 0
    scavenged_ns: int = 0
    lent_ns: int = 0
    waited_ns: int = 0
    waited_owed_ns: int = 0
    waited_limit_ns: int = 0
    busy_ns: int = 0
    memory_byte_s: int = 0
    waits: int = 0
    reclaims: int = 0
    launches: int = 0


class DeviceTime(Struct, kw_only=True):
    """What devices were used for: the parts add up to `wall_ns`, within 0.1 %. `missed_ns`: no daemon was there to say.
    `idle_with_waiters_ns`: of the idle time, while grants waited."""

    wall_ns: int = 0
    used_ns: int = 0
    idle_ns: int = 0
    switching_ns: int = 0
    missed_ns: int = 0
    idle_with_waiters_ns: int = 0


class Usage(Struct, kw_only=True):
    """Of what the ledger has between these moments, in rows of a minute or longer, which count where they end."""

    since_ns: int
    until_ns: int
    by: By
    rows: list[UsageRow]
    devices: DeviceTime


class UsageSlot(Struct, kw_only=True):
    """An hour or a minute or, where that is rolled up, a longer time: after three hours an hour, then a day.
    `length_ns`: of it, recorded. `capacity_ns`: of all devices together. `used_ns`, `waited_ns`: by tenant, without
    those below it. `device`: all that of this one alone; empty: of all."""

    begins_ns: int
    length_ns: int
    capacity_ns: int
    used_ns: dict[str, int]
    waited_ns: dict[str, int]
    device: str = ""


class UsageSlots(Struct, kw_only=True):
    """Of what the ledger has between these moments."""

    since_ns: int
    until_ns: int
    slots: list[UsageSlot]
