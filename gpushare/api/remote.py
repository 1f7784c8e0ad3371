"""Wire types of remote grants: a grant that programs on another machine use, over a carrier. Units are those of
gpushare.api.types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpushare.api.numbers import MemorySize, SizeText
from gpushare.text import names

CARRIER_NAME = f"^{names.CARRIER}$"
ATTACHMENT_ID = r"^[0-9a-f]{32}$"
ORIGIN_MAX = 253

LinkKind = Literal["tls", "plain"]
LinkClass = Literal["good", "fair", "poor", "refused"]
Ending = Literal["", "detached", "lost", "expired", "server", "released", "relay"]

CarrierName = Annotated[str, Meta(extra_json_schema={"pattern": CARRIER_NAME})]
Origin = Annotated[
    str, Meta(extra_json_schema={"maxLength": ORIGIN_MAX, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"})
]


class Link(Struct, kw_only=True):
    """The network path of an attachment, as the node's relay measures it every second. `rtt_us`: the kernel's smoothed
    round trip time; `rate_bps`: what went both ways in the last second; 0: nothing known yet. `checked`: its class at
    the last link check, empty if there was none."""

    kind: LinkKind
    rtt_us: int = 0
    rate_bps: int = 0
    checked: Literal["", "good", "fair", "poor", "refused"] = ""


class Attachment(Struct, kw_only=True):
    """One client machine's use of a grant. `origin`: the client's host, as it names itself; `address`: where its
    connections come from, empty before the first. `uid`: who attached it. `connections`: now, without that for control.
    `bytes_in`: from the client; `bytes_out`: to it. `ending`: empty while it lives; `detached`: the client ended it;
    `lost`: nothing was heard of it for too long; `expired`: it was not used in time; `server`: the carrier's server
    ended; `released`: the grant did; `relay`: the relay did."""

    id: str
    grant: str
    carrier: str
    origin: str
    address: str
    uid: int
    link: Link
    created_ns: int
    ended_ns: int | None = None
    ending: Ending = ""
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class AttachRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`carrier`: one of those of GET /v1/remote; left out: the node's only one. `version`: that of the client's side,
    which has to be the node's. `link`: `plain` for networks that encrypt below. `host_memory`: how much of the node's
    memory the carrier's server may use, with what it copies through; bytes or `4GiB`; left out: as the node sets it.
    `origin`: the client's host."""

    carrier: CarrierName | None = None
    version: str | None = None
    link: LinkKind = "tls"
    host_memory: MemorySize | SizeText | None = None
    origin: Origin = ""


class RelayAddress(Struct, kw_only=True):
    """Where the relay of a node is. `host`: empty: where the node is reached by ssh. `cert_sha256`: of its certificate
    (DER), 64 hexadecimal digits."""

    host: str
    port: int
    cert_sha256: str


class Carrier(Struct, kw_only=True):
    """A carrier that the node can serve. `version`: as its `version` command says; empty: it has none. `trouble`: why
    it cannot be served now, otherwise empty."""

    name: str
    version: str
    trouble: str = ""


class Attached(Struct, kw_only=True):
    """The answer to an attachment. `ticket`: its secret, 64 hexadecimal digits: whoever has it uses the grant. It is
    told once, and stands in no other answer. `expires_ns`: wall time until which it has to be used first."""

    id: str
    grant: str
    ticket: str
    relay: RelayAddress
    link: LinkKind
    carrier: Carrier
    expires_ns: int


class Remote(Struct, kw_only=True):
    """Whether programs of other machines may use this node. `relay`: null: they may not, for `reason`.
    `attachments`: those that live, and the latest that have ended. `attachments_max`: how many may live; 0: remote
    grants are off."""

    relay: RelayAddress | None
    reason: str = ""
    carriers: list[Carrier] = []
    attachments: list[Attachment] = []
    attachments_max: int = 0


class LinkReport(Struct, forbid_unknown_fields=True, kw_only=True):
    """What the client's link check found."""

    checked: LinkClass
    rtt_us: Annotated[float, Meta(ge=0, le=1e9)]
    up_bps: Annotated[float, Meta(ge=0, le=1e13)]
    down_bps: Annotated[float, Meta(ge=0, le=1e13)]
