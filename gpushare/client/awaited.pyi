"""The verbs, each to be awaited.

Made from gpushare/client/verbs.py by scripts/pages. Change it there, then run make pages.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from gpushare.client import types

class AwaitedVerbs:
    async def call(self, method: str, target: str, body: Any = None) -> Any:
        """The decoded JSON answer, None for an empty one."""

    async def version(self) -> types.Version:
        """A Version."""

    async def node(self) -> types.Node:
        """A Node."""

    async def devices(self) -> list[types.Device]:
        """A list of Device."""

    async def tenants(self) -> list[types.Tenant]:
        """A list of Tenant."""

    async def grants(self, *, ended: bool = False, key_prefix: str = "") -> list[types.Grant]:
        """A list of Grant; with `ended` also those that ended most recently. `key_prefix`: only those whose key
        begins with it."""

    async def grant(self, grant_id: str) -> types.Grant:
        """A Grant, also one that has ended. Raises NotFoundError."""

    async def debug(self, grant_id: str) -> types.GrantDebug:
        """A GrantDebug: the grant's pages, and the last events of its processes."""

    async def plan(self, **request: Unpack[types.GrantRequest]) -> types.Plan:
        """A Plan of what `create` would do; changes nothing."""

    async def bind(
        self, grant_id: str, kind: types.Kind, *, pid: int | None = None, uid: int | None = None, gid: int | None = None
    ) -> types.Binding:
        """A Binding, of this process (`process`) or for a `container`. `pid`, `uid`, `gid`: as in BindRequest.

        Raises RefusedError where the grant is in use."""

    async def resize(self, grant_id: str, **change: Unpack[types.GrantChange]) -> types.Grant:
        """The Grant after the change. Fields of GrantChange; None is left out. Raises RefusedError."""

    async def release(self, grant_id: str) -> types.Grant:
        """Ends a grant and kills what runs in it. The Grant as it ended."""

    async def suspend(self, grant_id: str, *, hold: bool = False) -> types.Grant:
        """The Grant, whose memory begins to move to host memory. `hold`: until `resume`, whatever its programs call.
        Raises CannotMoveError."""

    async def resume(self, grant_id: str) -> types.Grant:
        """The Grant, whose memory begins to move back to its device as soon as there is room."""

    async def attach(self, grant_id: str, **request: Unpack[types.AttachRequest]) -> types.Attached:
        """An Attached, with the ticket by which another machine uses the grant; fields of AttachRequest, None is
        left out. Raises RefusedError where the grant cannot be attached now."""

    async def detach(self, grant_id: str, attachment: str) -> None:
        """Ends an attachment. Raises NotFoundError for one that has ended."""

    async def remote(self, *, since: int | None = None, grant: str | None = None) -> types.Remote:
        """A Remote, as `GET /v1/remote` takes these; None is left out. `since`: wall time in ns."""

    async def gangs(self) -> list[types.GangPart]:
        """A list of GangPart: parts that gangs across nodes have on this node, or had recently."""

    async def create(
        self, *, wait_seconds: float = 0, asker: str = "", **request: Unpack[types.GrantRequest]
    ) -> types.Grant:
        """Creates a grant from fields of GrantRequest; None is left out. `class_` is sent as `class`.
        `wait_seconds`: how long to retry while room is made: what others have on loan is asked back, what nobody
        uses is moved away. `asker`: tells the request from equal ones, for a caller who repeats it, too.

        Raises LaterError when that time has passed, and RefusedError where the grant cannot be had."""

    async def prepare(
        self,
        gang: str,
        grants: Sequence[types.GrantRequest],
        *,
        wait_seconds: float = 0,
        part: str | None = None,
        ttl_seconds: int | None = None,
        uid: int | None = None,
    ) -> types.GangPart:
        """A GangPart: room for all these grants, each with fields of GrantRequest, or for none. `part`,
        `ttl_seconds`, `uid`: as in GangPrepare. Nothing runs in it before it is committed. `wait_seconds`: as
        `create` takes it.

        Raises RefusedError where it does not fit, LaterError where a later retry will fit, and GoneError where it
        was aborted or has expired."""

    async def commit(self, gang: str, *, part: str | None = None, uid: int | None = None) -> types.GangPart:
        """The GangPart, whose grants may be used from now on. `part`, `uid`: as they were prepared. Raises
        NotFoundError, or GoneError where it was aborted or has expired."""

    async def abort(self, gang: str, *, part: str | None = None, uid: int | None = None) -> types.GangPart:
        """The GangPart, which holds nothing from now on and cannot be prepared again. `part`, `uid`: as for
        `commit`. Raises RefusedError where it is committed."""

    async def set_tenant(self, name: str, policy: types.TenantPolicy) -> types.Tenant:
        """Makes a tenant or replaces its whole policy (a TenantPolicy). The Tenant. For root only."""

    async def change_tenant(self, name: str, patch: types.TenantPatch) -> types.TenantChange:
        """Changes what `patch` names of a tenant's policy, or makes the tenant. The TenantChange. For root only."""

    async def remove_tenant(self, name: str, source: str = "") -> None:
        """Removes a tenant. Raises RefusedError where it has grants, tenants below it, or another `source`. For root
        only."""

    async def usage(
        self,
        *,
        by: types.By | None = None,
        since: int | None = None,
        until: int | None = None,
        tenant: str | None = None,
        cuts: str | None = None,
    ) -> types.Usage:
        """A Usage, as `GET /v1/usage` takes these; None is left out. `since`, `until`: wall time in ns."""

    async def usage_slots(
        self,
        *,
        since: int | None = None,
        until: int | None = None,
        unit: types.Unit | None = None,
        each: types.Each | None = None,
    ) -> types.UsageSlots:
        """A UsageSlots, as `GET /v1/usage/slots` takes these; None is left out. `since`, `until`: wall time in ns."""

    async def drain(self, device: str, reason: str = "") -> types.Device:
        """The Device, which takes no new grants from now on. For root only. Raises NotFoundError."""

    async def undrain(self, device: str) -> types.Device:
        """The Device, which takes grants again. For root only. Raises NotFoundError."""

    async def sim_stats(self) -> dict[str, Any]:
        """The simulator's own books. Raises NotFoundError where the devices are real."""

    async def set_sim_lost(self, device: int, *, lost: bool) -> None:
        """Lets a simulated device, by its index, stop working or work again. For root only."""
