"""Which grants would lose what they borrow, and how long a grant may have to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.quota.losses import Claim, Loss, losses
from gpushare.policy.usage.waits import Waited


def claim(name: str, guarantee: int, wants: int, weight: int = 1, tier: int = 0) -> Claim:
    return Claim(name, f"of {name}", guarantee, wants, weight, tier)


def test_an_owner_takes_its_guarantee_back_from_those_who_borrow():
    here = [claim("owner", 250, 250), claim("loan", 0, 1000), claim("idle", 0, 0)]
    assert losses(claim("new", 750, 750), here) == [Loss("loan", "of loan", 750, "guarantee")]
    assert losses(claim("new", 0, 200, weight=0), here[:1]) == []


def test_borrowed_time_is_lost_to_a_higher_tier_or_by_weight():
    here = [claim("a", 0, 1000), claim("b", 0, 1000)]
    found = losses(claim("new", 0, 1000), here)
    assert [(loss.grant, loss.milli, loss.rule) for loss in found] == [("b", 167, "weight"), ("a", 166, "weight")]
    assert {loss.rule for loss in losses(claim("new", 0, 1000, tier=1), here)} == {"tier"}
    scavenger = claim("s", 0, 1000, weight=0)
    assert [loss.grant for loss in losses(claim("new", 500, 500), [here[0], scavenger])] == ["a"]
    assert losses(claim("new", 500, 500), [scavenger]) == [Loss("s", "of s", 500, "guarantee")]


milli = st.integers(0, 1000)
rows = st.lists(st.tuples(st.integers(0, 200), milli, st.integers(0, 3), st.integers(0, 1)), max_size=4)


@given(rows, st.integers(0, 200), milli)
def test_nobody_loses_what_it_is_guaranteed_and_all_together_no_more_than_is_asked_for(found, guarantee, wants):
    here = [claim(str(number), *row) for number, row in enumerate(found)]
    lost = {loss.grant: loss.milli for loss in losses(claim("new", guarantee, wants), here)}
    for one in here:
        assert lost.get(one.grant, 0) <= max(0, one.wants_milli - min(one.guarantee_milli, one.wants_milli))
    assert sum(lost.values()) <= wants
    assert all(value > 0 for value in lost.values())


def test_quantiles_of_waits():
    waited = Waited()
    assert waited.quantile_ms(0.5) is None
    waited.add((0, 0, 98, 0, 0), 4_000)  # between 2 and 4 us
    waited.add((0, 0, 0, 0, 2), 50_000_000)  # the last bucket: all longer
    assert waited.count == 100
    assert waited.quantile_ms(0.49) == pytest.approx(0.003, abs=0.0001)
    assert 0.008 <= waited.quantile_ms(0.99) <= 50
    assert waited.quantile_ms(1) == 50


@given(st.lists(st.integers(0, 5), min_size=24, max_size=24), st.floats(0.01, 1), st.floats(0.01, 1))
def test_quantiles_grow_and_none_is_longer_than_the_longest(buckets, one, other):
    last = max((number for number, count in enumerate(buckets) if count), default=0)
    waited = Waited()
    waited.add(buckets, 2**last * 1000)
    low, high = waited.quantile_ms(min(one, other)), waited.quantile_ms(max(one, other))
    if low is None or high is None:
        assert not sum(buckets)
        return
    assert 0 <= low <= high <= 2**last / 1000 + 0.001
