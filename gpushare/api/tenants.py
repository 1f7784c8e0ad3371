"""Wire types of tenants. Units are those of gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from gpushare.api.numbers import SIZE, SIZE_MAX, number_text
from gpushare.api.share import IdleAfter
from gpushare.api.types import Placement, Quantity

# A name of a user or group that a user database can have: not a number, without the separators of passwd and paths.
ACCOUNT = r"^(?![0-9]+$)[A-Za-z0-9_.][A-Za-z0-9_.@\\+-]*\$?$"
ACCOUNT_MAX = 256
ACCOUNT_NUMBER_MAX = (1 << 32) - 2  # the last one means nobody in the kernel's calls
_FIRST, _NEXT = r"[^\x00-/:-`{-\xa9]", r"[^\x00-,/:-^`{-\xa9]"
TENANT_NAME = rf"^{_FIRST}{_NEXT}{{0,62}}(/{_FIRST}{_NEXT}{{0,62}}){{0,7}}$"
"""What JSON Schema can say of it; gpushare.text.names says what it may be."""
FILE = "file"
SOURCE = r"^(file|adapter:[a-z0-9][a-z0-9._-]{0,62})$"

NodeTimeMilli = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 16000})]
NodeTimeText = Annotated[str, number_text(r"^\s*([0-9]+(\.[0-9]+)? ?%|[0-9]+ ?m|0+)\s*$")]
NodeMemorySize = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": SIZE_MAX})]
NodeMemoryText = Annotated[str, number_text(rf"^(0|\s*({SIZE})\s*)$")]
Account = Annotated[str, Meta(extra_json_schema={"pattern": ACCOUNT, "maxLength": ACCOUNT_MAX})]
AccountNumber = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": ACCOUNT_NUMBER_MAX})]
TenantName = Annotated[str, Meta(extra_json_schema={"pattern": TENANT_NAME})]
State = Literal["idle", "in_quota", "borrowing", "starved", "degraded"]
Source = Annotated[str, Meta(extra_json_schema={"pattern": SOURCE})]


class TenantPolicy(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A table of tenants.toml, and the body of PUT. `time`: milli of the node (1000 per device) or `600%`. `memory`:
    bytes or a size, per node. `host_memory`: the most of the node's own memory that device memory of its grants may
    move to, and of those of the tenants below it; left out: what the host pool has.

    `parent`: the tenant that it is part of; if left out, the one whose name is the beginning of its own (`ml` for
    `ml/a`), if there is one. `users`, `groups`: names or numbers of the users and groups that may name this tenant, in
    addition to root. `placement`: of its shares and of those of the tenants below it, as in GrantRequest, where neither
    their requests nor these tenants say one; left out: as the node. `idle_after_seconds`: the same for how long their
    programs have to do nothing before memory that they lend counts as idle. `source`: who set it, `file` or
    `adapter:NAME`; nobody else may change it."""

    parent: TenantName | None = None
    time: NodeTimeMilli | NodeTimeText = 0
    memory: NodeMemorySize | NodeMemoryText = 0
    time_limit: NodeTimeMilli | NodeTimeText | None = None
    weight: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1_000_000})] = 1
    tier: Annotated[int, Meta(extra_json_schema={"minimum": -1000, "maximum": 1000})] = 0
    users: list[AccountNumber | Account] = field(default_factory=list)
    groups: list[AccountNumber | Account] = field(default_factory=list)
    placement: Placement | None = None
    host_memory: NodeMemorySize | NodeMemoryText | None = None
    idle_after_seconds: IdleAfter | None = None
    source: Source = FILE


class TenantPatch(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The body of PATCH, a JSON merge patch (RFC 7396) of TenantPolicy: what it names is changed, null makes that as if
    it had never been set, and all else stays. `source`: who asks; of a new tenant, who has set it."""

    parent: TenantName | UnsetType | None = UNSET
    time: NodeTimeMilli | NodeTimeText | UnsetType | None = UNSET
    memory: NodeMemorySize | NodeMemoryText | UnsetType | None = UNSET
    time_limit: NodeTimeMilli | NodeTimeText | UnsetType | None = UNSET
    weight: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1_000_000})] | UnsetType | None = UNSET
    tier: Annotated[int, Meta(extra_json_schema={"minimum": -1000, "maximum": 1000})] | UnsetType | None = UNSET
    users: list[AccountNumber | Account] | UnsetType | None = UNSET
    groups: list[AccountNumber | Account] | UnsetType | None = UNSET
    placement: Placement | UnsetType | None = UNSET
    host_memory: NodeMemorySize | NodeMemoryText | UnsetType | None = UNSET
    idle_after_seconds: IdleAfter | UnsetType | None = UNSET
    source: Source = FILE


class TenantNow(Struct, kw_only=True):
    """How a tenant, with all tenants below it, stood over the last second, in milli of the node. `demand_milli`: what
    their working grants could use. `entitlement_milli`: what they should get. `borrowed_milli`: used beyond their
    guarantee; `lent_milli`: the part of the guarantee that others used. `waited_milli`: 1000 is one grant that waited
    for one device all the time. State `starved`: it waits, and has less than it is entitled to on the devices that its
    grants are on. `usage_milli_seconds`:
    what it has borrowed so far, decayed, if the node keeps that; `weight`: its weight as corrected by that usage."""

    state: State
    demand_milli: int
    entitlement_milli: int
    used_milli: int
    borrowed_milli: int
    lent_milli: int
    waited_milli: int
    usage_milli_seconds: int
    weight: float


class Tenant(Struct, kw_only=True):
    """`guarantee`, `have`, `limit_time` and `now` are those of the tenant with all tenants below it, `allocated` and
    `grants` its own. `guarantee.memory` 0: no memory is held back for this tenant; it gets what fits. `have`: what
    remains of the guarantee on the devices that work. `degraded`: `have` is less than the guarantee. `placement`: the
    one that is in force for its shares. `host_memory`: as in TenantPolicy; None: no limit. `idle_after_seconds`: the
    one that is in force for its grants; 0: none counts as idle."""

    name: str
    parent: str | None
    guarantee: Quantity
    have: Quantity
    degraded: bool
    limit_time: int
    weight: int
    tier: int
    users: list[int | str]
    groups: list[int | str]
    source: str
    allocated: Quantity
    grants: int
    now: TenantNow
    placement: Placement = "spread"
    host_memory: int | None = None
    idle_after_seconds: float = 0


class Accounts(Struct, kw_only=True):
    """Names of users and of groups."""

    users: list[str]
    groups: list[str]


class TenantChange(Struct, kw_only=True):
    """The answer to PATCH. `before`: the policy that was in force; null: there was no such entry. `after`: the one that
    is in force now. Both have time in milli and memory in bytes. `unknown`: names in the patch that the node's user
    database does not have, so that they match nobody; null: it did not answer in time."""

    tenant: Tenant
    after: TenantPolicy
    before: TenantPolicy | None = None
    unknown: Accounts | None = None


class Tenants(Struct, kw_only=True):
    """`epoch`, `rv`: as in Grants."""

    epoch: int
    rv: int
    tenants: list[Tenant]
