"""Which grants are idle, and whose memory is worth a copy in host memory ahead of any move. Pure: times are arguments.

A copy takes memory of the node that nobody else can have meanwhile. So copies made ahead fill at most half of the host
pool, and are given up, those of the grants that were idle for the shortest time first, when more than that is taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """A grant that lends its memory. `work`: a number that changes with whatever its programs submit. `busy`: work is
    in flight or waits. `ahead_bytes`: of the host pool, for its copy; 0: it has none."""

    grant: str
    work: int
    busy: bool
    movable_bytes: int
    ahead_bytes: int = 0


class Idle:
    """Since when grants do nothing."""

    def __init__(self, after_ns: int) -> None:
        self._after_ns = after_ns
        self._work: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def look(self, now_ns: int, grants: Iterable[Seen]) -> dict[str, int]:
        """How long grants that are idle have been so, in ns. A grant that was not seen before begins now."""
        seen = {one.grant: one for one in grants}
        for gone in self._since.keys() - seen.keys():
            del self._since[gone], self._work[gone]
        for one in seen.values():
            if one.busy or self._work.get(one.grant) != one.work:
                self._since[one.grant], self._work[one.grant] = now_ns, one.work
        found = {grant: now_ns - since for grant, since in self._since.items()}
        return {grant: idle for grant, idle in found.items() if idle >= self._after_ns}


def ahead(idle: Mapping[str, int], grants: Iterable[Seen], pool_bytes: int, other_bytes: int) -> dict[str, int]:
    """How many bytes of host memory each grant shall have for a copy ahead, where that changes; 0: give it up.

    `idle`: of Idle.look. `other_bytes`: of the pool, what is taken for other things than copies ahead."""
    seen = {one.grant: one for one in grants}
    room = pool_bytes // 2 - other_bytes
    wanted: dict[str, int] = {}
    # What is copied already goes first: to copy another in its place would only cost.
    for grant in sorted(seen, key=lambda name: (not seen[name].ahead_bytes, -idle.get(name, 0), name)):
        one = seen[grant]
        size = one.movable_bytes if grant in idle or one.ahead_bytes else 0
        wanted[grant] = size if 0 < size <= room else 0
        room -= wanted[grant]
    return {grant: size for grant, size in wanted.items() if size != seen[grant].ahead_bytes}
