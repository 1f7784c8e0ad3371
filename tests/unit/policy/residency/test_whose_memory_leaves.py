"""Whose memory leaves for whom: idle before working, the least recently used first, no more than needed; borrowers in
turns that are long enough."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.residency.room import (
    EARLY_NS,
    REST_NS,
    SETTLE_NS,
    TURN_MOST_NS,
    Fits,
    Leave,
    Link,
    Resident,
    Short,
    Want,
    Why,
    in_order,
    longer,
    make_room,
)

GIB, SECOND = 1 << 30, 10**9
CAPACITY = 80 * GIB
NOW = 1000 * SECOND


def link(gbps: float = 54.7) -> Link:
    made = Link()
    made.moved(GIB, round(GIB / gbps))
    return made


def resident(grant: str, size: int = 8, *, idle: float = 0, clean: bool = False, **more: object) -> Resident:
    base = {"borrowed": 0, "guaranteed": size * GIB, "after_ns": 300 * SECOND, "since_ns": 0}
    dirty = 0 if clean else size * GIB
    return Resident(grant, size * GIB, dirty, idle_ns=round(idle * SECOND), **{**base, **more})  # type: ignore[arg-type]


def borrower(grant: str, size: int = 40, **more: object) -> Resident:
    return resident(grant, size, **{"borrowed": size * GIB, "guaranteed": 0, **more})  # type: ignore[arg-type]


def owner(size: int = 8) -> Want:
    return Want("owner", owner=True, size=size * GIB, since_ns=NOW, guaranteed=size * GIB)


def borrowing(size: int = 40, key: str = "borrower", since: int = NOW, **more: object) -> Want:
    return Want(key, owner=False, size=size * GIB, since_ns=since, **more)  # type: ignore[arg-type]


def leave(want: Want, residents: list[Resident], *, free: int = 0, at: int = NOW) -> Leave | Short:
    sizes = {one.grant: one.size for one in residents}

    def enough(away: frozenset[str]) -> bool:
        return free * GIB + sum(sizes[grant] for grant in away) >= want.size

    return make_room(want, [] if want.owner else [want], residents, Fits(enough, enough), at, CAPACITY, link())


def grants(found: Leave | Short) -> list[str]:
    assert isinstance(found, Leave), found
    return sorted(grant for grant, _ in found.grants)


def test_what_needs_no_copy_goes_first_then_what_was_used_least_recently() -> None:
    a, b, c = resident("a", idle=900), resident("b", idle=400, clean=True), resident("c", idle=500)
    assert grants(leave(borrowing(8), [a, b, c])) == ["b"]
    assert grants(leave(borrowing(16), [a, b, c])) == ["a", "b"]
    assert grants(leave(borrowing(8), [a, c])) == ["a"]


def test_nobody_goes_in_vain() -> None:
    small, large = resident("small", 2, idle=900), resident("large", 30, idle=400)
    assert grants(leave(borrowing(25), [small, large])) == ["large"]
    assert leave(borrowing(40), [small, large]) == Short(("small", "large"))
    assert grants(leave(borrowing(40), [small, large], free=9)) == ["large", "small"]


def test_an_owner_waits_for_nobodys_five_minutes() -> None:
    idle = resident("idle", idle=REST_NS / SECOND)
    assert grants(leave(owner(), [idle])) == ["idle"]
    assert leave(borrowing(8), [idle]) == Short()
    soon = leave(borrowing(8), [resident("idle", idle=200)])
    assert soon == Short((), NOW + 100 * SECOND), "it has rested for most of its time"


def test_one_that_works_stays() -> None:
    works = resident("works")
    assert leave(owner(), [works]) == Short()
    assert leave(borrowing(8), [works]) == Short()


def test_a_turn_is_long_enough_and_no_longer() -> None:
    swap = SETTLE_NS + 80 * GIB / 54.7
    for training, share in ((False, Fraction(1, 20)), (True, Fraction(1, 100))):
        works = borrower("works", training=training, since_ns=NOW)
        found = leave(borrowing(), [works], at=NOW + SECOND)
        assert isinstance(found, Short)
        assert found.until_ns is not None
        turn = found.until_ns - NOW
        assert swap / turn == pytest.approx(float(share), rel=1e-3)
        assert grants(leave(borrowing(), [works], at=found.until_ns)) == ["works"]


def test_a_turn_ends_early_for_who_does_nothing() -> None:
    early = max(EARLY_NS, 33 * SECOND // 5)
    assert grants(leave(borrowing(), [borrower("idle", idle=early / SECOND + 0.1, since_ns=NOW)])) == ["idle"]
    assert isinstance(leave(borrowing(), [borrower("idle", idle=0.5, since_ns=NOW)]), Short)


def test_who_lends_nothing_waits_until_others_are_idle() -> None:
    long_ago = borrower("works", since_ns=0)
    assert leave(borrowing(turns=False), [long_ago]) == Short()
    assert grants(leave(borrowing(turns=False), [borrower("idle", idle=60)])) == ["idle"]


def test_turns_grow_by_their_factor_up_to_two_minutes() -> None:
    fast = link()
    once = fast.turn_ns(40 * GIB, 40 * GIB)
    fast.factor = 2
    assert fast.turn_ns(40 * GIB, 40 * GIB) == 2 * once
    fast.factor = 64
    assert fast.turn_ns(40 * GIB, 40 * GIB) == TURN_MOST_NS
    slow = link(1)
    assert slow.turn_ns(40 * GIB, 40 * GIB) > TURN_MOST_NS, "what the moves ask for is never cut"


def test_the_link_is_what_was_seen() -> None:
    seen = Link()
    seen.moved(1 << 20, 10 * SECOND)
    assert seen.bytes_per_s == 20 * 10**9, "a small move says nothing"
    seen.moved(GIB, SECOND)
    assert seen.bytes_per_s == pytest.approx(GIB, rel=1e-6)
    for _ in range(20):
        seen.moved(GIB, SECOND // 2)
    assert seen.bytes_per_s == pytest.approx(2 * GIB, rel=1e-2)


def test_owners_first_then_the_smallest_then_who_waits_longest() -> None:
    wants = [borrowing(1, "late", 5), owner(9), borrowing(9, "early", 1), Want("small", True, GIB, 9)]
    assert [want.key for want in in_order(wants)] == ["small", "owner", "early", "late"]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 400))
def test_each_has_the_part_of_the_time_that_it_is_guaranteed_of_the_memory(sizes: list[int], more: int) -> None:
    """Unless that makes turns more than ten times as long as others."""
    capacity = sum(sizes) + more
    turns = [longer(own, [*sizes[:at], *sizes[at + 1 :]], capacity) for at, own in enumerate(sizes)]
    assert min(turns) >= 1
    for own, turn in zip(sizes, turns, strict=True):
        if max(turns) < 10:
            assert turn / sum(turns) >= Fraction(own, capacity) - Fraction(1, 10**9)
    if all(size * len(sizes) <= capacity for size in sizes):
        assert set(turns) == {1}, "equal turns are enough"


@given(st.data())
def test_whoever_leaves_is_needed_and_may(data: st.DataObject) -> None:
    residents = [
        data.draw(
            st.builds(
                resident,
                st.just(f"g{number}"),
                st.integers(1, 20),
                idle=st.sampled_from([0, 0.5, 2, 11, 60, 299, 301, 1000]),
                clean=st.booleans(),
                borrowed=st.sampled_from([0, GIB]),
                since_ns=st.sampled_from([0, NOW - SECOND]),
            )
        )
        for number in range(data.draw(st.integers(0, 6)))
    ]
    want = data.draw(st.sampled_from([owner(10), borrowing(10), borrowing(30), borrowing(30, turns=False)]))
    found = leave(want, residents)
    by_name = {one.grant: one for one in residents}
    if isinstance(found, Short):
        assert sum(by_name[grant].size for grant in found.idle) < want.size
        assert found.until_ns is None or found.until_ns > NOW
        return
    gone = [by_name[grant].size for grant, _ in found.grants]
    assert sum(gone) >= want.size > sum(gone) - min(gone)
    for grant, why in found.grants:
        one = by_name[grant]
        assert one.idle_ns >= min(EARLY_NS, one.after_ns) or (why is Why.TURN and one.borrowed and want.turns)
        assert one.borrowed or one.idle_ns >= REST_NS
        assert want.owner or one.borrowed or one.idle_ns >= one.after_ns
