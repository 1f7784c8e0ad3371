"""Shares computed with rows grouped once equal those of the computation here, where each tenant scans all rows."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.policy.quota import shares as policy
from gpushare.policy.quota.entitlement import Part, water_fill
from gpushare.policy.quota.shares import DEVICE_MILLI, Placed
from gpushare.policy.quota.tenant import TenantPolicy


def limits(tenants, placed, milli, running):
    found = {(row.grant, row.device): row.limit_milli for row in placed}
    for name, tenant in tenants.items():
        mine = [row for row in placed if row.tenant == name]
        work = [row for row in mine if row.grant in running]
        due = {(row.grant, row.device): milli[row.device][row.grant] for row in mine}
        for rows in (mine, work) if work else (mine,):
            found.update(policy._part_of_limit(tenant.limit_milli, rows, due))
    return {device: {grant: limit for (grant, on), limit in found.items() if on == device} for device in milli}


def guarantees(tenants, groups):
    placed = [row for here in groups.values() for rows in here.values() for row in rows]
    result = {}
    for device, here in groups.items():
        result[device] = {}
        for tenant in here:
            mine = [row for row in placed if row.tenant == tenant and row.device == device]
            result[device][tenant] = sum(row.guaranteed_milli for row in mine)
        free = DEVICE_MILLI - sum(result[device].values())
        extra = []
        for tenant in here:
            everywhere = sum(row.time_milli for row in placed if row.tenant == tenant)
            asked = sum(row.time_milli for row in placed if row.tenant == tenant and row.device == device)
            due = tenants[tenant].guarantee_milli * asked // max(1, everywhere)
            more = max(0, due - result[device][tenant])
            extra.append(Part(tenant, max(1, more), more))
        for tenant, milli in water_fill(max(0, free), extra).items():
            result[device][tenant] += milli
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
        patch.setattr(policy, "_split_kept", policy._split)  # nothing is kept from other calls
        assert policy.shares(tenants, placed, runnable) == grouped
