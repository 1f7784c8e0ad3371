"""What recorded demand would have got under other quotas: entitlements, slot by slot.

A tenant's demand in a slot is what it used and what it waited. Slots are independent: a tenant that would have got more
would not have wanted less later. Where its devices were placed does not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.policy.quota import tree
from gpushare.policy.quota.entitlement import TenantState


@dataclass(frozen=True, slots=True)
class Slot:
    """What was recorded from `begins_ns` on. `length_ns`: wall time. `capacity_ns`: of all devices together. `used_ns`,
    `waited_ns`: by tenant, without those below it. `device`: the only device it is about; empty: all."""

    begins_ns: int
    length_ns: int
    capacity_ns: int
    used_ns: Mapping[str, int]
    waited_ns: Mapping[str, int]
    device: str = ""


@dataclass(slots=True)
class Outcome:
    """Outcome for one tenant without those below it, in ns of one device. `was_`: as recorded. `borrowed_ns`: the part
    of `used_ns` beyond its guarantee. `unused_ns`: the part of its guarantee that it would not have wanted. `short_ns`:
    length of the slots in which it would have waited; `worst_ns`: the longest wait of one slot, the one at
    `worst_at_ns`."""

    was_used_ns: int = 0
    was_waited_ns: int = 0
    used_ns: int = 0
    borrowed_ns: int = 0
    waited_ns: int = 0
    unused_ns: int = 0
    short_ns: int = 0
    worst_ns: int = 0
    worst_at_ns: int = 0


@dataclass(slots=True)
class Replay:
    """`idle_ns`: what nobody would have used; `was_idle_ns`: what nobody used, switching included. `degraded_ns`:
    length of the slots with less than what was guaranteed and wanted. `unknown`: tenants of the record that have no
    quota: they take part without a guarantee."""

    tenants: dict[str, Outcome] = field(default_factory=dict)
    slots: int = 0
    capacity_ns: int = 0
    idle_ns: int = 0
    was_idle_ns: int = 0
    degraded_ns: int = 0
    unknown: list[str] = field(default_factory=list)


def replay(slots: Iterable[Slot], quotas: Sequence[TenantState]) -> Replay:
    """Replays the slots. `quotas`: of the tenants, with guarantees and limits in milli-GPU; their demand is not read.
    Raises UsageError for parents that form no tree, and for children with more than their parent."""
    known = {quota.name: quota for quota in quotas}
    tree.check_guarantees(tree.families(known), known)
    found = Replay({name: Outcome() for name in known})
    for slot in slots:
        for name in sorted((slot.used_ns.keys() | slot.waited_ns.keys()) - known.keys()):
            known[name] = TenantState(name, 0, 0, parent=_above(name, known))
            found.tenants[name] = Outcome()
            found.unknown.append(name)
        _add(found, slot, known)
    return found


def _above(name: str, known: Mapping[str, TenantState]) -> str | None:
    """The nearest tenant whose name is a path prefix of this one."""
    while "/" in name:
        name = name.rpartition("/")[0]
        if name in known:
            return name
    return None


def _add(found: Replay, slot: Slot, known: Mapping[str, TenantState]) -> None:
    wanted = {name: slot.used_ns.get(name, 0) + slot.waited_ns.get(name, 0) for name in known}
    states = [
        replace(
            quota,
            guarantee=quota.guarantee * slot.length_ns // 1000,
            demand=wanted[name],
            limit=None if quota.limit is None else quota.limit * slot.length_ns // 1000,
        )
        for name, quota in known.items()
    ]
    result = tree.entitle(slot.capacity_ns, states)
    got = dict(result.milli)
    own = {state.name: state.guarantee for state in states}
    for state in states:
        if state.parent is not None:
            got[state.parent] -= result.milli[state.name]
            own[state.parent] -= state.guarantee
    for name, outcome in found.tenants.items():
        waits = wanted[name] - got[name]
        outcome.was_used_ns += slot.used_ns.get(name, 0)
        outcome.was_waited_ns += slot.waited_ns.get(name, 0)
        outcome.used_ns += got[name]
        outcome.borrowed_ns += max(0, got[name] - own[name])
        outcome.waited_ns += waits
        outcome.unused_ns += max(0, own[name] - wanted[name])
        outcome.short_ns += slot.length_ns if waits else 0
        if waits > outcome.worst_ns:
            outcome.worst_ns, outcome.worst_at_ns = waits, slot.begins_ns
    found.slots += 1
    found.capacity_ns += slot.capacity_ns
    found.idle_ns += max(0, slot.capacity_ns - sum(got.values()))
    found.was_idle_ns += max(0, slot.capacity_ns - sum(slot.used_ns.values()))
    found.degraded_ns += slot.length_ns if result.degraded else 0
