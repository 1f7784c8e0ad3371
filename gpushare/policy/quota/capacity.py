"""What is left of every promise on the devices that work. Pure.

Guarantees that still fit stay as they are; otherwise all shrink in proportion, to the last unit by largest remainder.
The tenant that owns what nobody else is guaranteed loses first. A tenant's reservations follow its guarantee:
they keep their part of it on the devices that work and are whole again when it is.
"""

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpushare.policy.quota.entitlement import Part, water_fill
from gpushare.policy.quota.shares import Placed


@dataclass(frozen=True, slots=True)
class Promise:
    """What one tenant is promised over the node: time in milli, memory in bytes."""

    time: int
    memory: int = 0


def shrink(amount: int, promised: Mapping[str, int]) -> dict[str, int]:
    """`promised` where it fits into `amount`, else `amount` split in proportion to it."""
    if sum(promised.values()) <= amount:
        return dict(promised)
    given = water_fill(amount, [Part(name, due, due) for name, due in promised.items()])
    return {name: given.get(name, 0) for name in promised}


Key = tuple[str, str]
"""A grant and one of its devices."""


class Standing:
    """`have`: by tenant, what is left of what was `promised`. `kept`: by grant and device, milli left of what was
    reserved; `missing`: how much less that is, where it is. Grants come and go one by one, at a cost that does not
    depend on how many there are, unless their tenant has less than they reserved."""

    def __init__(self, promised: Mapping[str, Promise], rest: str, capacity: Promise, usable: Collection[str]) -> None:
        """`rest`: the tenant that is promised all time that no other is. `capacity`: of the `usable` devices."""
        named = {name: promise.time for name, promise in promised.items() if name != rest}
        time = shrink(capacity.time, named)
        if rest in promised:
            time[rest] = min(promised[rest].time, capacity.time - sum(time.values()))
        memory = shrink(capacity.memory, {name: promise.memory for name, promise in promised.items()})
        self.promised = dict(promised)
        self.have = {name: Promise(time[name], memory[name]) for name in promised}
        self.kept: dict[Key, int] = {}
        self.missing: dict[Key, int] = {}
        self._usable = frozenset(usable)
        self._rows: dict[str, dict[Key, Placed]] = {}
        self._reserved: dict[str, int] = {}
        """By tenant, on usable devices."""
        self._short: set[str] = set()
        """Tenants whose grants keep less than they reserved."""

    def copy(self) -> "Standing":
        """An independent copy."""
        other = copy.copy(self)
        other.kept, other.missing = dict(self.kept), dict(self.missing)
        other._reserved, other._short = dict(self._reserved), set(self._short)
        other._rows = {tenant: dict(rows) for tenant, rows in self._rows.items()}
        return other

    def degraded(self, tenant: str) -> bool:
        """Whether the tenant has less than it was promised."""
        return self.have[tenant] != self.promised[tenant]

    def put(self, placed: Iterable[Placed]) -> list[Key]:
        """Adds grants, each with all its places. Returns where `kept` may have changed."""
        fresh: dict[str, list[Key]] = {}
        for row in placed:
            key = row.grant, row.device
            self._rows.setdefault(row.tenant, {})[key] = row
            self._count(row, row.guaranteed_milli)
            fresh.setdefault(row.tenant, []).append(key)
        return [key for tenant, keys in fresh.items() for key in self._settle(tenant, keys)]

    def drop(self, placed: Collection[Placed]) -> list[Key]:
        """Removes grants, as they were added. Returns where `kept` may have changed; it has nothing of them any
        more."""
        tenants = dict.fromkeys(row.tenant for row in placed)
        for row in placed:
            key = row.grant, row.device
            del self._rows[row.tenant][key], self.kept[key]
            self.missing.pop(key, None)
            self._count(row, -row.guaranteed_milli)
        return [key for tenant in tenants for key in self._settle(tenant, [])]

    def _count(self, row: Placed, milli: int) -> None:
        if row.device in self._usable:
            self._reserved[row.tenant] = self._reserved.get(row.tenant, 0) + milli

    def _settle(self, tenant: str, fresh: list[Key]) -> list[Key]:
        """Updates `kept` of a tenant. Returns where it may have changed. `fresh`: the tenant's keys that `kept` does
        not have yet."""
        rows = self._rows[tenant]
        if not rows:
            del self._rows[tenant]
            self._reserved.pop(tenant, None)
            self._short.discard(tenant)
            return []
        reserved = self._reserved.get(tenant, 0)
        # A tenant that was removed keeps what it had reserved: no other tenant was given that.
        amount = self.have[tenant].time if tenant in self.have else reserved
        if reserved <= amount:
            keys = list(rows) if tenant in self._short else fresh
            self._short.discard(tenant)
            for key in keys:
                self._keep(rows[key], rows[key].guaranteed_milli if key[1] in self._usable else 0)
            return keys
        self._short.add(tenant)
        mine = [row for row in rows.values() if row.device in self._usable]
        parts = [Part(f"{row.grant} {row.device}", row.guaranteed_milli, row.guaranteed_milli) for row in mine]
        given = water_fill(amount, parts)
        for key, row in rows.items():
            self._keep(row, given.get(" ".join(key), 0))
        return list(rows)

    def _keep(self, row: Placed, milli: int) -> None:
        key = row.grant, row.device
        self.kept[key] = milli
        if milli < row.guaranteed_milli:
            self.missing[key] = row.guaranteed_milli - milli
        else:
            self.missing.pop(key, None)


def standing(
    promised: Mapping[str, Promise], rest: str, capacity: Promise, placed: Collection[Placed], usable: Collection[str]
) -> Standing:
    """A Standing of all the grants at once. Arguments as Standing has them."""
    found = Standing(promised, rest, capacity, usable)
    found.put(placed)
    return found
