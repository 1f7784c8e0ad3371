"""Which node `--remote any` takes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.policy.remote.link import CLASSES, LinkClass

_UNKNOWN = CLASSES.index("fair") + 0.5
"""Rank of a link that was not checked yet: worth a try before one that is known to be poor."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that was asked. `refusal`: why the share does not fit there, or why the node cannot be used; empty: it
    fits. `checked`: class of the link when it was checked last, None if never; `rtt_us`: its round trip then.
    `free_milli`, `free_bytes`: time and memory that nobody is guaranteed, on all its devices."""

    name: str
    refusal: str = ""
    checked: LinkClass | None = None
    rtt_us: float = 0.0
    free_milli: int = 0
    free_bytes: int = 0


def ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns those where the share fits, the one to take first: the best class of link, then the most free time, then
    the most free memory, then the shorter round trip."""
    return sorted((one for one in candidates if not one.refusal), key=_key)


def _key(one: Candidate) -> tuple[float, int, int, float, str]:
    rank = _UNKNOWN if one.checked is None else float(CLASSES.index(one.checked))
    return rank, -one.free_milli, -one.free_bytes, one.rtt_us, one.name


def refusals(candidates: Iterable[Candidate]) -> str:
    """Why no node was taken, for people."""
    return "; ".join(f"{one.name}: {one.refusal}" for one in candidates) or "no node is known: write them in nodes.toml"
