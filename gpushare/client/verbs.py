"""The verbs of the node API, shared by both clients: gpushare.client, which blocks, and gpushare.aio, to be awaited."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from gpushare.errors import GoneError, GpushareError, LaterError, MakingRoomError, UsageError

if TYPE_CHECKING:
    from typing import Unpack

    from gpushare.client import types

ASK_AGAIN_SECONDS = 0.1
_PAUSES = 0.05, 2.0
"""Shortest and longest time until a request is repeated, where the daemon estimates when it will fit."""

# Of names that are not UTF-8, the bytes are sent as they are: the daemon's answer names what is wrong with them.


def segment(name: str) -> str:
    """A name as a segment of a target."""
    return quote(name, safe="", errors="surrogateescape")


def query_of(given: Mapping[str, object]) -> str:
    """The query of a target."""
    return urlencode(given, errors="surrogateescape")


def encoded(body: Any) -> bytes:
    """A body as JSON. Raises UsageError for text that is not UTF-8."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        shown = error.object[max(0, error.start - 20) : error.end].encode("utf-8", "backslashreplace").decode()
        raise UsageError(f"the request is not UTF-8 after '{shown}': write it in UTF-8") from None


class Verbs:
    """Each verb returns what `call` does: JSON objects as plain dicts of gpushare.client.types, or an awaitable of
    them (gpushare/client/awaited.pyi). Each raises the GpushareError with which the daemon answered, or
    UnreachableError."""

    def call(self, method: str, target: str, body: Any = None) -> Any:
        """The decoded JSON answer, None for an empty one."""
        raise NotImplementedError

    def _field(self, name: str, target: str) -> Any:
        """One field of the answer to a GET."""
        raise NotImplementedError

    def version(self) -> "types.Version":
        """A Version."""
        return self.call("GET", "/v1/version")

    def node(self) -> "types.Node":
        """A Node."""
        return self.call("GET", "/v1/node")

    def devices(self) -> "list[types.Device]":
        """A list of Device."""
        return self._field("devices", "/v1/devices")

    def tenants(self) -> "list[types.Tenant]":
        """A list of Tenant."""
        return self._field("tenants", "/v1/tenants")

    def grants(self, *, ended: bool = False, key_prefix: str = "") -> "list[types.Grant]":
        """A list of Grant; with `ended` also those that ended most recently. `key_prefix`: only those whose key begins
        with it."""
        query = query_of({**({"ended": 1} if ended else {}), **({"key_prefix": key_prefix} if key_prefix else {})})
        return self._field("grants", f"/v1/grants?{query}" if query else "/v1/grants")

    def grant(self, grant_id: str) -> "types.Grant":
        """A Grant, also one that has ended. Raises NotFoundError."""
        return self.call("GET", f"/v1/grants/{segment(grant_id)}")

    def debug(self, grant_id: str) -> "types.GrantDebug":
        """A GrantDebug: the grant's pages, and the last events of its processes."""
        return self.call("GET", f"/v1/grants/{segment(grant_id)}/debug")

    def plan(self, **request: "Unpack[types.GrantRequest]") -> "types.Plan":
        """A Plan of what `create` would do; changes nothing."""
        return self.call("POST", "/v1/plan", fields(request))

    def bind(
        self,
        grant_id: str,
        kind: "types.Kind",
        *,
        pid: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> "types.Binding":
        """A Binding, of this process (`process`) or for a `container`. `pid`, `uid`, `gid`: as in BindRequest.

        Raises RefusedError where the grant is in use.
        """
        body = fields({"kind": kind, "pid": pid, "uid": uid, "gid": gid})
        return self.call("POST", f"/v1/grants/{segment(grant_id)}/bind", body)

    def resize(self, grant_id: str, **change: "Unpack[types.GrantChange]") -> "types.Grant":
        """The Grant after the change. Fields of GrantChange; None is left out. Raises RefusedError."""
        body = {name: value for name, value in change.items() if value is not None}
        return self.call("PATCH", f"/v1/grants/{segment(grant_id)}", body)

    def release(self, grant_id: str) -> "types.Grant":
        """Ends a grant and kills what runs in it. The Grant as it ended."""
        return self.call("DELETE", f"/v1/grants/{segment(grant_id)}")

    def suspend(self, grant_id: str, *, hold: bool = False) -> "types.Grant":
        """The Grant, whose memory begins to move to host memory. `hold`: until `resume`, whatever its programs call.
        Raises CannotMoveError."""
        return self.call("POST", f"/v1/grants/{segment(grant_id)}:suspend", {"hold": hold})

    def resume(self, grant_id: str) -> "types.Grant":
        """The Grant, whose memory begins to move back to its device as soon as there is room."""
        return self.call("POST", f"/v1/grants/{segment(grant_id)}:resume")

    def attach(self, grant_id: str, **request: "Unpack[types.AttachRequest]") -> "types.Attached":
        """An Attached, with the ticket by which another machine uses the grant; fields of AttachRequest, None is left
        out. Raises RefusedError where the grant cannot be attached now."""
        return self.call("POST", f"/v1/grants/{segment(grant_id)}/attachments", fields(request))

    def detach(self, grant_id: str, attachment: str) -> None:
        """Ends an attachment. Raises NotFoundError for one that has ended."""
        return self.call("DELETE", f"/v1/grants/{segment(grant_id)}/attachments/{segment(attachment)}")

    def remote(self, *, since: int | None = None, grant: str | None = None) -> "types.Remote":
        """A Remote, as `GET /v1/remote` takes these; None is left out. `since`: wall time in ns."""
        query = query_of(fields({"since": since, "grant": grant}))
        return self.call("GET", f"/v1/remote?{query}" if query else "/v1/remote")

    def gangs(self) -> "list[types.GangPart]":
        """A list of GangPart: parts that gangs across nodes have on this node, or had recently."""
        return self._field("parts", "/v1/gangs")

    def create(
        self, *, wait_seconds: float = 0, asker: str = "", **request: "Unpack[types.GrantRequest]"
    ) -> "types.Grant":
        """Creates a grant from fields of GrantRequest; None is left out. `class_` is sent as `class`. `wait_seconds`:
        how long to retry while room is made: what others have on loan is asked back, what nobody uses is moved away.
        `asker`: tells the request from equal ones, for a caller who repeats it, too.

        Raises LaterError when that time has passed, and RefusedError where the grant cannot be had.
        """
        if not asker and wait_seconds > 0 and request.get("key") is None:  # a key tells it from others
            asker = new_asker()
        target = f"/v1/grants?asker={segment(asker)}" if asker else "/v1/grants"
        return self._repeated(target, fields(request), Patience(wait_seconds))

    def prepare(
        self,
        gang: str,
        grants: "Sequence[types.GrantRequest]",
        *,
        wait_seconds: float = 0,
        part: str | None = None,
        ttl_seconds: int | None = None,
        uid: int | None = None,
    ) -> "types.GangPart":
        """A GangPart: room for all these grants, each with fields of GrantRequest, or for none. `part`, `ttl_seconds`,
        `uid`: as in GangPrepare. Nothing runs in it before it is committed. `wait_seconds`: as `create` takes it.

        Raises RefusedError where it does not fit, LaterError where a later retry will fit, and GoneError where it was
        aborted or has expired.
        """
        body = {
            "grants": [fields(grant) for grant in grants],
            **fields({"part": part, "ttl_seconds": ttl_seconds, "uid": uid}),
        }
        return self._repeated(f"/v1/gangs/{segment(gang)}/prepare", body, Patience(wait_seconds))

    def _repeated(self, target: str, body: Any, patience: "Patience") -> Any:
        """A POST that is repeated while it is answered that a later one will be accepted."""
        raise NotImplementedError

    def commit(self, gang: str, *, part: str | None = None, uid: int | None = None) -> "types.GangPart":
        """The GangPart, whose grants may be used from now on. `part`, `uid`: as they were prepared. Raises
        NotFoundError, or GoneError where it was aborted or has expired."""
        return self.call("POST", f"/v1/gangs/{segment(gang)}/commit", fields({"part": part, "uid": uid}))

    def abort(self, gang: str, *, part: str | None = None, uid: int | None = None) -> "types.GangPart":
        """The GangPart, which holds nothing from now on and cannot be prepared again. `part`, `uid`: as for `commit`.
        Raises RefusedError where it is committed."""
        return self.call("POST", f"/v1/gangs/{segment(gang)}/abort", fields({"part": part, "uid": uid}))

    def set_tenant(self, name: str, policy: "types.TenantPolicy") -> "types.Tenant":
        """Makes a tenant or replaces its whole policy (a TenantPolicy). The Tenant. For root only."""
        return self.call("PUT", f"/v1/tenants/{segment(name)}", policy)

    def change_tenant(self, name: str, patch: "types.TenantPatch") -> "types.TenantChange":
        """Changes what `patch` names of a tenant's policy, or makes the tenant. The TenantChange. For root only."""
        return self.call("PATCH", f"/v1/tenants/{segment(name)}", patch)

    def remove_tenant(self, name: str, source: str = "") -> None:
        """Removes a tenant. Raises RefusedError where it has grants, tenants below it, or another `source`. For root
        only."""
        query = f"?source={segment(source)}" if source else ""
        return self.call("DELETE", f"/v1/tenants/{segment(name)}{query}")

    def usage(
        self,
        *,
        by: "types.By | None" = None,
        since: int | None = None,
        until: int | None = None,
        tenant: str | None = None,
        cuts: str | None = None,
    ) -> "types.Usage":
        """A Usage, as `GET /v1/usage` takes these; None is left out. `since`, `until`: wall time in ns."""
        given = fields({"by": by, "since": since, "until": until, "tenant": tenant, "cuts": cuts})
        return self.call("GET", f"/v1/usage?{query_of(given)}")

    def usage_slots(
        self,
        *,
        since: int | None = None,
        until: int | None = None,
        unit: "types.Unit | None" = None,
        each: "types.Each | None" = None,
    ) -> "types.UsageSlots":
        """A UsageSlots, as `GET /v1/usage/slots` takes these; None is left out. `since`, `until`: wall time in ns."""
        given = fields({"since": since, "until": until, "unit": unit, "each": each})
        return self.call("GET", f"/v1/usage/slots?{query_of(given)}")

    def drain(self, device: str, reason: str = "") -> "types.Device":
        """The Device, which takes no new grants from now on. For root only. Raises NotFoundError."""
        return self.call("POST", "/v1/drain", {"device": device, "reason": reason})

    def undrain(self, device: str) -> "types.Device":
        """The Device, which takes grants again. For root only. Raises NotFoundError."""
        return self.call("POST", "/v1/undrain", {"device": device})

    def sim_stats(self) -> dict[str, Any]:
        """The simulator's own books. Raises NotFoundError where the devices are real."""
        return self.call("GET", "/v1/sim/stats")

    def set_sim_lost(self, device: int, *, lost: bool) -> None:
        """Lets a simulated device, by its index, stop working or work again. For root only."""
        return self.call("PUT", f"/v1/sim/devices/{device}", {"lost": lost})


class Patience:
    """For how long a request is repeated that will be accepted later, and how soon each time."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def pause(self, error: LaterError) -> float:
        """Seconds until the request is to be repeated; the last time is when the time has passed. Raises `error` when
        it has passed already."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise error
        estimate = error.estimate_seconds if isinstance(error, MakingRoomError) else None
        pause = ASK_AGAIN_SECONDS if estimate is None else min(max(estimate, _PAUSES[0]), _PAUSES[1])
        return min(pause, left)


class Course:
    """The events that `follow` adds to those of the watch: a new list of all grants and, once per outage, that the
    daemon is away."""

    def __init__(self) -> None:
        self._away = False

    def listed(self, answer: dict[str, Any]) -> "types.FollowEvent":
        """The event with all grants. `answer`: a Grants."""
        self._away = False
        return _event(answer["rv"], answer["epoch"], "grants", "listed", answer["grants"])

    def failed(self, error: GpushareError) -> "types.FollowEvent | None":
        """The `away` event. None: it was already reported, or the daemon answers and only its record does not reach
        back."""
        if self._away or isinstance(error, GoneError):
            return None
        self._away = True
        return _event(None, None, "node", "away", {"why": str(error)})


def _event(rv: int | None, epoch: int | None, kind: str, what: str, found: Any) -> Any:
    return {"rv": rv, "epoch": epoch, "kind": kind, "type": what, "name": "", "object": found}


def new_asker() -> str:
    """What tells a request from equal ones while it is repeated."""
    return os.urandom(8).hex()


def watching(since: int | None) -> str:
    """The target of a watch from this number on, or from now."""
    return "/v1/watch" if since is None else f"/v1/watch?since={since}"


def fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None, by their names in JSON."""
    return {name.rstrip("_"): value for name, value in request.items() if value is not None}
