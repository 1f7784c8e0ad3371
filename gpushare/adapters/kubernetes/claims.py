"""Translates a ResourceClaim into grant requests, and finds grants whose claims are gone. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.adapters.kubernetes import DRIVER
from gpushare.adapters.kubernetes.slices import Json, Shown, amount, device_name
from gpushare.errors import FailedError, UsageError
from gpushare.policy.quota.shares import DEVICE_MILLI

KEYS = "kubernetes/claim/"
"""Prefix of the key of every grant of a claim."""

PARAMETERS = {"apiVersion": "gpushare.dev/v1", "kind": "Share"}
# Opaque parameter -> field of a GrantRequest. Any user who may write a claim may set these.
_CLAIM = {
    "timeLimit": "time_limit",
    "class": "class",
    "managed": "managed",
    "idleMemory": "idle_memory",
    "idleAfterSeconds": "idle_after_seconds",
    "priority": "priority",
    "borrowMemory": "borrow_memory",
    "reclaim": "max_rung",
    "graceSeconds": "grace_seconds",
    "evictionSignal": "eviction_signal",
}
# The same for a DeviceClass, which an administrator writes.
_CLASS = {**_CLAIM, "tenant": "tenant"}


@dataclass(frozen=True, slots=True)
class Part:
    """One allocated device of a claim. `share`: the shareID, which distinguishes allocations of one device."""

    device: str
    share: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The grant for one request of a claim. `ask`: fields of a GrantRequest. `parts`: in the order of its devices."""

    request: str
    pool: str
    parts: tuple[Part, ...]
    ask: Mapping[str, Any]


def key_of(uid: str) -> str:
    """Returns the prefix of the keys of all grants of a claim."""
    return f"{KEYS}{uid}/"


def wanted(claim: Json, node: str, devices: Iterable[Shown], tenants: Iterable[str]) -> list[Wanted]:
    """Returns the grants that an allocated claim needs on this node. `devices`: the node API's. `tenants`: existing
    names; if the claim's class names no tenant, it is the one with the name of the namespace, else `default`.

    Raises FailedError for a claim with no device on this node, and UsageError for invalid parameters.
    """
    known = {device_name(device["id"]): device for device in devices}
    by_request: dict[str, list[Json]] = {}
    for result in _results(claim, node):
        by_request.setdefault(result["request"].partition("/")[0], []).append(result)
    if not by_request:
        name = claim["metadata"]["name"]
        raise FailedError(f"claim {name} has no device of {DRIVER} on node {node}: it is allocated elsewhere, or not")
    namespace = claim["metadata"]["namespace"]
    own = namespace if namespace in tenants else "default"
    return [_of_request(claim, request, results, known, own) for request, results in by_request.items()]


def _results(claim: Json, node: str) -> Iterator[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result["driver"] == DRIVER and result["pool"] == node:
            yield result


def _of_request(claim: Json, request: str, results: list[Json], known: Mapping[str, Shown], tenant: str) -> Wanted:
    for result in results:
        if result["device"] not in known:
            raise FailedError(f"device {result['device']} of the claim is not there: known are {', '.join(known)}")
    shares = {_share(result, known[result["device"]]) for result in results}
    if len(shares) > 1:
        raise UsageError(
            f"request {request} has different capacities on its devices: a grant has the same on each, so make it two"
        )
    [(memory, time)] = shares
    ask = {
        "memory": memory,
        "time": time,
        "tenant": tenant,
        **_parameters(claim, request),
        "devices": len(results),
        "device": ",".join(known[result["device"]]["id"] for result in results),
        "keep": True,
    }
    parts = tuple(Part(result["device"], result.get("shareID")) for result in results)
    seal = hashlib.sha256(repr(sorted((part.device, part.share or "") for part in parts)).encode()).hexdigest()[:16]
    ask["key"] = f"{key_of(claim['metadata']['uid'])}{request}/{seal}"
    return Wanted(request, results[0]["pool"], parts, ask)


def _share(result: Json, device: Shown) -> tuple[int, int]:
    """Returns bytes and milli; the whole device if the cluster does not report consumed capacity."""
    consumed = result.get("consumedCapacity") or {}
    try:
        memory = int(amount(consumed["memory"])) if "memory" in consumed else _all_memory(device)
        time = int(amount(consumed["time"])) if "time" in consumed else DEVICE_MILLI
    except ValueError as error:
        raise UsageError(f"the claim's consumed capacity makes no sense: {error}") from None
    return memory, time


def _all_memory(device: Shown) -> int:
    return int(device["capacity"]["memory"] - device["reserved"]["memory"])


def _parameters(claim: Json, request: str) -> Json:
    """Returns the fields set by the class and the claim; the claim's take precedence."""
    found: Json = {}
    configs = claim["status"]["allocation"]["devices"].get("config") or ()
    for source, known in (("FromClass", _CLASS), ("FromClaim", _CLAIM)):
        for config in configs:
            opaque = config.get("opaque") or {}
            asked = [name.partition("/")[0] for name in config.get("requests") or ()]
            if config.get("source") == source and opaque.get("driver") == DRIVER and (not asked or request in asked):
                found.update(_read(opaque.get("parameters"), source, known))
    return found


def _read(parameters: Any, source: str, known: Mapping[str, str]) -> Json:
    if not isinstance(parameters, dict):
        raise UsageError("the parameters for gpushare are not an object")
    for name, value in PARAMETERS.items():
        if parameters.get(name) != value:
            raise UsageError(f"the parameters for gpushare have {name} {parameters.get(name)!r:.80}: write {value}")
    out = {}
    for name, value in parameters.items():
        if name in PARAMETERS:
            continue
        if name == "tenant" and source == "FromClaim":
            raise UsageError("a claim names no tenant: its class does, or the tenant is that of its namespace")
        if name not in known:
            raise UsageError(f"parameter {name[:80]!r} is unknown: known are {', '.join(known)}")
        out[known[name]] = _as_written(name, value)
    return out


def _as_written(name: str, value: Any) -> Any:
    """The node API's form of what a person wrote in a manifest: a time without a unit, which is milli there, is left to
    be refused, and 4G is decimal as everywhere in Kubernetes."""
    if name == "timeLimit" and isinstance(value, int):
        return str(value)
    if name == "borrowMemory" and isinstance(value, str) and value.endswith(("k", "M", "G", "T")):
        try:
            return int(amount(value))
        except ValueError as error:
            raise UsageError(f"borrowMemory makes no sense: {error}") from None
    return value


def of_pod(pod: Json) -> Iterator[tuple[str, str]]:
    """Yields namespace and name of each claim of a pod: named, from a template, or made for an extended resource."""
    status = pod.get("status") or {}
    extended = status.get("extendedResourceClaimStatus") or {}
    named = (*(pod["spec"].get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ()), extended)
    for one in named:
        if one.get("resourceClaimName"):
            yield pod["metadata"]["namespace"], one["resourceClaimName"]


def is_claims(grant: Shown) -> bool:
    """Whether the grant belongs to a claim."""
    return (grant["key"] or "").startswith(KEYS)


def stale(grants: Iterable[Shown], claims: Iterable[Json], node: str) -> list[str]:
    """Returns the ids of grants whose claim is gone or no longer has a device on this node."""
    here = {claim["metadata"]["uid"] for claim in claims if next(_results(claim, node), None) is not None}
    return [grant["id"] for grant in grants if is_claims(grant) and _uid(grant) not in here]


def _uid(grant: Shown) -> str:
    return str(grant["key"]).removeprefix(KEYS).partition("/")[0]
