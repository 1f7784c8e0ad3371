"""Tenants: their guarantees, and the users who may name them. tenants.toml is the only source; comments in it are kept.

[tenants.research]
time = "75%"          # guaranteed, of the node: "600%" is six devices
memory = "8GiB"       # guaranteed, over all devices
users = ["ada", 1007]

[tenants."research/vision"]    # part of research, out of whose guarantee its own comes
time = "25%"
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from gpushare.api import tenants as types
from gpushare.api.tenants import TenantPatch, TenantPolicy
from gpushare.daemon.host.peer import Peer
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError, UsageError
from gpushare.policy.grants import admission
from gpushare.policy.grants.spread import Placement
from gpushare.policy.residency.pool import TenantLimit
from gpushare.tenants import file, quotas
from gpushare.tenants.quotas import BUILT_IN, DEFAULT, Capacity, Tenant
from gpushare.text import names


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
        self._capacity = Capacity(capacity_time, capacity_memory, smallest)
        self._take(self._read())
        self.changes = 0
        """Number of changes since."""

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
        parents = quotas.parents(found)
        self._found, self._parents = found, parents
        self._default = quotas.default(found, parents, self._capacity.time)

    def _read(self) -> dict[str, Tenant]:
        return quotas.read(self._path, self._capacity)

    def _check(self, found: Mapping[str, Tenant]) -> None:
        quotas.check(found, self._capacity)

    def _check_policies(self, policies: Mapping[str, TenantPolicy]) -> None:
        quotas.checked(policies, self._capacity)

    def parent(self, name: str) -> str | None:
        """The tenant that this one is part of, None: of none."""
        return self._parents.get(name)

    def below(self, name: str) -> list[str]:
        """The tenants that are directly part of this one."""
        return [child for child, parent in self._parents.items() if parent == name]

    def placement(self, name: str) -> Placement | None:
        """The placement of the tenant's shares: its own, or of the nearest tenant above it that has one; None: of none.
        An unknown tenant has none."""
        for tenant in self._up(name):
            if tenant.placement is not None:
                return tenant.placement
        return None

    def idle_after_ns(self, name: str) -> int | None:
        """After how long without work memory that the tenant's grants lend counts as idle: its own, or of the nearest
        tenant above it that has one; None: of none. An unknown tenant has none."""
        for tenant in self._up(name):
            if tenant.idle_after_ns is not None:
                return tenant.idle_after_ns
        return None

    def _up(self, name: str) -> Iterator[Tenant]:
        """The tenant and those above it, the nearest first, without unknown ones."""
        above: str | None = name
        while above is not None:
            tenant = self._default if above == DEFAULT else self._found.get(above)
            if tenant is not None:
                yield tenant
            above = self._parents.get(above)

    def host_limits(self, name: str) -> list[TenantLimit]:
        """How much of the host pool the tenant may have, and each above it with all that are part of it."""
        found = list[TenantLimit]()
        above: str | None = name
        while above is not None:
            tenant = self._default if above == DEFAULT else self._found.get(above)
            found.append(TenantLimit(above, tenant.host_memory if tenant is not None else None))
            above = self._parents.get(above)
        return found

    def families(self) -> dict[str, tuple[str, ...]]:
        """For each tenant: itself and all below it."""
        found = {tenant.name: [tenant.name] for tenant in self}
        for name in found:
            above = self._parents.get(name)
            while above is not None:
                found[above].append(name)
                above = self._parents.get(above)
        return {name: tuple(family) for name, family in found.items()}

    def admission(self) -> dict[str, admission.Tenant]:
        """Tenants by name, as admission takes them: guarantees exclude those of the tenants below."""
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
                rest=tenant.name == DEFAULT,
            )
            for tenant in self
        }

    def __iter__(self) -> Iterator[Tenant]:
        yield self[DEFAULT]
        for name in sorted(self._found):
            if name != DEFAULT:
                yield self._found[name]

    def __getitem__(self, name: str) -> Tenant:
        """The tenant. Raises NotFoundError, which lists the names there are."""
        name = names.composed(name)
        if name == DEFAULT:
            return self._default
        if name in self._found:
            return self._found[name]
        known = ", ".join(tenant.name for tenant in self)
        raise NotFoundError(f"no tenant {name[:80]!r}: there is {known}; root makes one with `gpushare tenants set`")

    def members(self, peer: Peer, name: str) -> tuple[tuple[int | str, ...], tuple[int | str, ...]] | None:
        """Users and groups that may name the tenant; None where no lookup is needed."""
        tenant = self._found.get(names.composed(name))
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
        tenant = quotas.parse(name, policy, self._capacity.time, self._capacity.smallest)
        self._check_owner(name, policy.source)
        changed = {**self._found, name: tenant}
        self._check(changed)
        file.write(self._path, name, policy, self._check_policies)
        self._take(changed)
        self.changes += 1
        return tenant

    def change(self, name: str, patch: TenantPatch) -> tuple[TenantPolicy | None, TenantPolicy]:
        """Changes what the patch names, of the tenant as the file has it, or makes it. Returns the policy that was in
        force, None where there was no such entry, and the one that is now. Raises UsageError or RefusedError."""
        self._check_owner(names.tenant(name), quotas.check_source(name, patch.source))
        before = self._found.get(name)
        written, policy = file.patched(self._path, name, patch)
        if before is not None and written is None:
            raise RefusedError(
                f"tenant {name} is in force, but gone from {self._path}: first have the daemon read it again (SIGHUP)"
            )
        tenant = quotas.parse(name, policy, self._capacity.time, self._capacity.smallest)
        if (written, before) != (policy, tenant):
            self.set(name, policy)
        was = quotas.policy_of(before, self._capacity.time) if before is not None else None
        return was, quotas.policy_of(tenant, self._capacity.time)

    def remove(self, name: str, source: str = types.FILE) -> None:
        """Removes it from the file. Raises NotFoundError, UsageError for a built-in one, or RefusedError where others
        are part of it or another than `source` set it."""
        if name not in self._found:
            self[name]  # says which names there are
            raise UsageError(f"tenant {name} is built in: it cannot be removed")
        self._check_owner(name, quotas.check_source(name, source))
        if below := self.below(name):
            raise RefusedError(f"tenant {name} has others below it ({', '.join(below)[:200]}): remove them first")
        file.write(self._path, name, None, self._check_policies)
        self._take({other: tenant for other, tenant in self._found.items() if other != name})
        self.changes += 1

    def _check_owner(self, name: str, source: str) -> None:
        owner = self._found[name].source if name in self._found else source
        if owner != source:
            raise RefusedError(
                f"tenant {name} was set by {owner}, and {source} may not change it: change it there, or remove it there"
                " first"
            )
