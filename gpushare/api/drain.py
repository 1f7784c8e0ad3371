"""Wire types of draining a device: it takes no new grants, and its present ones continue."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

DeviceState = Literal["ready", "draining", "drained"]
"""`draining`: it takes no new grants and still has some; `drained`: it has none left."""

DeviceName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128})]
REASON_MAX = 200
Reason = Annotated[str, Meta(extra_json_schema={"maxLength": REASON_MAX, "pattern": "^[ -~]*$"})]


class DrainRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`device`: its id, or its index as text. `reason`: shown to users whose requests are refused because of it."""

    device: DeviceName
    reason: Reason = ""


class UndrainRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`device`: as in DrainRequest."""

    device: DeviceName
