"""Changes of tenants: by administrators, and in the file that they write by hand."""

import logging
from collections.abc import Sequence

import msgspec

from gpushare.api import tenants as tenant_types
from gpushare.api.types import Name
from gpushare.daemon.grants import view
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.state.state import State
from gpushare.daemon.state.watch import Change
from gpushare.errors import GpushareError, RefusedError
from gpushare.text import names

log = logging.getLogger(__name__)

_ByName = dict[str, tenant_types.Tenant]


class Tenancy:
    """Belongs to the event loop. `lookups`: for the user database, whose slowness must not delay bundles."""

    def __init__(self, state: State, serving: Serving, lookups: Readers) -> None:
        self._state, self._serving, self._lookups = state, serving, lookups

    def by_name(self) -> _ByName:
        """All tenants as they are now."""
        return {tenant.name: tenant for tenant in view.tenant_views(self._state)}

    async def is_member(self, peer: Peer, tenant: str) -> bool:
        """Whether the tenants file names this peer, by a name that has to be looked up. Raises FailedError."""
        wanted = self._state.tenants.members(peer, tenant)
        return wanted is not None and await self._lookups.is_member(peer.uid, peer.gid, *wanted)

    def set(self, name: str, policy: tenant_types.TenantPolicy) -> tenant_types.Tenant:
        """Makes a tenant or replaces its policy. Raises UsageError or RefusedError for what cannot be promised."""
        name, before = names.composed(name), self.by_name()
        self._state.tenants.set(name, policy)
        return self._set(name, before)

    async def change(self, name: str, patch: tenant_types.TenantPatch) -> tenant_types.TenantChange:
        """Changes what the patch names, or makes the tenant. Raises UsageError or RefusedError."""
        name, before, changes = names.composed(name), self.by_name(), self._state.tenants.changes
        was, now = self._state.tenants.change(name, patch)
        is_changed = self._state.tenants.changes != changes
        shown = self._set(name, before) if is_changed else view.tenant_view(name, self._state)
        try:
            unknown = await self._lookups.unknown(*map(_names, (patch.users, patch.groups)))
        except GpushareError as error:
            log.info("tenant %s: %s", name, error)
            unknown = None
        return tenant_types.TenantChange(tenant=shown, before=was, after=now, unknown=unknown)

    def _set(self, name: str, before: _ByName) -> tenant_types.Tenant:
        """Lets a tenant's new policy take effect. `before`: all tenants as they were."""
        self._serving.refresh_shares()
        shown = view.tenant_view(name, self._state)
        self._state.watch.publish("tenant", "changed" if name in before else "added", lambda _: shown)
        self.publish({**before, name: shown})
        return shown

    def remove(self, name: str, source: str = tenant_types.FILE) -> None:
        """Removes a tenant. Raises NotFoundError, or RefusedError where it has grants."""
        name = names.composed(name)
        users = [live.id for live in self._state if live.record.tenant == name]
        if users and name != "default":
            raise RefusedError(f"tenant {name} has {len(users)} grants ({users[0]}, ...): release them first")
        shown = view.tenant_view(name, self._state)
        self._state.tenants.remove(name, source)
        self._serving.refresh_shares()
        self._state.watch.publish("tenant", "removed", lambda _: shown)

    def reload(self) -> None:
        """Reads tenants.toml again after an administrator has changed it. Grants keep their reservations as far as
        their tenant's guarantee still covers them; a larger guarantee takes effect at once."""
        before = self.by_name()
        try:
            self._state.tenants.reload({live.record.tenant for live in self._state})
        except GpushareError as error:
            log.warning("the tenants stay as they were: %s", error)
            return
        self._serving.refresh_shares()
        after = self.by_name()
        for name in sorted({*before, *after}):
            old, new = before.get(name), after.get(name)
            if _policy(old) != _policy(new):
                change: Change = "changed" if old and new else "added" if new else "removed"
                self._state.watch.publish("tenant", change, lambda _, shown=new or old: shown)  # type: ignore[misc]
        log.info("%d tenants are read", len(after))

    def publish(self, before: _ByName) -> None:
        """Publishes every tenant that has more or less than before."""
        for tenant in view.tenant_views(self._state):
            old = before.get(tenant.name)
            if old is None or old.have == tenant.have or not (old.degraded or tenant.degraded):
                continue
            name: Name = "QuotaDegraded" if tenant.degraded else "QuotaRestored" if old.degraded else ""
            self._state.watch.publish("tenant", "changed", lambda _, shown=tenant: shown, name)  # type: ignore[misc]


def _names(given: Sequence[int | str] | msgspec.UnsetType | None) -> list[str]:
    """Those that are names: a number need not have an account."""
    return [one for one in given or () if isinstance(one, str)]


def _policy(tenant: tenant_types.Tenant | None) -> dict[str, object]:
    """What an administrator has set for the tenant, and what is left of it, without its momentary state."""
    return {} if tenant is None else {**msgspec.structs.asdict(tenant), "now": None}
