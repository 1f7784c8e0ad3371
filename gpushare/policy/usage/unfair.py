"""Tenants that wait below what they are entitled to while others have more. What they could have only on
other devices than they were given does not count. Pure: takes what each grant used and waited in a span of time. All in
milli-GPU."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpushare.policy.quota import families, tree
from gpushare.policy.quota.entitlement import TenantState
from gpushare.policy.quota.history import Weights
from gpushare.policy.quota.shares import DEVICE_MILLI
from gpushare.policy.quota.tenant import TenantPolicy

SLACK_MILLI = 50
"""A tenant is off by less than this in any second: leases last 20 ms, and switching takes up to 2 %."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one grant had on one device. `due_milli`: what it should have got there; None: not known."""

    grant: str
    tenant: str
    device: str
    used_milli: int
    waited_milli: int
    limit_milli: int = DEVICE_MILLI
    due_milli: int | None = None

    @property
    def wants(self) -> int:
        """What it would have used if it had been alone."""
        return max(self.used_milli, min(self.used_milli + self.waited_milli, self.limit_milli))


@dataclass(frozen=True, slots=True)
class Stand:
    """The standing of a tenant: its own grants, without those below it."""

    tenant: str
    used_milli: int
    entitled_milli: int
    guarantee_milli: int
    waited_milli: int
    grants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Behind:
    """A tenant that waits below what it is entitled to on the devices that its grants are on, and those above their
    entitlements on these devices, most first."""

    who: Stand
    over: tuple[Stand, ...]

    @property
    def below_guarantee(self) -> bool:
        """Whether it has less than it is guaranteed, too."""
        return self.who.used_milli < self.who.guarantee_milli - SLACK_MILLI


def standings_of(
    policies: Mapping[str, TenantPolicy], uses: Iterable[Use], devices: int, weights: Weights | None = None
) -> dict[str, Stand]:
    """The Stand of every tenant that used or wanted time. `devices`: how many of the node work. `weights`: in place of
    tenants' own."""
    by_tenant: dict[str, list[Use]] = {}
    for use in uses:
        if use.tenant in policies and use.wants:
            by_tenant.setdefault(use.tenant, []).append(use)
    states = _states(policies, {name: sum(use.wants for use in mine) for name, mine in by_tenant.items()})
    entitled = tree.entitle(DEVICE_MILLI * devices, states, weights).milli
    for state in states:
        if state.parent is not None:
            entitled[state.parent] -= entitled[state.name]
    return {
        name: Stand(
            tenant=name,
            used_milli=sum(use.used_milli for use in mine),
            entitled_milli=entitled[name],
            guarantee_milli=policies[name].guarantee_milli,
            waited_milli=sum(use.waited_milli for use in mine),
            grants=tuple(dict.fromkeys(use.grant for use in mine)),
        )
        for name, mine in by_tenant.items()
    }


def behind(
    policies: Mapping[str, TenantPolicy], uses: Iterable[Use], devices: int, weights: Weights | None = None
) -> list[Behind]:
    """The tenants that are behind, furthest below first."""
    found_uses = list(uses)
    standings = standings_of(policies, found_uses, devices, weights)
    here = [replace(stand, entitled_milli=_due(stand, found_uses)) for stand in standings.values()]
    waiting = [
        stand
        for stand in here
        if stand.waited_milli > SLACK_MILLI and stand.used_milli < stand.entitled_milli - SLACK_MILLI
    ]
    over = sorted(
        (one for one in standings.values() if one.used_milli > one.entitled_milli + SLACK_MILLI),
        key=lambda one: (one.entitled_milli - one.used_milli, one.tenant),
    )
    result = []
    for stand in waiting:
        waits_for = {use.device for use in found_uses if use.tenant == stand.tenant and use.waited_milli}
        beside = []
        for one in over:
            there = {use.grant for use in found_uses if use.tenant == one.tenant and use.device in waits_for}
            if grants := tuple(grant for grant in one.grants if grant in there):
                beside.append(
                    Stand(one.tenant, one.used_milli, one.entitled_milli, one.guarantee_milli, one.waited_milli, grants)
                )
        result.append(Behind(stand, tuple(beside)))
    return sorted(result, key=lambda row: (row.who.used_milli - row.who.entitled_milli, row.who.tenant))


def _due(stand: Stand, uses: Iterable[Use]) -> int:
    """What the tenant is entitled to, and no more than its grants could get where we have placed them."""
    dues = [use.due_milli for use in uses if use.tenant == stand.tenant and use.wants]
    return stand.entitled_milli if None in dues else min(stand.entitled_milli, sum(due or 0 for due in dues))


def _states(policies: Mapping[str, TenantPolicy], wanted: Mapping[str, int]) -> list[TenantState]:
    """States of these tenants and all above them, as a tree in which a parent's guarantee includes its children's."""
    members = dict.fromkeys(name for one in wanted for name in families.line(policies, one))
    whole = dict.fromkeys(members, 0)
    for name, policy in policies.items():
        for above in families.line(policies, name):
            if above in whole:
                whole[above] += policy.guarantee_milli
    return [
        TenantState(
            name=name,
            guarantee=whole[name],
            demand=wanted.get(name, 0),
            weight=policies[name].weight,
            tier=policies[name].tier,
            limit=policies[name].limit_milli,
            parent=policies[name].parent,
        )
        for name in members
    ]
