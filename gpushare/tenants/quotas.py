"""What tenants are promised. Checks each policy, the tree that they form, and that all guarantees can be met at
once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpushare.api import tenants as types
from gpushare.api.tenants import TenantPolicy
from gpushare.errors import RefusedError, UsageError
from gpushare.policy.grants import admission
from gpushare.policy.grants.spread import Placement
from gpushare.tenants import file
from gpushare.text import names
from gpushare.text.units import (
    IDLE_SECONDS_MAX,
    IDLE_SECONDS_MIN,
    format_size,
    format_time,
    milli_of,
    parse_node_time,
    size_of,
)

DEFAULT = "default"
BUILT_IN = "built-in"
_ACCOUNT = re.compile(types.ACCOUNT, re.ASCII)
_SOURCE = re.compile(types.SOURCE, re.ASCII)
LEVELS = 3
"""Levels of nested tenants: org, team, user."""
_WEIGHT_MAX = 1_000_000
_TIER_MAX = 1000


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node has to promise: milli, bytes. `smallest`: smallest share that can be served, in milli."""

    time: int
    memory: int
    smallest: int = admission.SMALLEST_MILLI


@dataclass(frozen=True, slots=True)
class Tenant:
    """`time`, `time_limit`: milli of the node. `memory`: bytes guaranteed over all devices. All three are for it and
    those below it. `parent`: as configured; `parents` returns the effective one. `placement`: None: as of the one above
    it, or of the node; so is `idle_after_ns`. `host_memory`: bytes; None: no limit."""

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
    placement: Placement | None = None
    host_memory: int | None = None
    idle_after_ns: int | None = None


def _accounts(tenant: str, what: str, given: Sequence[int | str]) -> tuple[int | str, ...]:
    """Checks that these are names and numbers that a user database can have: any other would match nobody."""
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
    """The checked tenant. Raises UsageError, or RefusedError for what cannot be served. `capacity_time`: the node's,
    which is the limit of a tenant without one. `smallest`: smallest share that can be served."""
    names.tenant(name)
    time = _quantity(name, "time", _node_time, policy.time)
    if time > capacity_time:
        raise RefusedError(
            f"tenant {name}: time {format_time(time)} is more than the node has, {format_time(capacity_time)}: give"
            f" {format_time(capacity_time)} or less"
        )
    limit = capacity_time if policy.time_limit is None else _quantity(name, "time_limit", _node_time, policy.time_limit)
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
        parent=None if policy.parent is None else names.composed(policy.parent),
        time=time,
        memory=_memory(name, "memory", policy.memory),
        time_limit=limit,
        weight=_in_range(f"tenant {name}: weight", policy.weight, 0, _WEIGHT_MAX),
        tier=_in_range(f"tenant {name}: tier", policy.tier, -_TIER_MAX, _TIER_MAX),
        users=_accounts(name, "users", policy.users),
        groups=_accounts(name, "groups", policy.groups),
        source=check_source(name, policy.source),
        placement=policy.placement,
        host_memory=_memory(name, "host_memory", policy.host_memory) if policy.host_memory is not None else None,
        idle_after_ns=_idle_after(name, policy.idle_after_seconds),
    )


def policy_of(tenant: Tenant, capacity_time: int) -> TenantPolicy:
    """The policy that `parse` makes this tenant of, with time in milli and memory in bytes."""
    return TenantPolicy(
        parent=tenant.parent,
        time=tenant.time,
        memory=tenant.memory,
        time_limit=tenant.time_limit if tenant.time_limit != capacity_time else None,
        weight=tenant.weight,
        tier=tenant.tier,
        users=[*tenant.users],
        groups=[*tenant.groups],
        placement=tenant.placement,
        host_memory=tenant.host_memory,
        idle_after_seconds=tenant.idle_after_ns / 1e9 if tenant.idle_after_ns is not None else None,
        source=tenant.source,
    )


def _idle_after(tenant: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not IDLE_SECONDS_MIN <= seconds <= IDLE_SECONDS_MAX:
        raise UsageError(
            f"tenant {tenant}: idle_after_seconds {seconds:g} is out of range: give {IDLE_SECONDS_MIN:g} to"
            f" {IDLE_SECONDS_MAX}"
        )
    return round(seconds * 1e9)


def _memory(tenant: str, key: str, given: int | str) -> int:
    return _quantity(tenant, key, size_of, given) if given not in (0, "0") else 0


def _node_time(given: int | str) -> int:
    return milli_of(given, parse_node_time)


def _quantity(tenant: str, key: str, parsed: Callable[[int | str], int], given: int | str) -> int:
    try:
        return parsed(given)
    except UsageError as error:
        # The message begins with the kind of quantity.
        raise UsageError(f"tenant {tenant}: {key} {str(error).partition(' ')[2]}") from None


def check_source(tenant: str, given: str) -> str:
    """The source itself. Raises UsageError for an invalid one."""
    if not _SOURCE.fullmatch(given):
        raise UsageError(f"tenant {tenant}: source {given[:80]!r} is none: give `file`, or `adapter:` and its name")
    return given


def read(path: Path, capacity: Capacity) -> dict[str, Tenant]:
    """All tenants of the file, none where there is no file. Raises UsageError or RefusedError with file and line."""
    policies = file.read(path)
    found: dict[str, Tenant] = policies.located(lambda: checked(policies.by_name, capacity))
    return found


def checked(policies: Mapping[str, TenantPolicy], capacity: Capacity) -> dict[str, Tenant]:
    """The tenants that these policies make. Raises UsageError or RefusedError where they may not all be."""
    found = {name: parse(name, policy, capacity.time, capacity.smallest) for name, policy in policies.items()}
    check(found, capacity)
    return found


def check(found: Mapping[str, Tenant], capacity: Capacity) -> None:
    """Raises UsageError where the parents form no tree, and RefusedError unless all guarantees can be met at once.
    `default` is guaranteed the time that the others leave."""
    above = parents(found)
    whole = [tenant for name, tenant in found.items() if name not in above]
    _check_sum("tenants", whole, capacity.time, capacity.memory, "the node has")
    for parent in dict.fromkeys(above.values()):
        below = [found[name] for name in found if above.get(name) == parent]
        _check_sum(f"those below {parent}", below, found[parent].time, found[parent].memory, "it has")


def _check_sum(who: str, tenants: Sequence[Tenant], time: int, memory: int, has: str) -> None:
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


def default(found: Mapping[str, Tenant], above: Mapping[str, str], capacity_time: int) -> Tenant:
    """The tenant `default`: its time is what no other is guaranteed. Without an entry of its own any user may name it.
    `above`: parents by tenant."""
    own = found.get(DEFAULT) or Tenant(DEFAULT, None, 0, 0, capacity_time, 1, 0, (), (), BUILT_IN)
    named = (tenant for tenant in found.values() if tenant.name not in {DEFAULT, *above})
    return replace(own, time=capacity_time - sum(tenant.time for tenant in named))


def parents(found: Mapping[str, Tenant]) -> dict[str, str]:
    """The parent of each tenant that has one. Raises UsageError unless they form a tree of at most LEVELS levels."""
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
    """The nearest tenant, other than `default`, whose name is a path prefix of this one."""
    above = name.rpartition("/")[0]
    while above and (above not in found or above == DEFAULT):
        above = above.rpartition("/")[0]
    return above or None
