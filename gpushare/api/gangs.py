"""Wire types of gangs across nodes: a scheduler prepares a part on each node, then commits all of them, or aborts them.
Units are those of gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpushare.api.types import Grant, GrantRequest, Uid

GRANTS_MAX = 16
"""Most grants in a part: they are made in one turn of the daemon's loop."""
TTL_SECONDS_MAX = 3600
NAME_MAX = 128
NAME = {"type": "string", "minLength": 1, "maxLength": NAME_MAX, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}
PartName = Annotated[str, Meta(extra_json_schema={key: value for key, value in NAME.items() if key != "type"})]

PartPhase = Literal["prepared", "committed", "aborted", "expired"]


class GangPrepare(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`grants`: what the gang needs on this node, given as a whole or not at all; each may have its own `ttl_seconds`,
    counted from the commit. `part`: its name, if the gang has several parts on this node. `ttl_seconds`: time within
    which it must be committed. `uid`: the user who owns the grants, if root asks."""

    grants: Annotated[list[GrantRequest], Meta(min_length=1, max_length=GRANTS_MAX)]
    part: PartName = "0"
    ttl_seconds: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": TTL_SECONDS_MAX})] = 60
    uid: Uid | None = None


class GangDecision(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Commits or aborts a part. `part`, `uid`: as it was prepared."""

    part: PartName = "0"
    uid: Uid | None = None


class GangPart(Struct, kw_only=True):
    """A gang's part on this node. `phase`: it stays `committed` after its grants have ended. `reason`: why it was
    aborted or expired. `grant_ids`: all its grants, in the order of the request; `grants`: those that have not ended.
    `expires_ns`: null unless it is prepared. `ttl_seconds`: 0 if it was aborted before it was prepared."""

    gang: str
    part: str
    uid: int
    phase: PartPhase
    reason: str
    grant_ids: list[str]
    grants: list[Grant]
    ttl_seconds: int
    expires_ns: int | None


class GangParts(Struct, kw_only=True):
    """The parts that hold something, and the latest of those that have ended. `epoch`, `rv`: as in Grants."""

    epoch: int
    rv: int
    parts: list[GangPart]
