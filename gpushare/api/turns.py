"""Wire types of grants that run in turn."""

from typing import Annotated

from msgspec import Meta, Struct

PARTS_MAX = 1024

SetName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 128})]
Part = Annotated[int, Meta(ge=0, lt=PARTS_MAX)]


class InTurn(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A grant of a set on one device, some of which never run at once, such as those of a pod's init containers and of
    its other containers. `set`: its name. `parts`: the numbers of the device's parts that are this grant's, all worth
    the same. A part that several grants of the set have is taken once, and belongs to the one that ran last; no
    workload starts in a grant while another that has one of its parts is in use."""

    set: SetName
    parts: Annotated[list[Part], Meta(min_length=1, max_length=PARTS_MAX)]
