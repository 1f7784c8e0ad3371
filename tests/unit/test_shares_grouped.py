"""Shares are worked out with rows grouped once: the same as when each tenant looks through all rows, as here."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.policy import shares as policy
from gpushare.policy.entitlement import Part, water_fill
from gpushare.policy.shares import DEVICE_MILLI, Placed
from gpushare.policy.tenant import TenantPolicy


def limits(tenants, placed, milli, runnable):
    found = {(row.grant, row.device): row.limit_milli for row in placed}
    for name, tenant in tenants.items():
        mine = [row for row in placed if row.tenant == name]
        running = [row for row in mine if runnable is None or row.grant in runnable]
        due = {(row.grant, row.device): milli[name, row.device][row.grant] for row in mine}
        for rows in (mine, running) if running else (mine,):
            found.update(policy._part_of_limit(tenant.limit_milli, rows, due))
    return found


def guarantees(tenants, placed):
    groups = policy._by_tenant_and_device(placed)
    reserved = {key: sum(row.guaranteed_milli for row in rows) for key, rows in groups.items()}
    asked = {key: sum(row.time_milli for row in rows) for key, rows in groups.items()}
    result = dict(reserved)
    for device in {device for _, device in groups}:
        here = [tenant for tenant, on in groups if on == device]
        free = DEVICE_MILLI - sum(reserved[tenant, device] for tenant in here)
        extra = []
        for tenant in here:
            everywhere = sum(milli for (name, _), milli in asked.items() if name == tenant)
            due = tenants[tenant].guarantee_milli * asked[tenant, device] // max(1, everywhere)
            more = max(0, due - reserved[tenant, device])
            extra.append(Part(tenant, max(1, more), more))
        for tenant, milli in water_fill(max(0, free), extra).items():
            result[tenant, device] += milli
    return result


rows = st.lists(
    st.tuples(
        st.integers(0, 7), st.sampled_from(["d0", "d1", "d2"]), st.sampled_from([5, 50, 400]),
        st.sampled_from([0, 5, 50]), st.sampled_from([1000, 400]),
    ),
    max_size=14, unique_by=lambda row: row[:2],
)  # fmt: skip
tenant_limits = st.lists(st.sampled_from([None, 50, 200, 1500]), min_size=3, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, tenant_limits, st.none() | st.sets(st.integers(0, 7)))
def test_the_same_shares(monkeypatch: pytest.MonkeyPatch, found, most, running):
    tenants = {f"t{n}": TenantPolicy(f"t{n}", 300 * n, n, limit_milli=limit) for n, limit in enumerate(most)}
    placed = [Placed(f"g{grant}", f"t{grant % 3}", *rest) for grant, *rest in found]
    runnable = None if running is None else {f"g{grant}" for grant in running}
    grouped = policy.shares(tenants, placed, runnable)
    with monkeypatch.context() as patch:
        patch.setattr(policy, "_limits", limits)
        patch.setattr(policy, "_guarantees", guarantees)
        assert policy.shares(tenants, placed, runnable) == grouped
