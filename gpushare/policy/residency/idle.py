"""Which grants are idle, and whose memory is worth a copy in host memory ahead of any move. Pure: times are arguments.

A copy takes memory of the node that nobody else can have meanwhile. So copies made ahead fill at most half of the host
pool, and are given up, those of the grants that were idle for the shortest time first, when more than that is taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FOR_EVER_NS = 1 << 62
"""How long a grant counts as idle that says itself that it is."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A grant that lends its memory. `work`: a number that changes with whatever its programs submit. `busy`: work is
    in flight or waits. `after_ns`: after so long without work it is idle; 0: it never is. `said_work`: its `work` when
    it said that it is; None: it did not. `ahead_bytes`: of the host pool, for its copy; 0: it has none."""

    grant: str
    work: int
    busy: bool
    movable_bytes: int
    after_ns: int
    said_work: int | None = None
    ahead_bytes: int = 0


class Idle:
    """Since when grants do nothing."""

    def __init__(self) -> None:
        self._work: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def look(self, now_ns: int, grants: Iterable[Seen]) -> None:
        """Grants that are not among these are forgotten; one that was not seen before begins now."""
        seen = {one.grant: one for one in grants}
        for gone in self._since.keys() - seen.keys():
            del self._since[gone], self._work[gone]
        for one in seen.values():
            if one.busy or self._work.get(one.grant) != one.work:
                self._since[one.grant], self._work[one.grant] = now_ns, one.work

    def idle_ns(self, now_ns: int, one: Seen) -> int:
        """For how long it has done nothing, as it is seen now; 0: it works, or nothing is known of it yet."""
        if one.busy:
            return 0
        if one.said_work == one.work:
            return FOR_EVER_NS  # it has submitted nothing since
        return now_ns - self._since[one.grant] if self._work.get(one.grant) == one.work else 0


def ahead(idle: Mapping[str, int], grants: Iterable[Seen], pool_bytes: int, other_bytes: int) -> dict[str, int]:
    """How many bytes of host memory each grant shall have for a copy ahead, where that changes; 0: give it up.

    `idle`: of grants that are idle by their own rule, for how long. `other_bytes`: of the pool, what is taken for other
    things than copies ahead."""
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
