"""What is left of every promise on the devices that work. Pure.

Guarantees that still fit stay as they are; otherwise all shrink in proportion, to the last unit by largest remainder.
The tenant that owns what nobody else is guaranteed owns less first. A tenant's reservations follow its guarantee:
they keep their part of it on the devices that work and are whole again when it is.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpushare.policy.entitlement import Part, water_fill
from gpushare.policy.shares import Placed


@dataclass(frozen=True, slots=True)
class Promise:
    """What one tenant is promised over the node: time in milli, memory in bytes."""

    time: int
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """`have`: by tenant, of what was promised. `kept`: milli by (grant, device), of what was reserved."""

    promised: dict[str, Promise]
    have: dict[str, Promise]
    kept: dict[tuple[str, str], int]

    def degraded(self, tenant: str) -> bool:
        """Whether the tenant has less than it was promised."""
        return self.have[tenant] != self.promised[tenant]


def shrink(amount: int, promised: Mapping[str, int]) -> dict[str, int]:
    """`promised` where it fits into `amount`, else `amount` split in proportion to it."""
    if sum(promised.values()) <= amount:
        return dict(promised)
    given = water_fill(amount, [Part(name, due, due) for name, due in promised.items()])
    return {name: given.get(name, 0) for name in promised}


def standing(
    promised: Mapping[str, Promise], rest: str, capacity: Promise, placed: Collection[Placed], usable: Collection[str]
) -> Standing:
    """`rest`: the tenant that is promised all time that no other is. `capacity`: of the `usable` devices."""
    named = {name: promise.time for name, promise in promised.items() if name != rest}
    time = shrink(capacity.time, named)
    if rest in promised:
        time[rest] = min(promised[rest].time, capacity.time - sum(time.values()))
    memory = shrink(capacity.memory, {name: promise.memory for name, promise in promised.items()})
    have = {name: Promise(time[name], memory[name]) for name in promised}
    return Standing(dict(promised), have, _kept(time, placed, usable))


def _kept(time: Mapping[str, int], placed: Collection[Placed], usable: Collection[str]) -> dict[tuple[str, str], int]:
    kept = {(row.grant, row.device): 0 for row in placed}
    on_usable: dict[str, list[Placed]] = {}
    for row in placed:
        if row.device in usable:
            on_usable.setdefault(row.tenant, []).append(row)
    for tenant, rows in on_usable.items():
        parts = [Part(f"{row.grant} {row.device}", row.guaranteed_milli, row.guaranteed_milli) for row in rows]
        # A tenant that was removed keeps what it had reserved: no other tenant was given that.
        reserved = sum(part.cap for part in parts)
        amount = time.get(tenant, reserved)
        if reserved <= amount:
            kept.update(((row.grant, row.device), row.guaranteed_milli) for row in rows)
            continue
        given = water_fill(amount, [part for part in parts if part.cap])
        for row, part in zip(rows, parts, strict=True):
            kept[row.grant, row.device] = given.get(part.name, 0)
    return kept
