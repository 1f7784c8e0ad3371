"""Weights corrected by past borrowing: worked cases, the promises under them, and their effect over time."""

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values.quotastates import states, trees, wanted

from gpushare.errors import UsageError
from gpushare.policy.quota import entitlement, tree
from gpushare.policy.quota.entitlement import TenantState
from gpushare.policy.quota.history import corrected, decayed
from gpushare.policy.quota.solve import solve

factors = st.sampled_from([0.25, 1, 3, 1000]) | st.floats(0, 10)


def row(name, w=1, usage=0, parent=None, demand=8000, **more):
    return {"name": name, "w": w, "usage": usage, "parent": parent, "demand": demand, **more}


@pytest.mark.parametrize(
    ("k", "rows", "entitled"),
    [
        (0, [row("a", usage=9), row("b")], [4000, 4000]),
        (None, [row("a", usage=9), row("b")], [4000, 4000]),
        (1, [row("a"), row("b")], [4000, 4000]),
        # u 3/4 and 1/4, w 1/2: 1/2 - 1/4 and 1/2 + 1/4.
        (1, [row("a", usage=3), row("b", usage=1)], [2000, 6000]),
        (0.5, [row("a", usage=0.75), row("b", usage=0.25)], [3000, 5000]),
        # w 3/4 and 1/4: each had its part, so nothing is corrected.
        (1, [row("a", w=3, usage=30), row("b", usage=10)], [6000, 2000]),
        (1, [row("a", usage=1), row("b")], [0, 8000]),
        # A tenant gets what others of its tier leave before lower tiers and scavengers.
        (9, [row("a", usage=1), row("b", demand=1000), row("c", tier=-1), row("d", w=0)], [7000, 1000, 0, 0]),
        (9, [row("a", usage=1, demand=1000), row("b", demand=1000), row("c", w=0)], [1000, 1000, 6000]),
        # Tiers, families and scavengers are corrected separately.
        (1, [row("a", tier=1, usage=99, demand=4000), row("b", usage=3), row("c", usage=1)], [4000, 1000, 3000]),
        (1, [row("a", w=0, usage=99), row("b", usage=3), row("c", usage=1)], [0, 2000, 6000]),
        (1, [row("f", usage=3, demand=0), row("f/a", usage=1, parent="f"), row("f/b", parent="f"), row("g", usage=1)],
         [2000, 0, 2000, 6000]),
        # A parent's own grants have weight 1, whatever the family borrowed.
        (1, [row("f", usage=9), row("f/a", usage=3, parent="f"), row("f/b", usage=1, parent="f")], [8000, 1333, 4000]),
        # Guarantees do not change.
        (3, [row("a", usage=1, g=2000), row("b", g=1000)], [2000, 6000]),
    ],
)  # fmt: skip
def test_worked_cases(k, rows, entitled):
    found = solve({"C": 8000, "k": k, "tenants": rows})
    assert list(found["entitlement"].values()) == entitled


@pytest.mark.parametrize("value", [-1, "1", True, float("nan"), float("inf"), 1 << 53, 1e300], ids=str)
def test_numbers_without_sense_are_refused(value):
    with pytest.raises(UsageError, match=r"state: k is .*: give a number of at least 0, and at most 9007199254740991"):
        solve({"C": 1, "k": value, "tenants": []})
    with pytest.raises(UsageError, match=r"tenant 'a': usage is .*: give a number of at least 0, and at most 90"):
        solve({"C": 1, "tenants": [row("a", usage=value)]})


@given(trees())
def test_without_a_factor_nothing_is_other_than_it_was(state):
    capacity, tenants = state
    assert tree.entitle(capacity, tenants, corrected(tenants, 0)) == tree.entitle(capacity, tenants)


@given(states(), factors, st.data())
def test_promises_hold_with_a_factor(state, k, data):
    capacity, tenants = state
    weights = corrected(tenants, k)
    result = entitlement.entitle(capacity, tenants, weights)
    assert sum(result.milli.values()) == min(capacity, sum(map(wanted, tenants)))  # I1
    assert all(0 <= result.milli[t.name] <= wanted(t) for t in tenants)  # I3
    assert result == entitlement.entitle(capacity, tenants[::-1], corrected(tenants[::-1], k))
    assert result.degraded == entitlement.entitle(capacity, tenants).degraded
    # I6, as long as the history stays the same.
    tenant = data.draw(st.sampled_from(tenants))
    more = replace(tenant, demand=tenant.demand + data.draw(st.integers(1, 4000)))
    after = entitlement.entitle(capacity, [more if t is tenant else t for t in tenants], weights)
    assert after.milli[tenant.name] >= result.milli[tenant.name]
    if result.degraded:
        return
    assert all(result.milli[t.name] >= min(t.guarantee, t.demand) for t in tenants)  # I2
    borrowed = {t.name: result.milli[t.name] - min(t.guarantee, wanted(t)) for t in tenants}
    for t in (t for t in tenants if result.milli[t.name] < wanted(t)):  # I5
        for other in tenants:
            if t.weight and (not other.weight or other.tier < t.tier):
                assert borrowed[other.name] == 0
            elif t.weight and other.weight and other.tier == t.tier and weights[t.name]:
                assert (borrowed[t.name] + 1) * weights[other.name] >= (borrowed[other.name] - 1) * weights[t.name]


@given(trees(), factors)
def test_promises_hold_in_every_family_with_a_factor(state, k):
    capacity, tenants = state
    found = tree.entitle(capacity, tenants, corrected(tenants, k))
    by_name = {tenant.name: tenant for tenant in tenants}
    wants = tree.wanted(tree.families(by_name), by_name)
    assert sum(found.milli[t.name] for t in tenants if t.parent is None) == min(
        capacity, sum(wants[t.name] for t in tenants if t.parent is None)
    )
    for tenant in tenants:
        own = found.milli[tenant.name] - sum(found.milli[t.name] for t in tenants if t.parent == tenant.name)
        assert 0 <= own <= tenant.demand and found.milli[tenant.name] <= wants[tenant.name]
        if not found.degraded:
            assert found.milli[tenant.name] >= min(tenant.guarantee, wants[tenant.name])


@given(states(), factors)
def test_the_sum_of_weights_stays_unless_one_would_be_negative(state, k):
    _, tenants = state
    weights = corrected(tenants, k)
    for tier in {t.tier for t in tenants}:
        here = [t for t in tenants if t.weight and t.tier == tier]
        if all(weights[t.name] for t in here):
            assert sum(weights[t.name] for t in here) == sum(t.weight for t in here)


def test_usage_decays():
    assert decayed({"a": 800.0, "gone": 5.0}, {"a": 0, "b": 10}, 120, 60) == {"a": 200, "b": 1200}
    assert decayed({"a": 1.5}, {"a": 0}, 60, 60) == {}


def test_a_thousand_tenants_are_quick():
    tenants = [TenantState(f"t{i}", 5, 50, i % 4, usage=i * 0.1) for i in range(1000)]
    began = time.process_time()
    weights = corrected(tenants, 1.1)
    entitlement.entitle(8000, tenants, weights)
    print(f"{1000 * (time.process_time() - began):.1f} ms")
    assert time.process_time() - began < 1
    assert sum(weights.values(), Fraction(0)) >= sum(t.weight for t in tenants)
