"""What teams used: tenants with all that is below them, and whose guarantee it was that nobody used. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.policy.usage import bill


@dataclass(frozen=True, slots=True)
class Team:
    """Sums (bill.added) of a tenant and all below it; `own`: of the tenant alone, where others are below it. `level`:
    0 is a tenant that is part of no other."""

    name: str
    level: int
    own: bool
    sums: Mapping[str, int]


def tree(rows: Iterable[bill.Row], parents: Mapping[str, str | None]) -> list[Team]:
    """Rows of tenants as a tree, each team before those below it, and at each level the one that used most first.
    `parents`: of the tenants that there are now; of others the beginning of the name says it."""
    own: dict[str, list[bill.Row]] = {}
    for row in rows:
        own.setdefault(row.get("tenant", ""), []).append(row)
    below: dict[str | None, set[str]] = {}
    for name in own:
        while (above := _above(name, parents)) is not None:
            below.setdefault(above, set()).add(name)
            name = above
        below.setdefault(None, set()).add(name)

    def whole(name: str) -> list[bill.Row]:
        return [*own.get(name, ()), *(row for one in below.get(name, ()) for row in whole(one))]

    def walk(above: str | None, level: int) -> Iterable[Team]:
        teams = [(name, bill.added(whole(name))) for name in below.get(above, ())]
        for name, sums in sorted(teams, key=lambda team: (-bill.used(team[1]), team[0])):
            yield Team(name, level, False, sums)
            if name in below and name in own:
                yield Team(name, level + 1, True, bill.added(own[name]))
            yield from walk(name, level + 1)

    return list(walk(None, 0))


def _above(name: str, parents: Mapping[str, str | None]) -> str | None:
    """As `parent`. Nodes may disagree on who is part of whom, and their tenants together be a ring: the first of its
    names is then of no other."""
    ring, above = [name], parent(name, parents)
    while above is not None and above not in ring:
        ring.append(above)
        above = parent(above, parents)
    return None if above == name == min(ring) else parent(name, parents)


def parent(name: str, parents: Mapping[str, str | None]) -> str | None:
    """The tenant that this one is part of; None: of no other."""
    return parents[name] if name in parents else name.rpartition("/")[0] or None


def unused(tenants: Sequence[Any], capacity: int, rows: Sequence[bill.Row], spent: bill.Row) -> dict[str, int]:
    """Idle time of a node in ns by the tenant that was guaranteed it, if guarantees were then what they are now; they
    add up to all idle time. `tenants`: Tenants; `capacity`: of the node, in milli; `spent`: its DeviceTime."""
    parents = {one["name"]: one["parent"] for one in tenants}
    used = {team.name: team.sums for team in tree(rows, parents) if team.level == 0}
    found = {}
    for one in tenants:
        if one["parent"] is None and one["guarantee"]["time"] and capacity:
            had = used.get(one["name"], {})
            due = spent["wall_ns"] * one["guarantee"]["time"] // capacity
            found[one["name"]] = max(
                0, due - sum(had.get(name, 0) for name in ("guaranteed_ns", "extra_ns", "lent_ns"))
            )
    whole, idle = sum(found.values()), spent["idle_ns"]
    if not whole:
        return {"": idle} if idle else {}
    parts = {name: idle * ns // whole for name, ns in found.items() if ns}
    largest = max(parts, key=lambda name: parts[name])
    parts[largest] += idle - sum(parts.values())
    return {name: ns for name, ns in parts.items() if ns}
