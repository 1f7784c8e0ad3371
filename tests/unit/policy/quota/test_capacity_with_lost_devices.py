"""The remaining guarantees when devices are lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.quota.capacity import Promise, shrink, standing
from gpushare.policy.quota.entitlement import TenantState, entitle
from gpushare.policy.quota.shares import Placed

DEVICES = ("d0", "d1", "d2")


def stand(time, placed=(), usable=DEVICES, rest="default", memory=None):
    promised = {name: Promise(milli, (memory or {}).get(name, 0)) for name, milli in time.items()}
    return standing(promised, rest, Promise(1000 * len(usable), 100 * len(usable)), placed, usable)


def have(time, **more):
    return {name: promise.time for name, promise in stand(time, **more).have.items()}


def test_one_of_eight_devices():
    promised = {"a": 2000, "b": 6000}
    assert shrink(7000, promised) == {"a": 1750, "b": 5250}
    assert shrink(8000, promised) == promised
    assert shrink(0, promised) == {"a": 0, "b": 0}


def test_the_last_unit_goes_to_the_largest_remainder():
    assert shrink(1000, {"a": 1000, "b": 1000, "c": 1000}) == {"a": 334, "b": 333, "c": 333}
    assert shrink(1000, {"a": 500, "b": 700}) == {"a": 417, "b": 583}


def test_what_fits_stays_and_the_rest_is_the_default_tenants():
    promised = {"a": 700, "default": 2300}
    assert have(promised) == promised
    assert have(promised, usable=DEVICES[:1]) == {"a": 700, "default": 300}
    assert have({"a": 1200, "default": 1800}, usable=DEVICES[:1]) == {"a": 1000, "default": 0}
    assert have(promised, usable=()) == {"a": 0, "default": 0}


def test_memory_shrinks_alike():
    found = stand({"a": 0, "b": 0}, usable=DEVICES[:1], memory={"a": 150, "b": 50})
    assert [found.have[name].memory for name in "ab"] == [75, 25]
    assert found.degraded("a")


def test_reservations_follow_their_tenants_guarantee():
    placed = [Placed("g1", "a", "d0", 600, 600), Placed("g2", "a", "d1", 900, 900), Placed("g3", "b", "d1", 100, 100)]
    whole = stand({"a": 1500, "b": 1500}, placed)
    assert whole.kept == {("g1", "d0"): 600, ("g2", "d1"): 900, ("g3", "d1"): 100}
    less = stand({"a": 1500, "b": 1500}, placed, usable=("d1",))
    assert less.have["a"].time == 500
    assert less.kept == {("g1", "d0"): 0, ("g2", "d1"): 500, ("g3", "d1"): 100}


def test_a_tenant_that_is_gone_keeps_what_it_had_reserved():
    assert stand({"a": 0}, [Placed("g1", "gone", "d0", 300, 300)]).kept == {("g1", "d0"): 300}


promises = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1500), max_size=5)
rows = st.tuples(st.sampled_from("abcde"), st.sampled_from(DEVICES), st.integers(0, 1000))


@given(promises, st.lists(rows, max_size=8), st.sets(st.sampled_from(DEVICES)))
def test_promises_never_exceed_what_there_is_and_shrink_alike(named, found, usable):
    total = sum(named.values())
    # A state admitted while all devices worked: no grant exceeds its guarantee, no device its time.
    placed, room, left = [], dict.fromkeys(DEVICES, 1000), dict(named)
    for number, (tenant, device, milli) in enumerate(found):
        reserved = min(milli, room[device], left.get(tenant, 0))
        room[device] -= reserved
        if tenant in left:
            left[tenant] -= reserved
            placed.append(Placed(f"g{number}", tenant, device, max(1, milli), reserved))
    promised = {**named, "default": max(0, 3000 - total)}
    capacity = 1000 * len(usable)
    found_ = stand(promised, placed, tuple(usable))
    time = {name: promise.time for name, promise in found_.have.items()}
    assert all(0 <= time[name] <= promised[name] for name in promised)
    assert sum(time.values()) == min(capacity, sum(promised.values()))
    for name in named:
        if total <= capacity:
            assert time[name] == named[name]
        else:  # within one unit
            assert abs(time[name] - capacity * named[name] / total) < 1
    for row in placed:
        kept = found_.kept[row.grant, row.device]
        assert kept <= row.guaranteed_milli
        if row.device not in usable:
            assert kept == 0
    for name in named:
        mine = [row for row in placed if row.tenant == name and row.device in usable]
        kept = sum(found_.kept[row.grant, row.device] for row in mine)
        assert kept == min(time[name], sum(row.guaranteed_milli for row in mine))
    if len(usable) == len(DEVICES) and total <= capacity:
        assert all(found_.kept[row.grant, row.device] == row.guaranteed_milli for row in placed)
        assert not any(found_.degraded(name) for name in promised)


@given(promises.filter(lambda named: sum(named.values()) > 0), st.integers(0, 4))
def test_it_is_the_entitlement_of_tenants_that_want_all_they_are_promised(named, devices):
    tenants = [TenantState(name, milli, milli) for name, milli in named.items()]
    assert shrink(1000 * devices, named) == entitle(1000 * devices, tenants).milli


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a")])
def test_the_order_of_tenants_does_not_matter(order):
    assert shrink(1001, dict.fromkeys(order, 700)) == {"a": 334, "b": 334, "c": 333}
