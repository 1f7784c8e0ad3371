"""Grants that run in turn have parts of one device, and a part that several of them have is taken once. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gpushare.policy.grants.admission import Place


@dataclass(frozen=True, slots=True)
class Member:
    """One grant of a set: the parts it has, and its place, which is all of them."""

    parts: frozenset[int]
    place: Place


@dataclass(frozen=True, slots=True)
class _Worth:
    """What one part is worth: as much as in the grant in which it is worth most, as sizes are rounded down."""

    memory: Fraction
    time: Fraction
    guaranteed: Fraction

    def of(self, place: Place, parts: int) -> Place:
        """`place` with what this number of parts is worth."""
        return replace(
            place,
            memory_bytes=int(self.memory * parts),
            time_milli=int(self.time * parts),
            guaranteed_milli=int(self.guaranteed * parts),
        )


def _worth(members: Collection[Member]) -> _Worth:
    def most(amounts: Iterable[tuple[int, Member]]) -> Fraction:
        return max(Fraction(amount, len(member.parts)) for amount, member in amounts)

    return _Worth(
        most((one.place.memory_bytes, one) for one in members),
        most((one.place.time_milli, one) for one in members),
        most((one.place.guaranteed_milli, one) for one in members),
    )


def together(members: Sequence[Member]) -> Place:
    """What all of them take."""
    parts = frozenset[int]().union(*(one.parts for one in members))
    return _worth(members).of(members[0].place, len(parts))


def counted(members: Sequence[Member]) -> list[Place]:
    """What each of them takes, in sum what they take together: a part counts for the first that has it."""
    worth = _worth(members)
    out, before = [], frozenset[int]()
    for one in members:
        after = before | one.parts
        had, has = worth.of(one.place, len(before)), worth.of(one.place, len(after))
        out.append(
            replace(
                has,
                memory_bytes=has.memory_bytes - had.memory_bytes,
                time_milli=has.time_milli - had.time_milli,
                guaranteed_milli=has.guaranteed_milli - had.guaranteed_milli,
            )
        )
        before = after
    return out
