from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.shares import Placed, TenantPolicy, Workload, shares


def policies(**guarantees):
    return {name: TenantPolicy(name, milli) for name, milli in guarantees.items()}


def test_two_labs_get_what_they_asked():
    placed = [Placed("g1", "research", "d0", 750, 750), Placed("g2", "class", "d0", 250, 250)]
    result = shares(policies(research=750, **{"class": 250}), placed)
    assert [result[g, "d0"].guarantee_milli for g in ("g1", "g2")] == [750, 250]


def test_a_tenants_unreserved_guarantee_goes_to_its_grants_by_time():
    placed = [Placed("g1", "a", "d0", 100, 100), Placed("g2", "a", "d0", 300, 300), Placed("g3", "b", "d0", 200, 200)]
    result = shares(policies(a=600, b=400), placed)
    assert [result[g, "d0"].guarantee_milli for g in ("g1", "g2", "g3")] == [150, 450, 400]


def surplus(result, device="d0"):
    """Who gets how much of the highest tier's surplus, as parts of 1000."""
    top = max(share.tier for (_, on), share in result.items() if on == device)
    weights = {grant: share.weight for (grant, on), share in result.items() if on == device and share.tier == top}
    return {grant: 1000 * weight / sum(weights.values()) for grant, weight in weights.items()}


def running(result, *grants):
    return {key: share for key, share in result.items() if key[0] in grants}


def test_what_is_idle_inside_a_tenant_goes_to_its_runnable_grants():
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g2", "a", "d0", 200, 200), Placed("g3", "b", "d0", 600, 600)]
    result = shares(policies(a=400, b=600), placed, runnable={"g1", "g3"})
    # Who is idle keeps its guarantee, so that it starts promptly when it wakes: nothing is promised twice.
    assert [result[g, "d0"].guarantee_milli for g in ("g1", "g2", "g3")] == [200, 200, 600]
    # The 200 that nobody uses are a's: 200 + 200 x 0.98.
    assert surplus(running(result, "g1", "g3"))["g1"] > 975


def test_what_nobody_is_promised_is_split_by_weight_beside_that():
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g2", "a", "d0", 200, 200), Placed("g3", "b", "d0", 200, 200)]
    result = shares(policies(a=400, b=200), placed, runnable={"g1", "g3"})
    got = surplus(running(result, "g1", "g3"))
    # 200 of a's own and half of the 400 that are nobody's, of 600.
    assert abs(got["g1"] - 1000 * 400 / 600) < 2


def test_what_is_a_tenants_own_comes_before_a_higher_tier():
    tenants = {"a": TenantPolicy("a", 400), "b": TenantPolicy("b", 200, tier=3)}
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g2", "a", "d0", 200, 200), Placed("g3", "b", "d0", 200, 200)]
    result = shares(tenants, placed, runnable={"g1", "g3"})
    assert abs(surplus(running(result, "g1", "g3"))["g1"] - 1000 * 200 / 600) < 2
    assert shares(tenants, placed)["g1", "d0"].tier == 0


def test_a_tenants_whole_weight_is_with_those_that_run():
    tenants = {"a": TenantPolicy("a", 0), "b": TenantPolicy("b", 0)}
    placed = [Placed("g1", "a", "d0", 100, 0), Placed("g2", "a", "d0", 300, 0), Placed("g3", "b", "d0", 100, 0)]
    result = shares(tenants, placed, runnable={"g1", "g3"})
    assert result["g1", "d0"].weight == result["g3", "d0"].weight
    # One that wakes has its part at once, not what an absentee had.
    assert result["g2", "d0"].weight == 3 * result["g1", "d0"].weight // 4


def test_scavengers_stay_last_unless_it_is_their_own():
    tenants = {"s": TenantPolicy("s", 200, weight=0), "b": TenantPolicy("b", 0)}
    placed = [Placed("g1", "s", "d0", 100, 100), Placed("g2", "s", "d0", 100, 100), Placed("g3", "b", "d0", 100, 0)]
    assert shares(tenants, placed, runnable={"g1", "g2", "g3"})["g1", "d0"].weight == 0
    result = shares(tenants, placed, runnable={"g1", "g3"})
    assert abs(surplus(running(result, "g1", "g3"))["g1"] - 1000 * 100 / 900) < 2


def test_two_grants_of_a_tenant_borrow_no_more_than_one():
    tenants = {"a": TenantPolicy("a", 0, weight=2), "b": TenantPolicy("b", 0, weight=2)}
    placed = [Placed("g1", "a", "d0", 300, 0), Placed("g2", "a", "d0", 100, 0), Placed("g3", "b", "d0", 400, 0)]
    result = shares(tenants, placed)
    assert result["g1", "d0"].weight + result["g2", "d0"].weight == result["g3", "d0"].weight
    assert result["g1", "d0"].weight == 3 * result["g2", "d0"].weight


def test_scavengers_limits_tiers_and_classes_pass_through():
    tenants = {"s": TenantPolicy("s", 0, weight=0, tier=2)}
    placed = [Placed("g1", "s", "d0", 300, 0, 500, Workload.INTERACTIVE)]
    share = shares(tenants, placed)["g1", "d0"]
    assert (share.weight, share.tier, share.limit_milli, share.workload) == (0, 2, 500, Workload.INTERACTIVE)


def test_a_guarantee_never_exceeds_its_grants_limit():
    result = shares(policies(a=1000), [Placed("g1", "a", "d0", 200, 200, 300)])
    assert result["g1", "d0"].guarantee_milli == 300


rows = st.tuples(st.sampled_from("abc"), st.sampled_from(["d0", "d1"]), st.integers(1, 400))


@given(
    st.lists(rows, max_size=8),
    st.lists(st.integers(0, 2000), min_size=3, max_size=3),
    st.none() | st.sets(st.sampled_from([f"g{i}" for i in range(8)])),
)
def test_a_device_is_never_promised_twice_and_reservations_are_kept(found, guarantees, runnable):
    placed, used = [], {"d0": 0, "d1": 0}
    for number, (tenant, device, time) in enumerate(found):
        reserved = min(time, 1000 - used[device])
        used[device] += reserved
        placed.append(Placed(f"g{number}", tenant, device, time, reserved))
    tenants = {name: TenantPolicy(name, milli) for name, milli in zip("abc", guarantees, strict=True)}
    result = shares(tenants, placed, runnable)
    assert all(0 < share.weight < 2**32 for share in result.values())
    for device in used:
        here = [p for p in placed if p.device == device]
        assert sum(result[p.grant, device].guarantee_milli for p in here) <= 1000
        for tenant in "abc":
            mine = [p for p in here if p.tenant == tenant]
            given_ = sum(result[p.grant, device].guarantee_milli for p in mine)
            assert given_ >= sum(p.guaranteed_milli for p in mine)
