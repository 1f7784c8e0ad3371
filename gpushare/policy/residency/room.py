"""Whose memory leaves a device when somebody wants room there. Pure: times are arguments, `Fits` says what would fit.

Room is made in this order: memory of grants that do nothing, the least recently used first, and among those what needs
no copy; then what borrowers have, by the ladder of gpushare.policy.loans (for an owner) or when their turn is over (for
another borrower). An owner is a grant none of whose memory is on loan: all owners of a device fit there together, so
only borrowers ever take turns.

A grant's turn is at least as long as what makes the time that goes into moving memory a small part of it: with a swap
of T ns, one out and the other in, Q = T / x costs x of the time of work.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

SWAP_SHARE = Fraction(1, 20)
"""Of the time of grants that take turns, what may go into moving memory."""
TRAINING_SHARE = Fraction(1, 100)
"""The same for class `training`, which has nobody waiting at a screen."""
SETTLE_NS = 50 * 10**6
"""What a swap takes besides its copies."""
TURN_MOST_NS = 120 * 10**9
"""No turn becomes longer than this by doubling."""
REST_NS = 10 * 10**9
"""An owner that did nothing for so long makes room for another that comes back."""
EARLY_NS = 10**9
"""A turn is over early for a holder that does nothing for so long, or for a fifth of its turn if that is longer."""
NEXT_NS = 10**9
"""Whose turn comes after another's looks again so soon."""
_EARLY_PART = 5
_LATE_PART = 4
"""Of the time after which a grant is idle: one that has rested for less works, and may go on working for ever."""
_MORE_AT_MOST = 10
"""A turn is at most so many times as long as the shortest."""
_NS = 0.05
"""For a byte, before any move was seen: 20 GB/s."""
_NS_LEAST = 0.001
_SEEN_LEAST = 16 << 20
_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Want:
    """Room that somebody waits for. `owner`: none of it would be on loan. `size`: bytes. `guaranteed`: of these, what
    is not on loan. `since_ns`: monotonic, since when it waits. `turns`: its own memory can be moved, so it may take
    turns with others that work."""

    key: str
    owner: bool
    size: int
    since_ns: int
    guaranteed: int = 0
    turns: bool = True


@dataclass(frozen=True, slots=True)
class Resident:
    """A grant whose memory could leave its device now. `size`: bytes that this frees; `dirty`: of these, what would be
    copied. `borrowed`: what it has on loan there; `guaranteed`: the rest of its memory. `idle_ns`: for how long its
    programs have done nothing, and `after_ns` after how long it is idle by its own rule. `since_ns`: monotonic, since
    when its memory is there. `training`: of that class."""

    grant: str
    size: int
    dirty: int
    borrowed: int
    guaranteed: int
    idle_ns: int
    after_ns: int
    since_ns: int
    training: bool = False


@dataclass(frozen=True, slots=True)
class Fits:
    """Whether a want fits once these grants' memory is away: `now`, beside those before it for which room is made;
    `in_turn`, beside those as well whose turn comes before its own."""

    now: Callable[[frozenset[str]], bool]
    in_turn: Callable[[frozenset[str]], bool]


class Why(enum.Enum):
    """Why a grant is the one to leave."""

    IDLE = enum.auto()
    TURN = enum.auto()


@dataclass(frozen=True, slots=True)
class Leave:
    """These are to leave, and then there is room."""

    grants: tuple[tuple[str, Why], ...]


@dataclass(frozen=True, slots=True)
class Short:
    """Too little can leave now. `idle`: what could. `until_ns`: when more may; None: time alone changes nothing."""

    idle: tuple[str, ...] = ()
    until_ns: int | None = None


class Link:
    """How fast memory of one device moves, by the moves that were seen: a running mean of the time that a byte takes.
    `factor`: by how much turns are longer than the moves alone ask for."""

    def __init__(self) -> None:
        self._ns: float | None = None
        """For a byte; None: no move was seen yet."""
        self.factor = 1

    @property
    def seen(self) -> bool:
        """Whether any move was."""
        return self._ns is not None

    @property
    def bytes_per_s(self) -> int:
        """The present mean."""
        return int(1e9 / (self._ns or _NS))

    def moved(self, size: int, ns: int) -> None:
        """A move of `size` bytes took `ns`. Small ones say nothing of the link."""
        if size < _SEEN_LEAST:
            return
        each = max(_NS_LEAST, ns / size)
        self._ns = each if self._ns is None else self._ns + _WEIGHT * (each - self._ns)

    def copy_ns(self, size: int) -> int:
        """How long a move of so many bytes takes."""
        return SETTLE_NS + int(size * (self._ns or _NS))

    def turn_ns(self, out: int, into: int, *, training: bool = False) -> int:
        """How long a grant stays, at least, for whose turn `out` bytes are moved away and `into` bytes brought in."""
        share = TRAINING_SHARE if training else SWAP_SHARE
        least = int(self.copy_ns(out + into) / share)
        return max(least, min(TURN_MOST_NS, least * self.factor))


