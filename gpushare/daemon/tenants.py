"""Tenants: their guarantees, and the users who may name them. tenants.toml is the only source; comments in it are kept.

[tenants.research]
time = "75%"          # guaranteed, of the node: "600%" is six devices
memory = "8GiB"       # guaranteed, over all devices
users = ["ada", 1007]
"""

import os
import re
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gpushare.api import types
from gpushare.api.types import TenantPolicy
from gpushare.daemon.config import read_toml
from gpushare.daemon.peer import Peer
from gpushare.errors import FailedError, ForbiddenError, GpushareError, NotFoundError, RefusedError, UsageError
from gpushare.policy import admission
from gpushare.units import format_size, format_time, parse_node_time, parse_size

DEFAULT = "default"
_NAME = re.compile(types.TENANT_NAME, re.ASCII)
_ACCOUNT = re.compile(types.ACCOUNT, re.ASCII)
_WEIGHT_MAX = 1_000_000
_TIER_MAX = 1000


@dataclass(frozen=True, slots=True)
class Tenant:
    """`time`, `time_limit`: milli of the node. `memory`: bytes guaranteed over all devices."""

    name: str
    time: int
    memory: int
    time_limit: int
    weight: int
    tier: int
    users: tuple[int | str, ...]
    groups: tuple[int | str, ...]
    source: str


