import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values.quotastates import milli, states, wanted

from gpushare.errors import UsageError
from gpushare.policy.quota.entitlement import Part, TenantState, entitle, water_fill
from gpushare.policy.quota.solve import solve


@given(states())
def test_i1_all_that_can_be_used_is_given(state):
    capacity, tenants = state
    result = entitle(capacity, tenants)
    assert sum(result.milli.values()) == min(capacity, sum(map(wanted, tenants)))


@given(states())
def test_i2_a_wanted_guarantee_is_given_unless_degraded(state):
    capacity, tenants = state
    result = entitle(capacity, tenants)
    short = sum(min(t.guarantee, wanted(t)) for t in tenants) > capacity
    assert result.degraded == short
    if not short:
        assert all(result.milli[t.name] >= min(t.guarantee, t.demand) for t in tenants)


@given(states())
def test_i3_nobody_gets_more_than_it_wants_or_may(state):
    capacity, tenants = state
    result = entitle(capacity, tenants)
    assert all(0 <= result.milli[t.name] <= wanted(t) for t in tenants)


@given(states(), st.data())
def test_a_limit_below_the_guarantee_caps_both(state, data):
    capacity, tenants = state
    tenants = [replace(t, limit=data.draw(st.integers(0, t.guarantee))) for t in tenants]
    result = entitle(capacity, tenants)
    assert sum(result.milli.values()) == min(capacity, sum(map(wanted, tenants)))
    assert all(result.milli[t.name] <= wanted(t) for t in tenants)
    if not result.degraded:
        assert all(result.milli[t.name] == wanted(t) for t in tenants)


@given(states())
def test_degraded_shrinks_all_by_their_guarantees(state):
    capacity, tenants = state
    result = entitle(capacity, tenants)
    if not result.degraded:
        return
    part = {t.name: (result.milli[t.name], t) for t in tenants if t.guarantee}
    for got, t in part.values():
        for other_got, other in part.values():
            if got < min(t.guarantee, wanted(t)):
                # One more would give this tenant at least as much per unit of guarantee as any other.
                assert (got + 1) * other.guarantee >= (other_got - 1) * t.guarantee


@given(states())
def test_i5_surplus_is_fair_inside_a_tier_and_tiers_are_strict(state):
    capacity, tenants = state
    result = entitle(capacity, tenants)
    if result.degraded:
        return
    borrowed = {t.name: result.milli[t.name] - min(t.guarantee, wanted(t)) for t in tenants}
    unsatisfied = [t for t in tenants if result.milli[t.name] < wanted(t)]
    for t in unsatisfied:
        for other in tenants:
            if other.weight == 0 and t.weight > 0:
                assert borrowed[other.name] == 0
            if t.weight > 0 and other.weight > 0 and other.tier < t.tier:
                assert borrowed[other.name] == 0
            if t.weight > 0 and other.weight > 0 and other.tier == t.tier:
                assert (borrowed[t.name] + 1) * other.weight >= (borrowed[other.name] - 1) * t.weight
            if t.weight == 0 and other.weight == 0:
                assert borrowed[t.name] + 1 >= borrowed[other.name]


@given(states(), st.data())
def test_i6_asking_for_more_never_gives_less(state, data):
    capacity, tenants = state
    i = data.draw(st.integers(0, len(tenants) - 1))
    more = data.draw(st.integers(1, 4000))
    before = entitle(capacity, tenants)
    t = tenants[i]
    raised = [
        *tenants[:i],
        TenantState(t.name, t.guarantee, t.demand + more, t.weight, t.tier, t.limit, t.usage),
        *tenants[i + 1 :],
    ]
    after = entitle(capacity, raised)
    assert after.milli[t.name] >= before.milli[t.name]


@given(states(fitting=True), st.data())
def test_i6_others_never_push_one_below_its_guarantee(state, data):
    capacity, tenants = state
    i = data.draw(st.integers(0, len(tenants) - 1))
    others = [
        t if j == i else TenantState(t.name, t.guarantee, data.draw(milli), t.weight, t.tier, t.limit, t.usage)
        for j, t in enumerate(tenants)
    ]
    assert entitle(capacity, others).milli[tenants[i].name] >= min(tenants[i].guarantee, tenants[i].demand)


@given(states(), st.randoms(use_true_random=False))
def test_order_does_not_matter(state, rng: random.Random):
    capacity, tenants = state
    shuffled = list(tenants)
    rng.shuffle(shuffled)
    assert entitle(capacity, shuffled) == entitle(capacity, tenants)


def test_odd_units_go_to_the_largest_remainder_then_to_who_used_less_then_by_name():
    assert water_fill(10, [Part("a", 1, 99), Part("b", 1, 99), Part("c", 1, 99)]) == {"a": 4, "b": 3, "c": 3}
    assert water_fill(10, [Part("a", 1, 99, 5), Part("b", 1, 99), Part("c", 1, 99)]) == {"a": 3, "b": 4, "c": 3}
    assert water_fill(10, [Part("a", 2, 99), Part("b", 1, 99)]) == {"a": 7, "b": 3}
    assert water_fill(11, [Part("a", 2, 99), Part("b", 1, 99)]) == {"a": 7, "b": 4}


def test_what_a_capped_one_leaves_goes_to_the_others():
    assert water_fill(100, [Part("a", 1, 10), Part("b", 1, 1000), Part("c", 2, 1000)]) == {"a": 10, "b": 30, "c": 60}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], "not a JSON object"),
        ({"tenants": []}, "C is None"),
        ({"C": -1, "tenants": []}, "at least 0"),
        ({"C": True, "tenants": []}, "at least 0"),
        ({"C": 1000}, "not a list"),
        ({"C": 1000, "tenants": [7]}, r"tenants\[0\]"),
        ({"C": 1000, "tenants": [{"name": ""}]}, r"tenants\[0\]"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": "much"}]}, "tenant 'a': demand is 'much'"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": 1, "w": 0.5}]}, "w is 0.5"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": 1, "usage": float("nan")}]}, "usage is nan"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": 1, "usage": float("inf")}]}, "usage is inf"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": 1, "usage": True}]}, "usage is True"),
        ({"C": 1000.5, "tenants": []}, "C is 1000.5"),
        ({"C": float("inf"), "tenants": []}, "C is inf"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": None}]}, "demand is None"),
        ({"C": 1000, "tenants": [{"name": "a", "demand": 1}, {"name": "a", "demand": 1}]}, "twice"),
    ],
)
def test_a_malformed_state_is_named(state, message):
    with pytest.raises(UsageError, match=message):
        solve(state)


def test_what_is_left_out_of_a_state_has_defaults():
    state = {"C": 1000, "tenants": [{"name": "a", "demand": 900}, {"name": "b", "demand": 900, "limit": None}]}
    assert solve(state) == {"entitlement": {"a": 500, "b": 500}, "degraded": False}


def test_what_is_null_is_left_out_and_a_whole_number_is_an_integer_however_it_is_written():
    row = {"name": "a", "g": 100.0, "demand": 9e2, "w": None, "tier": None, "limit": 500.0, "usage": None}
    answer = solve({"C": 1000.0, "tenants": [row]})
    assert answer == {"entitlement": {"a": 500}, "degraded": False}
    assert isinstance(answer["entitlement"]["a"], int)


def test_without_a_limit_there_is_none():
    state = {"C": 10**12, "tenants": [{"name": "a", "demand": 10**12, "limit": None}]}
    assert solve(state)["entitlement"] == {"a": 10**12}
