"""Strategies for tenants, to test properties of entitlements."""

from hypothesis import strategies as st

from gpushare.policy.quota.entitlement import TenantState

milli = st.integers(0, 4000)


@st.composite
def states(draw, *, fitting=False):
    """(capacity, tenants). fitting: the guarantees fit the capacity, and limits are at least the guarantee."""
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True))
    tenants = []
    for name in names:
        guarantee = draw(st.one_of(st.just(0), milli))
        limit = draw(st.one_of(st.none(), milli))
        tenants.append(
            TenantState(
                name,
                guarantee,
                draw(st.one_of(milli, st.integers(0, 10**13))),
                draw(st.integers(0, 4)),
                draw(st.integers(-1, 1)),
                limit if limit is None else max(limit, guarantee),
                draw(st.integers(0, 3)),
            )
        )
    promised = sum(tenant.guarantee for tenant in tenants)
    most = draw(st.sampled_from((8000, 10**13)))
    capacity = draw(st.integers(promised, promised + most) if fitting else st.integers(0, most))
    return capacity, tenants


def wanted(tenant):
    return tenant.demand if tenant.limit is None else min(tenant.demand, tenant.limit)


@st.composite
def trees(draw, most=12):
    """(capacity, tenants) of up to three levels; children's guarantees sum to at most their parent's."""
    tenants, left = [], {}
    small = st.integers(0, 12)
    for number in range(draw(st.integers(1, most))):
        parents = [t.name for t in tenants if t.name.count("/") < 2]
        parent = draw(st.sampled_from([None, None, *parents]))
        name = f"{parent}/{number}" if parent else f"t{number}"
        guarantee = draw(st.one_of(st.just(0), st.integers(0, 4000), small))
        if parent:
            guarantee = min(guarantee, left[parent])
            left[parent] -= guarantee
        left[name] = guarantee
        demand = draw(st.one_of(st.just(0), st.integers(0, 8000), small))
        limit = draw(st.one_of(st.none(), st.integers(0, 6000), small))
        weight, tier, usage = draw(st.integers(0, 3)), draw(st.integers(-1, 1)), draw(st.integers(0, 2))
        tenants.append(TenantState(name, guarantee, demand, weight, tier, limit, usage, parent))
    return draw(st.one_of(st.integers(0, 16000), small)), draw(st.permutations(tenants))