def check_name(name: str) -> str:
    """The name itself. Raises UsageError for one that cannot be a tenant's."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"tenant {name[:80]!r} is not a name: use lower-case letters, digits, '.', '_', '-', and '/' between levels"
        )
    return name


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
    check_name(name)
    time = parse_node_time(str(policy.time))
    limit = capacity_time if policy.time_limit is None else parse_node_time(str(policy.time_limit))
    if 0 < time < smallest:
        raise RefusedError(
            f"tenant {name}: a guarantee of {format_time(time)} is too small to be served: give {format_time(smallest)}"
            " or more, or none"
        )
    if limit < smallest:
        raise RefusedError(
            f"tenant {name}: a time_limit of {format_time(limit)} leaves it nothing that can be served: give"
            f" {format_time(smallest)} or more"
        )
    if limit < time:
        raise UsageError(f"tenant {name}: time_limit {format_time(limit)} is below its guarantee {format_time(time)}")
    return Tenant(
        name=name,
        time=time,
        memory=parse_size(str(policy.memory)) if policy.memory not in (0, "0") else 0,
        time_limit=limit,
        weight=_in_range(f"tenant {name}: weight", policy.weight, 0, _WEIGHT_MAX),
        tier=_in_range(f"tenant {name}: tier", policy.tier, -_TIER_MAX, _TIER_MAX),
        users=_accounts(name, "users", policy.users),
        groups=_accounts(name, "groups", policy.groups),
        source="file",
    )


class Tenants:
    """All tenants, `default` first. Together they are guaranteed no more than the node has."""

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
        self._found = self._read()
        self.changes = 0
        """How often they have changed since."""

    def reload(self, in_use: Collection[str]) -> None:
        """Reads the file again. Raises UsageError or RefusedError, and changes nothing, where something is wrong in it
        or a tenant in use is missing."""
        found = self._read()
        missing = sorted(set(in_use) - set(found) - {DEFAULT})
        if missing:
            raise RefusedError(f"{self._path}: tenant {missing[0]} is gone but has grants: release them first")
        self._found = found
        self.changes += 1

    def _read(self) -> dict[str, Tenant]:
        path = self._path
        try:
            document = read_toml(path)
        except FileNotFoundError:
            document = {}
        unknown = sorted(set(document) - {"tenants"})
        if unknown:
            raise UsageError(f"{path}: unknown {unknown[0]!r}: tenants are written as [tenants.NAME]")
        try:
            policies = msgspec.convert(document.get("tenants", {}), dict[str, TenantPolicy])
        except msgspec.ValidationError as error:
            raise UsageError(f"{path}: {error}") from None
        try:
            found = {name: self._parse(name, policy) for name, policy in policies.items()}
            self._check_sum(found)
        except GpushareError as error:
            raise type(error)(f"{path}: {error}") from None
        return found

    def _parse(self, name: str, policy: TenantPolicy) -> Tenant:
        return parse(name, policy, self._capacity_time, self._smallest)

    def _check_sum(self, found: dict[str, Tenant]) -> None:
        """All guarantees must be deliverable at once. `default` is guaranteed the time that the others leave."""
        named = [tenant for tenant in found.values() if tenant.name != DEFAULT]
        time = sum(tenant.time for tenant in named)
        memory = sum(tenant.memory for tenant in found.values())
        if time > self._capacity_time:
            raise RefusedError(
                f"tenants would be guaranteed {format_time(time)} of time, the node has "
                f"{format_time(self._capacity_time)}: lower a guarantee"
            )
        if memory > self._capacity_memory:
            raise RefusedError(
                f"tenants would be guaranteed {format_size(memory)} of memory, the node has "
                f"{format_size(self._capacity_memory)}: lower a guarantee"
            )

    def _default(self) -> Tenant:
        """Its time is what no other tenant is guaranteed. Without an entry of its own any user may name it."""
        own = self._found.get(DEFAULT) or Tenant(DEFAULT, 0, 0, self._capacity_time, 1, 0, (), (), "built-in")
        left = self._capacity_time - sum(tenant.time for tenant in self._found.values() if tenant.name != DEFAULT)
        return replace(own, time=left)

    def admission(self) -> dict[str, admission.Tenant]:
        """By name, as admission takes them."""
        return {
            tenant.name: admission.Tenant(
                tenant.name, tenant.time, tenant.memory, tenant.time_limit, tenant.weight, tenant.tier
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
        if member or peer.is_root or tenant.source == "built-in" or peer.uid in tenant.users:
            return tenant
        raise ForbiddenError(
            f"uid {peer.uid} may not use tenant {name}: ask an administrator to add it to users in {self._path}"
        )

    def set(self, name: str, policy: TenantPolicy) -> Tenant:
        """Makes a tenant or replaces its policy: checks everything, writes the file, then takes effect. Raises
        UsageError or RefusedError."""
        tenant = self._parse(name, policy)
        changed = {**self._found, name: tenant}
        self._check_sum(changed)
        self._write(name, policy)
        self._found = changed
        self.changes += 1
        return tenant

    def remove(self, name: str) -> None:
        """Removes it from the file. Raises NotFoundError, or UsageError for a built-in one."""
        if name not in self._found:
            self[name]  # says which names there are
            raise UsageError(f"tenant {name} is built in: it cannot be removed")
        self._write(name, None)
        del self._found[name]
        self.changes += 1

    def _write(self, name: str, policy: TenantPolicy | None) -> None:
        # Costs 30 ms to import and is needed by administrators' calls only.
        import tomlkit

        # It may have been edited by hand since it was read.
        try:
            document = tomlkit.parse(self._path.read_text() if self._path.exists() else "")
        except (OSError, ValueError) as error:
            raise UsageError(f"{self._path}: {error}: mend it first, nothing was changed") from None
        tables = document.setdefault("tenants", tomlkit.table(is_super_table=True))
        if not isinstance(tables, MutableMapping):
            raise UsageError(f"{self._path}: tenants is not a table: mend it first, nothing was changed")
        if policy is None:
            tables.pop(name, None)
        else:
            fresh = tables.get(name)
            if not isinstance(fresh, MutableMapping):
                fresh = tomlkit.table()
            values = msgspec.to_builtins(policy)
            for key in list(fresh):
                if key not in values:
                    del fresh[key]
            for key, value in values.items():
                fresh[key] = value
            tables[name] = fresh
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "w", opener=lambda path, flags: os.open(path, flags, 0o644)) as file:
                file.write(tomlkit.dumps(document))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            raise FailedError(f"{self._path} cannot be written ({error.strerror}): nothing was changed") from None
