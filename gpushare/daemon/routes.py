"""The table of all calls of the node API: the server registers it, the OpenAPI document is made from it."""

from dataclasses import dataclass, field

from gpushare.api import debug as debug_types
from gpushare.api import events as event_types
from gpushare.api import types


@dataclass(frozen=True, slots=True)
class Route:
    """`handler`: method of api.Api. `query`: name -> (JSON type, required). `repeated`: status of the same answer to a
    call that had been made before."""

    method: str
    path: str
    handler: str
    summary: str
    body: type | None = None
    answer: type | None = None
    status: int = 200
    repeated: int | None = None
    media: str = "application/json"
    query: dict[str, tuple[str, bool]] = field(default_factory=dict)


_GRANT = {"grant": ("string", True)}

ROUTES = (
    Route("GET", "/v1/version", "version", "Versions of the daemon and of this API", answer=types.Version),
    Route("GET", "/v1/node", "node", "Facts of the node and its paths", answer=types.Node),
    Route("GET", "/v1/devices", "devices", "All devices", answer=types.Devices),
    Route("GET", "/v1/tenants", "tenants", "All tenants", answer=types.Tenants),
    Route(
        "PUT",
        "/v1/tenants/{name}",
        "set_tenant",
        "Set a tenant's quota (root)",
        body=types.TenantPolicy,
        answer=types.Tenant,
    ),
    Route("DELETE", "/v1/tenants/{name}", "remove_tenant", "Remove a tenant without grants (root)", status=204),
    Route(
        "GET",
        "/v1/grants",
        "grants",
        "Grants that live; with ended=1 the latest that ended too",
        answer=types.Grants,
        query={"ended": ("integer", False)},
    ),
    Route(
        "POST",
        "/v1/grants",
        "create_grant",
        "Reserve a share; idempotent on key",
        body=types.GrantRequest,
        answer=types.Grant,
        status=201,
        repeated=200,
    ),
    Route("GET", "/v1/grants/{id}", "grant", "One grant, ended ones included", answer=types.Grant),
    Route(
        "GET",
        "/v1/grants/{id}/debug",
        "debug_grant",
        "What its processes say of themselves, and did last (its owner, or root)",
        answer=debug_types.GrantDebug,
    ),
    Route("PATCH", "/v1/grants/{id}", "resize_grant", "Change its share", body=types.GrantChange, answer=types.Grant),
    Route("DELETE", "/v1/grants/{id}", "release_grant", "End it", answer=types.Grant),
    Route(
        "POST",
        "/v1/grants/{id}/bind",
        "bind_grant",
        "Use it: by the calling process, or for a container",
        body=types.BindRequest,
        answer=types.Binding,
    ),
    Route(
        "POST",
        "/v1/oci/edit",
        "oci_edit",
        "Edit a container's config.json for its grant (root)",
        body=types.OciEditRequest,
        answer=types.OciEditAnswer,
    ),
    Route(
        "POST",
        "/v1/hooks/create-runtime",
        "hook_create_runtime",
        "OCI createRuntime, with the container's state (root)",
        body=dict,
        answer=types.Grant,
        query=_GRANT,
    ),
    Route("POST", "/v1/hooks/poststop", "hook_poststop", "OCI poststop; the body is not read (root)", query=_GRANT),
    Route("GET", "/v1/sim/stats", "sim_stats", "The simulator's own books"),
    Route(
        "PUT",
        "/v1/sim/devices/{index}",
        "set_sim_device",
        "Lose a simulated device, or bring it back (root)",
        body=types.SimDevice,
        status=204,
    ),
    Route(
        "GET",
        "/v1/watch",
        "watch",
        "Changes as they happen; 410 when history after since is gone",
        answer=types.Event,
        media="application/x-ndjson",
        query={"since": ("integer", False)},
    ),
    Route(
        "GET",
        "/v1/events",
        "events",
        "Receipts of waits and leases: the latest, or from after on, oldest first; 410 when that is of an earlier run",
        answer=event_types.LeaseEvents,
        query={
            "after": ("integer", False),
            "epoch": ("integer", False),
            "limit": ("integer", False),
            "grant": ("string", False),
            "tenant": ("string", False),
            "device": ("string", False),
            "kind": ("string", False),
        },
    ),
    Route(
        "GET",
        "/v1/waits",
        "waits",
        "How long each tenant waited, and its leases took to take back",
        answer=event_types.Waits,
    ),
    Route("GET", "/metrics", "metrics", "Prometheus text", media="text/plain"),
    Route("GET", "/openapi.json", "openapi", "This document"),
)
