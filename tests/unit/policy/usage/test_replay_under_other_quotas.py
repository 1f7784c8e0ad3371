"""A recorded ledger replayed under other quotas: worked cases, and properties of any replay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.errors import UsageError
from gpushare.policy.quota.entitlement import TenantState
from gpushare.policy.usage.replay import Slot, replay

HOUR = 3600 * 10**9


def slot(used: dict[str, float], waited: dict[str, float] | None = None, devices: int = 8, at: int = 0) -> Slot:
    """A slot of one hour; `used` and `waited` by tenant, in device hours."""

    def ns(hours: dict[str, float]) -> dict[str, int]:
        return {name: int(number * HOUR) for name, number in hours.items()}

    return Slot(at * HOUR, HOUR, devices * HOUR, ns(used), ns(waited or {}))


def test_the_guarantees_exchanged() -> None:
    """Eight devices: a had 2 and b 6 while both wanted all. With the guarantees exchanged, b waits as a did."""
    record = [slot({"a": 2, "b": 6}, {"a": 6, "b": 2})]
    found = replay(record, [TenantState("a", 6000, 0), TenantState("b", 2000, 0)])
    a, b = found.tenants["a"], found.tenants["b"]
    assert (a.was_used_ns, a.was_waited_ns, a.used_ns, a.waited_ns) == (2 * HOUR, 6 * HOUR, 6 * HOUR, 2 * HOUR)
    assert (b.was_used_ns, b.was_waited_ns, b.used_ns, b.waited_ns) == (6 * HOUR, 2 * HOUR, 2 * HOUR, 6 * HOUR)
    assert (found.idle_ns, found.was_idle_ns, found.capacity_ns) == (0, 0, 8 * HOUR)
    assert (a.short_ns, b.short_ns, b.worst_ns) == (HOUR, HOUR, 6 * HOUR)


def test_a_limit_leaves_devices_idle() -> None:
    record = [slot({"a": 8}, at=0), slot({"a": 2}, at=1)]
    found = replay(record, [TenantState("a", 2000, 0, limit=3000)])
    a = found.tenants["a"]
    assert (a.used_ns, a.borrowed_ns, a.waited_ns, a.worst_at_ns) == (5 * HOUR, HOUR, 5 * HOUR, 0)
    assert (found.idle_ns, found.was_idle_ns) == (11 * HOUR, 6 * HOUR)


def test_what_a_tenant_leaves_of_its_guarantee_is_reported_and_lent() -> None:
    found = replay([slot({"a": 1, "b": 4})], [TenantState("a", 6000, 0), TenantState("b", 2000, 0)])
    assert found.tenants["a"].unused_ns == 5 * HOUR
    assert found.tenants["b"].borrowed_ns == 2 * HOUR
    assert found.tenants["b"].waited_ns == 0
    assert found.idle_ns == 3 * HOUR


def test_a_family_keeps_its_surplus() -> None:
    quotas = [
        TenantState("ml", 4000, 0),
        TenantState("ml/a", 2000, 0, parent="ml"),
        TenantState("ml/b", 2000, 0, parent="ml"),
        TenantState("ops", 4000, 0),
    ]
    found = replay([slot({"ml/a": 4, "ops": 4}, {"ml/a": 4, "ops": 4})], quotas)
    assert found.tenants["ml/a"].used_ns == 4 * HOUR
    assert found.tenants["ml/a"].borrowed_ns == 2 * HOUR
    assert found.tenants["ops"].used_ns == 4 * HOUR
    assert found.tenants["ml"].used_ns == found.tenants["ml"].borrowed_ns == 0


def test_a_tenant_without_a_quota_takes_what_is_left() -> None:
    record = [slot({"gone": 8}, {"a": 3, "ml/new": 1})]
    found = replay(record, [TenantState("a", 3000, 0), TenantState("ml", 1000, 0)])
    assert found.unknown == ["gone", "ml/new"]
    assert found.tenants["a"].waited_ns == 0
    assert found.tenants["ml/new"].used_ns == HOUR  # from ml's guarantee
    assert found.tenants["gone"].used_ns == 4 * HOUR


def test_fewer_devices_than_are_guaranteed() -> None:
    found = replay(
        [slot({"a": 2, "b": 2}, {"a": 2}, devices=4)], [TenantState("a", 4000, 0), TenantState("b", 4000, 0)]
    )
    assert found.degraded_ns == HOUR
    assert found.tenants["a"].used_ns + found.tenants["b"].used_ns == 4 * HOUR


def test_children_with_more_than_their_parent_are_refused() -> None:
    with pytest.raises(UsageError, match="'ml' is guaranteed 1000, and those below it 2000"):
        replay([], [TenantState("ml", 1000, 0), TenantState("ml/a", 2000, 0, parent="ml")])


_NAMES = ("a", "b", "ml", "ml/x", "ml/y", "other")
_HOURS = st.dictionaries(st.sampled_from(_NAMES), st.integers(0, 8 * HOUR))


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(Slot, st.integers(0, 1 << 60), st.just(HOUR), st.integers(0, 8 * HOUR), _HOURS, _HOURS), max_size=4
    ),
    st.tuples(*(st.integers(0, 4000) for _ in range(4))),
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
    st.lists(st.none() | st.integers(0, 8000), min_size=5, max_size=5),
)
def test_adds_up(slots: list[Slot], own: tuple[int, ...], weights: list[int], limits: list[int | None]) -> None:
    """No tenant gets more than it wanted, demand is served or waits, and served and idle time add up to the
    capacity."""
    milli = {"a": own[0], "b": own[1], "ml": own[2] + own[3], "ml/x": own[2], "ml/y": own[3]}
    quotas = [
        TenantState(name, milli[name], 0, weight, limit=limit, parent="ml" if "/" in name else None)
        for name, weight, limit in zip(milli, weights, limits, strict=True)
    ]
    found = replay(slots, quotas)
    for outcome in found.tenants.values():
        assert outcome.used_ns + outcome.waited_ns == outcome.was_used_ns + outcome.was_waited_ns
        assert min(outcome.used_ns, outcome.waited_ns, outcome.borrowed_ns, outcome.unused_ns) >= 0
        assert outcome.borrowed_ns <= outcome.used_ns
        assert bool(outcome.waited_ns) == bool(outcome.short_ns)
    assert sum(outcome.used_ns for outcome in found.tenants.values()) + found.idle_ns == found.capacity_ns
