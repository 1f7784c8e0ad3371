"""The table of all calls of the node API: the server registers it, the OpenAPI document is made from it."""

import re
from dataclasses import dataclass, field
from typing import Any, get_args

from gpushare.api import debug as debug_types
from gpushare.api import engines, types
from gpushare.api import events as event_types
from gpushare.api import findings as finding_types
from gpushare.api import gangs as gang_types
from gpushare.api import node as node_types
from gpushare.api import plan as plan_types
from gpushare.api import residency as residency_types
from gpushare.api import tenants as tenant_types
from gpushare.api import usage as usage_types
from gpushare.api import why as why_types
from gpushare.errors import CannotMoveError, ForbiddenError, GoneError, GpushareError, NotFoundError, RefusedError
from gpushare.text.calendar import CUTS_MAX

BODY_MAX = 64 << 10
_TEXT = {"type": "string", "minLength": 1, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}
CONFIG_MAX = 16 << 20
"""For what engines send: a config.json with thousands of mounts is below 1 MiB."""


@dataclass(frozen=True, slots=True)
class Route:
    """`handler`: method of api.Api. `query`: name -> JSON schema; a `required` name must be present. `repeated`: status
    of the same answer to a repeated call. `root`: only root may call it. `body_max`: bytes. `light`: waits for no turn,
    so that it answers however much others ask for. `stream`: its answer does not end. A tuple as `body` or `answer`:
    one of these. `refusals`: in addition to those that every call can have. `name`: JSON schema of the name in its
    path."""

    method: str
    path: str
    handler: str
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200
    repeated: int | None = None
    media: str = "application/json"
    query: dict[str, dict[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    root: bool = False
    body_max: int = BODY_MAX
    light: bool = False
    stream: bool = False
    refusals: tuple[type[GpushareError], ...] = ()
    name: dict[str, Any] = field(default_factory=lambda: _TEXT)


_NUMBER = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
_NUMBERS = {"type": "string", "pattern": r"^[0-9]{1,19}(,[0-9]{1,19})*$"}
_GRANT = {"grant": _TEXT}
_EVENT_KIND = {"enum": [kind for kind in get_args(event_types.EventKind) if kind != "other"], "title": "kind of event"}
_OWNED = (NotFoundError, ForbiddenError, RefusedError)
_DECISION = (NotFoundError, ForbiddenError, RefusedError, GoneError)

ROUTES = (
    Route("GET", "/v1/version", "version", "Versions of the daemon and of this API", answer=types.Version, light=True),
    Route("GET", "/v1/node", "node", "Facts of the node and its paths", answer=types.Node),
    Route("GET", "/v1/devices", "devices", "All devices", answer=types.Devices),
    Route("GET", "/v1/tenants", "tenants", "All tenants", answer=tenant_types.Tenants),
    Route(
        "PUT",
        "/v1/tenants/{name}",
        "set_tenant",
        "Set a tenant's quota (root)",
        body=tenant_types.TenantPolicy,
        answer=tenant_types.Tenant,
        root=True,
        refusals=(RefusedError,),
        name={"type": "string", "pattern": tenant_types.TENANT_NAME},
    ),
    Route(
        "DELETE",
        "/v1/tenants/{name}",
        "remove_tenant",
        "Remove a tenant without grants and tenants below it (root)",
        status=204,
        query={"source": {"type": "string", "pattern": tenant_types.SOURCE}},
        root=True,
        refusals=(NotFoundError, RefusedError),
    ),
    Route(
        "GET",
        "/v1/grants",
        "grants",
        "Living grants; ended=1: also the latest that have ended; key_prefix: only those whose key begins with it",
        answer=types.Grants,
        query={"ended": _NUMBER, "key_prefix": _TEXT},
    ),
    Route(
        "POST",
        "/v1/grants",
        "create_grant",
        "Reserve a share; idempotent on key. 409 on_loan, making_room: repeat it; asker tells equal requests apart",
        query={"asker": _TEXT},
        body=types.GrantRequest,
        answer=types.Grant,
        status=201,
        repeated=200,
        refusals=_OWNED,
    ),
    Route(
        "POST",
        "/v1/plan",
        "plan",
        "Whether a grant, or several one after the other, would be admitted; changes nothing",
        body=(types.GrantRequest, plan_types.PlanList),
        answer=(plan_types.Plan, plan_types.Plans),
        refusals=(NotFoundError, ForbiddenError),
    ),
    Route(
        "GET",
        "/v1/grants/{id}",
        "grant",
        "One grant, ended ones included",
        answer=types.Grant,
        refusals=(NotFoundError,),
    ),
    Route(
        "GET",
        "/v1/grants/{id}/debug",
        "debug_grant",
        "What the processes of a grant report about themselves and did last (its owner, or root)",
        answer=debug_types.GrantDebug,
        refusals=_OWNED,
    ),
    Route(
        "PATCH",
        "/v1/grants/{id}",
        "resize_grant",
        "Change the share of a grant",
        body=types.SomeChange,
        answer=types.Grant,
        refusals=_OWNED,
    ),
    Route(
        "DELETE",
        "/v1/grants/{id}",
        "release_grant",
        "End a grant",
        answer=types.Grant,
        refusals=_OWNED,
    ),
    Route(
        "POST",
        "/v1/grants/{id}/bind",
        "bind_grant",
        "Use a grant, for the calling process or a container",
        body=types.BindRequest,
        answer=types.Binding,
        refusals=_OWNED,
    ),
    Route(
        "POST",
        "/v1/grants/{id}:suspend",
        "suspend_grant",
        "Begin to move a grant's memory to host memory (its owner, or root); its residency says when that is done",
        body=residency_types.SuspendRequest,
        answer=types.Grant,
        refusals=(*_OWNED, CannotMoveError),
    ),
    Route(
        "POST",
        "/v1/grants/{id}:resume",
        "resume_grant",
        "Begin to move a grant's memory back to its device, as soon as there is room (its owner, or root)",
        answer=types.Grant,
        refusals=(*_OWNED, CannotMoveError),
    ),
    Route(
        "GET",
        "/v1/gangs",
        "gangs",
        "Parts of gangs across nodes on this node, current and recent",
        answer=gang_types.GangParts,
    ),
    Route(
        "POST",
        "/v1/gangs/{gang}/prepare",
        "prepare_gang",
        "Reserve room for a part of a gang until it is committed, is aborted or expires; idempotent",
        query={"asker": _TEXT},
        body=gang_types.GangPrepare,
        answer=gang_types.GangPart,
        status=201,
        repeated=200,
        refusals=_DECISION,
        name=gang_types.NAME,
    ),
    Route(
        "POST",
        "/v1/gangs/{gang}/commit",
        "commit_gang",
        "Let the grants of a gang's part be used; idempotent; 410 if the part was aborted or has expired",
        body=gang_types.GangDecision,
        answer=gang_types.GangPart,
        refusals=_DECISION,
        name=gang_types.NAME,
    ),
    Route(
        "POST",
        "/v1/gangs/{gang}/abort",
        "abort_gang",
        "Release a gang's part, which then cannot be prepared any more; idempotent, also before it was prepared",
        body=gang_types.GangDecision,
        answer=gang_types.GangPart,
        refusals=(ForbiddenError, RefusedError),
        name=gang_types.NAME,
    ),
    Route(
        "POST",
        "/v1/oci/edit",
        "oci_edit",
        "Edit a container's config.json for its grant (root)",
        body=engines.OciEditRequest,
        body_max=CONFIG_MAX,
        answer=engines.OciEditAnswer,
        root=True,
        refusals=(NotFoundError, RefusedError),
    ),
    Route(
        "POST",
        "/v1/oci/place",
        "oci_place",
        "What a new container has to see of its share, by its grant or a CDI device that represents none (root)",
        body=engines.OciPlaceRequest,
        body_max=CONFIG_MAX,
        answer=engines.OciPlaceAnswer,
        query=_GRANT,
        required=("grant",),
        root=True,
        refusals=(NotFoundError, RefusedError),
    ),
    Route(
        "POST",
        "/v1/oci/attempt",
        "oci_attempt",
        "Note that a container starts without a share, if it asks for a GPU in other ways (root)",
        body=engines.OciEditRequest,
        body_max=CONFIG_MAX,
        root=True,
    ),
    Route(
        "POST",
        "/v1/hooks/create-runtime",
        "hook_create_runtime",
        "OCI createRuntime, with the container's state (root)",
        body=engines.ContainerState,
        body_max=CONFIG_MAX,
        answer=types.Grant,
        query=_GRANT,
        required=("grant",),
        root=True,
        refusals=(NotFoundError, RefusedError),
    ),
    Route(
        "POST",
        "/v1/drain",
        "drain",
        "Stop new grants on a device; existing ones continue (root)",
        body=node_types.DrainRequest,
        answer=types.Device,
        root=True,
        refusals=(NotFoundError,),
    ),
    Route(
        "POST",
        "/v1/undrain",
        "undrain",
        "Allow new grants on a device again (root)",
        body=node_types.UndrainRequest,
        answer=types.Device,
        root=True,
        refusals=(NotFoundError,),
    ),
    Route("GET", "/v1/sim/stats", "sim_stats", "The simulator's own books", refusals=(NotFoundError,)),
    Route(
        "PUT",
        "/v1/sim/devices/{index}",
        "set_sim_device",
        "Make a simulated device fail, or bring it back (root)",
        body=node_types.SimDevice,
        status=204,
        root=True,
        refusals=(NotFoundError,),
    ),
    Route(
        "GET",
        "/v1/watch",
        "watch",
        "Changes as they happen; 410 if the history after since is no longer kept",
        answer=types.Event,
        stream=True,
        media="application/x-ndjson",
        query={"since": _NUMBER},
        refusals=(GoneError,),
    ),
    Route(
        "GET",
        "/v1/events",
        "events",
        "Receipts of waits and leases, oldest first: the latest, or from after on; 410 if after is of an earlier run",
        answer=event_types.LeaseEvents,
        query={
            "after": _NUMBER,
            "epoch": _NUMBER,
            "limit": _NUMBER,
            "grant": _TEXT,
            "tenant": _TEXT,
            "device": _TEXT,
            "kind": _EVENT_KIND,
        },
        refusals=(
            NotFoundError,
            GoneError,
        ),
    ),
    Route(
        "GET",
        "/v1/explain",
        "explain",
        "Grants without work for idle_seconds (30); tenants that wait while others have more than they are entitled to",
        answer=why_types.Standing,
        query={"idle_seconds": _NUMBER},
    ),
    Route(
        "GET",
        "/v1/explain/{grant}",
        "explain_grant",
        "The latest decisions about a grant, with rule and numbers; limit: how many of those on leases (20)",
        answer=why_types.Explanation,
        query={"limit": _NUMBER},
        refusals=(NotFoundError,),
    ),
    Route(
        "GET",
        "/v1/waits",
        "waits",
        "How long each tenant waited, and how long taking back its leases took",
        answer=event_types.Waits,
    ),
    Route(
        "GET",
        "/v1/usage",
        "usage",
        "Totals from the ledger, of the last 30 days or between two moments (ns); by period: of the periods that begin "
        f"at cuts, at most {CUTS_MAX} moments with commas between them, each after the one before",
        answer=usage_types.Usage,
        query={
            "by": {"enum": list(get_args(usage_types.By)), "title": "way to add up"},
            "since": _NUMBER,
            "until": _NUMBER,
            "tenant": _TEXT,
            "cuts": _NUMBERS,
        },
    ),
    Route(
        "GET",
        "/v1/usage/slots",
        "usage_slots",
        "The ledger's figures by tenant for each hour or minute, of the last 30 days or between two moments (ns)",
        answer=usage_types.UsageSlots,
        query={
            "since": _NUMBER,
            "until": _NUMBER,
            "unit": {"enum": list(get_args(usage_types.Unit)), "title": "length of slots"},
            "each": {"enum": list(get_args(usage_types.Each)), "title": "thing that has slots"},
        },
    ),
    Route(
        "GET",
        "/v1/attempts",
        "attempts",
        "The latest containers without a share that asked for a GPU in one of NVIDIA's ways",
        answer=event_types.Attempts,
    ),
    Route(
        "GET",
        "/v1/findings",
        "findings",
        "The latest findings of the audit: use of a device without a share, or beyond it",
        answer=finding_types.Findings,
    ),
    Route("GET", "/metrics", "metrics", "Prometheus text", media="text/plain"),
    Route("GET", "/openapi.json", "openapi", "This document"),
)


def methods(path: str) -> list[str]:
    """The HTTP methods of a path; none where no call has it."""
    return sorted(route.method for route in ROUTES if re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), path))
