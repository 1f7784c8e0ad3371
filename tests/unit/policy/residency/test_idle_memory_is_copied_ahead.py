"""Who is idle, and whose memory is copied ahead: never more than half of the host pool, and never one that works."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.residency import states as policy
from gpushare.policy.residency.idle import FOR_EVER_NS, Idle, Seen, ahead
from gpushare.policy.residency.residency import advance
from gpushare.policy.residency.states import RESIDENT, By, CopyAhead, Suspend, Where

AFTER = 100
MOVE_NS = 1000


def seen(grant: str, work: int = 0, *, busy: bool = False, movable: int = 10, copied: int = 0) -> Seen:
    return Seen(grant, work, busy, movable, AFTER, ahead_bytes=copied)


def test_idle_is_who_submits_nothing_for_long() -> None:
    idle = Idle()

    def look(now: int, grants: list[Seen]) -> dict[str, int]:
        idle.look(now, grants)
        return {one.grant: ns for one in grants if (ns := idle.idle_ns(now, one))}

    assert look(0, [seen("a"), seen("b")]) == {}
    assert look(60, [seen("a"), seen("b", 1)]) == {"a": 60}
    assert look(100, [seen("a"), seen("b", 1)]) == {"a": 100, "b": 40}
    assert look(160, [seen("a", busy=True), seen("b", 1)]) == {"b": 100}
    assert look(200, [seen("b", 1)]) == {"b": 140}
    assert look(300, [seen("a"), seen("b", 1)]) == {"b": 240}, "one that comes again begins anew"
    assert idle.idle_ns(310, seen("b", 2)) == 0, "it has worked since it was looked at"
    assert idle.idle_ns(310, seen("b", 1, busy=True)) == 0
    assert idle.idle_ns(310, seen("c")) == 0


def test_a_grant_that_says_that_it_is_idle_is_until_it_works() -> None:
    idle = Idle()

    def at(now: int, work: int, *, busy: bool = False, said: int | None = None) -> bool:
        one = replace(seen("a", work, busy=busy), said_work=said)
        found = idle.idle_ns(now, one) >= FOR_EVER_NS
        idle.look(now, [one])
        return found

    assert at(1, 7, said=7), "before anybody has looked at it"
    assert at(9, 7, said=7)
    assert not at(10, 7, said=7, busy=True)
    assert not at(11, 8, said=7)
    assert not at(99, 8, said=7), "that was before it worked"
    assert at(100, 8, said=8)
    assert not at(101, 8)


def test_who_is_idle_for_longest_is_copied_first() -> None:
    grants = [seen("a"), seen("b"), seen("c")]
    assert ahead({"a": 100, "b": 300}, grants, 30, 0) == {"b": 10}
    assert ahead({"a": 100, "b": 300}, grants, 40, 0) == {"a": 10, "b": 10}
    assert ahead({}, grants, 40, 0) == {}


def test_copies_give_way() -> None:
    grants = [seen("a", copied=10), seen("b", copied=10)]
    assert ahead({}, grants, 40, 0) == {}, "who works again keeps its host memory"
    assert ahead({}, grants, 40, 10) == {"b": 0}
    assert ahead({}, [seen("a", movable=0, copied=10)], 40, 0) == {"a": 0}
    assert ahead({}, [seen("a", movable=15, copied=10)], 40, 0) == {"a": 15}


GRANTS = st.lists(
    st.builds(
        Seen,
        st.text("abcdef", min_size=1),
        st.integers(0, 3),
        st.booleans(),
        st.integers(0, 50),
        st.just(AFTER),
        st.none(),
        st.integers(0, 50),
    ),
    unique_by=lambda one: one.grant,
)


@given(GRANTS, st.integers(0, 200), st.integers(0, 100), st.data())
def test_never_more_than_half_of_the_pool(grants: list[Seen], pool: int, other: int, data: st.DataObject) -> None:
    idle = {one.grant: data.draw(st.integers(AFTER, 500)) for one in grants if data.draw(st.booleans())}
    changes = ahead(idle, grants, pool, other)
    after = {one.grant: changes.get(one.grant, one.ahead_bytes) for one in grants}
    assert sum(after.values()) <= max(0, pool // 2 - other)
    for one in grants:
        assert after[one.grant] in (0, one.movable_bytes)
        assert not after[one.grant] or one.grant in idle or one.ahead_bytes
        assert changes.get(one.grant) != one.ahead_bytes


def test_a_copy_ahead_is_reserved_and_recorded_before_it_is_asked_for() -> None:
    copied, steps = advance(RESIDENT, CopyAhead(8), MOVE_NS)
    assert (copied.where, copied.ahead, copied.reserved_bytes, copied.epoch) == (Where.RESIDENT, True, 8, 1)
    assert steps == (policy.Reserve(8), policy.Record(), policy.Write(hosted=False, ahead=True))
    more, steps = advance(copied, CopyAhead(9), MOVE_NS)
    assert (more.reserved_bytes, more.epoch) == (9, 1)
    assert steps == (policy.Reserve(9), policy.Record())
    given_up, steps = advance(more, CopyAhead(0), MOVE_NS)
    assert (given_up.ahead, given_up.reserved_bytes, given_up.epoch) == (False, 0, 2)
    assert steps == (policy.Record(), policy.Write(hosted=False), policy.Release())
    leaving, steps = advance(more, Suspend(0, By.PERSON, False, 9), MOVE_NS)
    assert (leaving.where, leaving.reserved_bytes, leaving.ahead) == (Where.SUSPENDING, 9, False)
    assert advance(leaving, CopyAhead(0), MOVE_NS) == (leaving, ())
    assert advance(RESIDENT, CopyAhead(0), MOVE_NS) == (RESIDENT, ())
