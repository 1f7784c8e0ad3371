"""Tenants: their guarantees, and the users who may name them. tenants.toml is the only source; comments in it are kept.

[tenants.research]
time = "75%"          # guaranteed, of the node: "600%" is six devices
memory = "8GiB"       # guaranteed, over all devices
users = ["ada", 1007]

[tenants."research/vision"]    # part of research, out of whose guarantee its own comes
time = "25%"
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare.api import tenants as types
from gpushare.api.tenants import TenantPolicy
from gpushare.daemon import tenants_file
from gpushare.daemon.peer import Peer
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError, UsageError
from gpushare.policy import admission
from gpushare.units import format_size, format_time, parse_node_time, parse_size

DEFAULT = "default"
BUILT_IN = "built-in"
_ACCOUNT = re.compile(types.ACCOUNT, re.ASCII)
_SOURCE = re.compile(types.SOURCE, re.ASCII)
LEVELS = 3
"""Of tenants within tenants: org, team, user."""
_WEIGHT_MAX = 1_000_000
_TIER_MAX = 1000


@dataclass(frozen=True, slots=True)
class Tenant:
    """`time`, `time_limit`: milli of the node. `memory`: bytes guaranteed over all devices. All of it and of those
    below it. `parent`: as it was asked for; `Tenants.parent` knows the one it has."""

    name: str
    parent: str | None
    time: int
    memory: int
    time_limit: int
    weight: int
    tier: int
    users: tuple[int | str, ...]
    groups: tuple[int | str, ...]
    source: str


def _accounts(tenant: str, what: str, given: Sequence[int | str]) -> tuple[int | str, ...]:
    """Names and numbers that a user database can have: any other would never match anybody."""
    for one in given:
        if isinstance(one, int):
            _in_range(f"tenant {tenant}: {what}", one, 0, types.ACCOUNT_NUMBER_MAX)
        elif one.isascii() and one.isdecimal():
            raise UsageError(f"tenant {tenant}: {what} {one[:40]!r} is a number in quotes: write it without them")
        elif len(one) > types.ACCOUNT_MAX or not _ACCOUNT.fullmatch(one):
            raise UsageError(f"tenant {tenant}: {what} {one[:40]!r} is no name that an account can have")
    return tuple(given)


def _in_range(what: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise UsageError(f"{what} {value} is out of range: give {low} to {high}")
    return value


def parse(name: str, policy: TenantPolicy, capacity_time: int, smallest: int = admission.SMALLEST_MILLI) -> Tenant:
    """Raises UsageError, or RefusedError for what cannot be served. `capacity_time`: the node's, which a tenant
    without a limit may use up. `smallest`: share that can be served."""
    tenants_file.check_name(name)
    time = _quantity(name, "time", parse_node_time, policy.time)
    if time > capacity_time:
        raise RefusedError(
            f"tenant {name}: time {format_time(time)} is more than the node has, {format_time(capacity_time)}: give"
            f" {format_time(capacity_time)} or less"
        )
    limit = (
        capacity_time
        if policy.time_limit is None
        else _quantity(name, "time_limit", parse_node_time, policy.time_limit)
    )
    if 0 < time < smallest:
        raise RefusedError(
            f"tenant {name}: a guaranteed time of {format_time(time)} is too small to be served: give"
            f" {format_time(smallest)} or more, or none"
        )
    if limit < smallest:
        raise RefusedError(
            f"tenant {name}: a time_limit of {format_time(limit)} leaves it nothing that can be served: give"
            f" {format_time(smallest)} or more"
        )
    if limit < time:
        raise UsageError(
            f"tenant {name}: time_limit {format_time(limit)} is below its guarantee {format_time(time)}: raise"
            " the one or lower the other"
        )
    return Tenant(
        name=name,
        parent=policy.parent,
        time=time,
        memory=_quantity(name, "memory", parse_size, policy.memory) if policy.memory not in (0, "0") else 0,
        time_limit=limit,
        weight=_in_range(f"tenant {name}: weight", policy.weight, 0, _WEIGHT_MAX),
        tier=_in_range(f"tenant {name}: tier", policy.tier, -_TIER_MAX, _TIER_MAX),
        users=_accounts(name, "users", policy.users),
        groups=_accounts(name, "groups", policy.groups),
        source=_source(name, policy.source),
    )


def _quantity(tenant: str, key: str, parsed: Callable[[str], int], given: int | str) -> int:
    try:
        return parsed(str(given))
    except UsageError as error:
        # Which begins with what kind of quantity it is.
        raise UsageError(f"tenant {tenant}: {key} {str(error).partition(' ')[2]}") from None


def _source(tenant: str, given: str) -> str:
    if not _SOURCE.fullmatch(given):
        raise UsageError(f"tenant {tenant}: source {given[:80]!r} is none: give `file`, or `adapter:` and its name")
    return given


class Tenants:
    """All tenants, `default` first. Together they are guaranteed no more than the node has, and no more than their
    parent where they have one."""

    def __init__(
        self,
        path: Path,
        capacity_time: int,
        capacity_memory: int,
        smallest: int = admission.SMALLEST_MILLI,
    ) -> None:
        """Reads the file; an absent one means `default` alone. Raises UsageError with what is wrong in it."""
        self._path = path
        self._capacity_time, self._capacity_memory, self._smallest = capacity_time, capacity_memory, smallest
        self._found: dict[str, Tenant] = {}
        self._parents: dict[str, str] = {}
        self._take(self._read())
        self.changes = 0
        """How often they have changed since."""

    def reload(self, in_use: Collection[str]) -> None:
        """Reads the file again. Raises UsageError or RefusedError, and changes nothing, where something is wrong in it
        or a tenant in use is missing."""
        found = self._read()
        missing = sorted(set(in_use) - set(found) - {DEFAULT})
        if missing:
            raise RefusedError(f"{self._path}: tenant {missing[0]} is gone but has grants: release them first")
        self._take(found)
        self.changes += 1

    def _take(self, found: dict[str, Tenant]) -> None:
        self._found, self._parents = found, parents(found)

    def _read(self) -> dict[str, Tenant]:
        policies = tenants_file.read(self._path)

        def checked() -> dict[str, Tenant]:
            found = {name: self._parse(name, policy) for name, policy in policies.by_name.items()}
            self._check(found)
            return found

        found: dict[str, Tenant] = policies.located(checked)
        return found

    def _parse(self, name: str, policy: TenantPolicy) -> Tenant:
        return parse(name, policy, self._capacity_time, self._smallest)

    def _check(self, found: Mapping[str, Tenant]) -> None:
        """All guarantees must be deliverable at once. `default` is guaranteed the time that the others leave."""
        above = parents(found)
        self._check_sum(
            "tenants",
            [tenant for name, tenant in found.items() if name not in above],
            self._capacity_time,
            self._capacity_memory,
            "the node has",
        )
        for parent in dict.fromkeys(above.values()):
            below = [found[name] for name in found if above.get(name) == parent]
            self._check_sum(f"those below {parent}", below, found[parent].time, found[parent].memory, "it has")

    def _check_sum(self, who: str, tenants: Sequence[Tenant], time: int, memory: int, has: str) -> None:
        asked_time = asked_memory = 0
        for tenant in tenants:
            asked_time += tenant.time if tenant.name != DEFAULT else 0
            asked_memory += tenant.memory
            if asked_time > time:
                raise RefusedError(
                    f"tenant {tenant.name}: with it {who} would be guaranteed {format_time(asked_time)} of time, {has}"
                    f" {format_time(time)}: lower a guarantee"
                )
            if asked_memory > memory:
                raise RefusedError(
                    f"tenant {tenant.name}: with it {who} would be guaranteed {format_size(asked_memory)} of memory,"
                    f" {has} {format_size(memory)}: lower a guarantee"
                )

    def _default(self) -> Tenant:
        """Its time is what no other tenant is guaranteed. Without an entry of its own any user may name it."""
        own = self._found.get(DEFAULT) or Tenant(DEFAULT, None, 0, 0, self._capacity_time, 1, 0, (), (), BUILT_IN)
        named = (tenant for tenant in self._found.values() if tenant.name not in {DEFAULT, *self._parents})
        return replace(own, time=self._capacity_time - sum(tenant.time for tenant in named))

    def parent(self, name: str) -> str | None:
        """The tenant that this one is part of, None: of none."""
        return self._parents.get(name)

    def below(self, name: str) -> list[str]:
        """The tenants that are part of this one, without those that are part of these."""
        return [child for child, parent in self._parents.items() if parent == name]

    def families(self) -> dict[str, tuple[str, ...]]:
        """Of each tenant: itself and all below it."""
        found = {tenant.name: [tenant.name] for tenant in self}
        for name in found:
            above = self._parents.get(name)
            while above is not None:
                found[above].append(name)
                above = self._parents.get(above)
        return {name: tuple(names) for name, names in found.items()}

    def admission(self) -> dict[str, admission.Tenant]:
        """By name, as admission takes them: what is guaranteed to each without what is to those below it."""
        time = {tenant.name: tenant.time for tenant in self}
        memory = {tenant.name: tenant.memory for tenant in self}
        for child, parent in self._parents.items():
            time[parent] -= self._found[child].time
            memory[parent] -= self._found[child].memory
        families = self.families()
        return {
            tenant.name: admission.Tenant(
                tenant.name,
                time[tenant.name],
                memory[tenant.name],
                tenant.time_limit,
                tenant.weight,
                tenant.tier,
                parent=self._parents.get(tenant.name),
                family=families[tenant.name],
            )
            for tenant in self
        }

    def __iter__(self) -> Iterator[Tenant]:
        yield self[DEFAULT]
        for name in sorted(self._found):
            if name != DEFAULT:
                yield self._found[name]

    def __getitem__(self, name: str) -> Tenant:
        """Raises NotFoundError that lists the names there are."""
        if name == DEFAULT:
            return self._default()
        if name in self._found:
            return self._found[name]
        known = ", ".join(tenant.name for tenant in self)
        raise NotFoundError(f"no tenant {name[:80]!r}: there is {known}; root makes one with `gpushare tenants set`")

    def members(self, peer: Peer, name: str) -> tuple[tuple[int | str, ...], tuple[int | str, ...]] | None:
        """Users and groups, one of which a peer must be to name the tenant; None where nobody needs to look."""
        tenant = self._found.get(name)
        if tenant is None or peer.is_root or peer.uid in tenant.users or not (tenant.users or tenant.groups):
            return None
        return tenant.users, tenant.groups

    def named_by(self, peer: Peer, name: str, *, member: bool = False) -> Tenant:
        """The tenant, if this peer may name it. `member`: it is one of `members`. Raises ForbiddenError."""
        tenant = self[name]
        if member or peer.is_root or tenant.source == BUILT_IN or peer.uid in tenant.users:
            return tenant
        raise ForbiddenError(
            f"uid {peer.uid} may not use tenant {name}: ask an administrator to add it to users in {self._path}"
        )

    def set(self, name: str, policy: TenantPolicy) -> Tenant:
        """Makes a tenant or replaces its policy: checks everything, writes the file, then takes effect. Raises
        UsageError or RefusedError."""
        tenant = self._parse(name, policy)
        self._check_owner(name, policy.source)
        changed = {**self._found, name: tenant}
        self._check(changed)
        tenants_file.write(self._path, name, policy)
        self._take(changed)
        self.changes += 1
        return tenant

    def remove(self, name: str, source: str = types.FILE) -> None:
        """Removes it from the file. Raises NotFoundError, UsageError for a built-in one, or RefusedError where others
        are part of it or another than `source` set it."""
        if name not in self._found:
            self[name]  # says which names there are
            raise UsageError(f"tenant {name} is built in: it cannot be removed")
        self._check_owner(name, _source(name, source))
        if below := self.below(name):
            raise RefusedError(f"tenant {name} has others below it ({', '.join(below)[:200]}): remove them first")
        tenants_file.write(self._path, name, None)
        self._take({other: tenant for other, tenant in self._found.items() if other != name})
        self.changes += 1

    def _check_owner(self, name: str, source: str) -> None:
        owner = self._found[name].source if name in self._found else source
        if owner != source:
            raise RefusedError(
                f"tenant {name} was set by {owner}, and {source} may not change it: change it there, or remove it there"
                " first"
            )


def parents(found: Mapping[str, Tenant]) -> dict[str, str]:
    """The parent of each tenant that has one. Raises UsageError for those that make no tree of three levels."""
    result: dict[str, str] = {}
    for name, tenant in found.items():
        by_name = _by_name(name, found)
        asked = tenant.parent
        if asked is not None and name == DEFAULT:
            raise UsageError(f"tenant {name}: it has what no other is guaranteed: leave its parent out")
        if asked == DEFAULT:
            raise UsageError(f"tenant {name}: parent {DEFAULT} has what no other is guaranteed: name another or none")
        if asked is not None and asked not in found:
            raise UsageError(f"tenant {name}: parent {asked[:80]!r} is no tenant: make it first")
        if asked is not None and by_name is not None and asked != by_name:
            raise UsageError(f"tenant {name}: parent {asked!r} is another than its name says: leave it out")
        if asked is not None or by_name is not None:
            result[name] = asked or str(by_name)
    for name in result:
        above, level = result.get(name), 1
        while above is not None:
            level += 1
            if above == name or level > len(found):
                raise UsageError(f"tenant {name}: parent {result[name]!r} is below it")
            above = result.get(above)
        if level > LEVELS:
            raise UsageError(f"tenant {name}: it is on level {level}, and there are {LEVELS}: org, team, user")
    return result


def _by_name(name: str, found: Mapping[str, Tenant]) -> str | None:
    """The nearest tenant whose name is the beginning of this one's."""
    above = name.rpartition("/")[0]
    while above and (above not in found or above == DEFAULT):
        above = above.rpartition("/")[0]
    return above or None