def in_order(wants: Iterable[Want]) -> list[Want]:
    """The wants as they are served: owners before borrowers; of owners the smallest first, which makes the mean wait
    shortest; of borrowers the one that has waited longest."""
    return sorted(wants, key=lambda want: (not want.owner, want.size if want.owner else 0, want.since_ns, want.key))


def longer(own: int, others: Collection[int], capacity: int) -> Fraction:
    """How many times as long as the shortest turn that of a grant is, so that each has the device for at least the part
    of the time that it is guaranteed of its memory, however long the others wait. `own`, `others`: bytes that they are
    guaranteed, of `capacity`; `others` are those that it takes turns with."""
    each, scale = (own, *others), Fraction(0)
    for _ in each:
        short = [size for size in each if size * scale <= 1]
        rest = capacity - sum(size for size in each if size * scale > 1)
        found = Fraction(len(short), rest) if rest > 0 else Fraction(_MORE_AT_MOST, max(1, own))
        if found == scale:
            break
        scale = found
    return min(Fraction(_MORE_AT_MOST), max(Fraction(1), own * scale))


def turn_ends_ns(own: Resident, want: Want, waiting: Collection[Want], capacity: int, link: Link) -> int:
    """Until when a borrower that works stays, whatever other borrowers want. `waiting`: those. For none of them is it
    over before it is for those that have waited longer: the largest would never have a turn."""
    order = in_order({*waiting, want})
    into = max(one.size for one in order[: order.index(want) + 1])
    least = link.turn_ns(own.size, into, training=own.training)
    return own.since_ns + int(least * longer(own.guaranteed, [one.guaranteed for one in waiting], capacity))


def rests_ns(own: Resident, want: Want, link: Link) -> int:
    """For how long a grant's programs have to have done nothing so that its memory is moved for this want."""
    turn = link.turn_ns(own.size, want.size, training=own.training)
    if own.borrowed:
        return min(own.after_ns, max(EARLY_NS, turn // _EARLY_PART))
    return min(own.after_ns, max(REST_NS, turn)) if want.owner else own.after_ns


def make_room(
    want: Want,
    waiting: Collection[Want],
    residents: Iterable[Resident],
    fits: Fits,
    now_ns: int,
    capacity: int,
    link: Link,
) -> Leave | Short:
    """Who leaves for this want. `waiting`: all borrowers that wait for room there, this one included if it is one.
    `capacity`: bytes of the device."""
    rests = [(own, rests_ns(own, want, link)) for own in residents]
    idle = [own for own, ns in rests if own.idle_ns >= ns]
    idle.sort(key=lambda own: (own.dirty > 0, -own.idle_ns, own.grant))
    chosen = [(own.grant, Why.IDLE) for own in idle]
    if found := _needed(chosen, fits.now):
        return Leave(found)
    later = {own.grant: now_ns + ns - own.idle_ns for own, ns in rests if ns > own.idle_ns >= ns // _LATE_PART}
    if want.turns and not want.owner:
        working = [own for own, ns in rests if own.borrowed and own.idle_ns < ns]
        turns = [(turn_ends_ns(own, want, waiting, capacity, link), own.grant) for own in working]
        chosen += [(grant, Why.TURN) for ends, grant in sorted(turns) if ends <= now_ns]
        if found := _needed(chosen, fits.in_turn):
            return Leave(found)
        if _needed(chosen, fits.now):
            return Short(tuple(own.grant for own in idle), now_ns + NEXT_NS)
        later |= {grant: min(ends, later.get(grant, ends)) for ends, grant in turns if ends > now_ns}
    could = frozenset({grant for grant, _ in chosen} | later.keys())
    return Short(tuple(own.grant for own in idle), min(later.values()) if later and fits.now(could) else None)


def _needed(chosen: Sequence[tuple[str, Why]], enough: Callable[[frozenset[str]], bool]) -> tuple[tuple[str, Why], ...]:
    """As few from the front of these as are enough, less those that later ones made needless; none: all are not."""
    kept: list[tuple[str, Why]] = []
    for one in chosen:
        kept.append(one)
        if enough(frozenset(grant for grant, _ in kept)):
            break
    else:
        return ()
    for one in reversed(kept[:-1]):
        if enough(frozenset(grant for grant, _ in kept if grant != one[0])):
            kept.remove(one)
    return tuple(kept)
