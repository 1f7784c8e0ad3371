"""What grants take that run in turn and have parts of one device in common."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.policy.grants import turns
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.turns import Member

COUNT = 7  # does not divide what a device has
DEVICE = {"capacity": {"memory": (16 << 30) + 12345, "time": 1000}}
PARTS = st.lists(st.frozensets(st.integers(0, COUNT - 1), min_size=1), min_size=1, max_size=6)


def member(parts: frozenset[int]) -> Member:
    memory, time = Sizes(COUNT).of(DEVICE, len(parts))
    return Member(parts, Place("d", 0, memory, time, time, 1000))


@given(PARTS)
def test_parts_that_several_have_count_once(sets):
    members = [member(parts) for parts in sets]
    whole, counted = turns.together(members), turns.counted(members)
    for amount in ("memory_bytes", "time_milli", "guaranteed_milli"):
        own = [getattr(place, amount) for place in counted]
        assert sum(own) == getattr(whole, amount)
        assert min(own) >= 0
        assert own[0] >= getattr(members[0].place, amount), "the one that runs has all of its own"
    assert whole.time_milli <= 1000
    assert whole.memory_bytes <= DEVICE["capacity"]["memory"]
    assert turns.together(members[::-1]) == whole


@given(PARTS)
def test_alone_a_grant_takes_what_it_has(sets):
    alone = member(sets[0])
    assert turns.counted([alone]) == [turns.together([alone])] == [alone.place]


def test_one_that_has_no_part_of_its_own_takes_nothing():
    init, main = member(frozenset({0, 1, 2})), member(frozenset({1}))
    assert turns.counted([init, main])[1].memory_bytes == 0
    assert turns.counted([main, init])[0].time_milli == main.place.time_milli
