"""Which carrier a program on this machine uses with a node. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.carriers.contract import Contract
from gpushare.errors import RefusedError, UsageError

_HOW = "a carrier is described by /etc/gpushare/carriers/NAME.toml (gpushare's guide `remote`)"


def choose(
    node: str, served: Sequence[Mapping[str, Any]], here: Mapping[str, Contract], wanted: str | None
) -> Contract:
    """Returns the carrier that both sides have. `served`: Carriers in JSON, of the node. `here`: contracts of this
    machine. `wanted`: the one that the user names. Raises UsageError or RefusedError."""
    ours = {name: contract for name, contract in here.items() if contract.client is not None}
    theirs = {one["name"]: one for one in served}
    if wanted is not None:
        return _wanted(node, theirs, ours, wanted)
    if not ours:
        raise RefusedError(f"this machine has no carrier's libraries for programs: {_HOW}")
    both = [name for name in ours if name in theirs]
    if not both:
        there = ", ".join(theirs) or "none"
        raise RefusedError(f"{node} and this machine have no carrier in common: {node} has {there}, this machine has"
                           f" {', '.join(ours)}: {_HOW}")  # fmt: skip
    usable = [name for name in both if not theirs[name].get("trouble")]
    if not usable:
        raise RefusedError(f"{node} cannot serve {both[0]} now: {theirs[both[0]]['trouble']}")
    if len(usable) > 1:
        raise UsageError(f"{node} and this machine have several carriers, {', '.join(usable)}: give one with --carrier")
    return ours[usable[0]]


def _wanted(node: str, theirs: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Contract], wanted: str) -> Contract:
    if wanted not in ours:
        there = f": it has {', '.join(ours)}" if ours else ""
        raise UsageError(f"this machine has no carrier {wanted!r} for programs{there}: {_HOW}")
    if wanted not in theirs:
        raise RefusedError(f"{node} has no carrier {wanted!r}: it has {', '.join(theirs) or 'none'}")
    if trouble := theirs[wanted].get("trouble"):
        raise RefusedError(f"{node} cannot serve {wanted} now: {trouble}")
    return ours[wanted]
