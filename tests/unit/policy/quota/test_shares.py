from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.quota.shares import DEVICE_MILLI, Placed, Share, Workload, entitlements, shares
from gpushare.policy.quota.tenant import TenantPolicy


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


def test_what_is_reserved_for_a_grant_stays_its_own_beside_one_that_borrows():
    placed = [Placed("g1", "a", "d0", 400, 400), Placed("g2", "a", "d0", 400, 100), Placed("g3", "b", "d0", 400, 400)]
    result = shares(policies(a=500, b=400), placed)
    assert [result[g, "d0"].guarantee_milli for g in ("g1", "g2", "g3")] == [400, 100, 400]


def surplus(result, device="d0"):
    """How the surplus of the highest tier is split, in per mille."""
    top = max(share.tier for (_, on), share in result.items() if on == device)
    weights = {grant: share.weight for (grant, on), share in result.items() if on == device and share.tier == top}
    return {grant: 1000 * weight / sum(weights.values()) for grant, weight in weights.items()}


def running(result, *grants):
    return {key: share for key, share in result.items() if key[0] in grants}


def test_what_is_idle_inside_a_tenant_goes_to_its_runnable_grants():
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g2", "a", "d0", 200, 200), Placed("g3", "b", "d0", 600, 600)]
    result = shares(policies(a=400, b=600), placed, runnable={"g1", "g3"})
    # An idle grant keeps its guarantee, so that it starts promptly when it wakes: no guarantee is given out twice.
    assert [result[g, "d0"].guarantee_milli for g in ("g1", "g2", "g3")] == [200, 200, 600]
    # The unused 200 are a's: 200 + 200 x 0.98.
    assert surplus(running(result, "g1", "g3"))["g1"] > 975


def test_what_nobody_is_promised_is_split_by_weight_beside_that():
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g2", "a", "d0", 200, 200), Placed("g3", "b", "d0", 200, 200)]
    result = shares(policies(a=400, b=200), placed, runnable={"g1", "g3"})
    got = surplus(running(result, "g1", "g3"))
    # 200 of a's own and half of the 400 unreserved, of 600.
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
    # A waking grant has its own part at once, not that of an absent one.
    assert result["g2", "d0"].weight == 3 * result["g1", "d0"].weight // 4


def test_scavengers_stay_last_unless_it_is_their_own():
    tenants = {"s": TenantPolicy("s", 200, weight=0), "b": TenantPolicy("b", 0)}
    placed = [Placed("g1", "s", "d0", 100, 100), Placed("g2", "s", "d0", 100, 100), Placed("g3", "b", "d0", 100, 0)]
    assert shares(tenants, placed, runnable={"g1", "g2", "g3"})["g1", "d0"].weight == 0
    result = shares(tenants, placed, runnable={"g1", "g3"})
    assert abs(surplus(running(result, "g1", "g3"))["g1"] - 1000 * 100 / 900) < 2


def test_the_tier_of_a_scavenger_lifts_nobodys_idle_time_above_others():
    tenants = {
        "s": TenantPolicy("s", 20, weight=0),
        "t": TenantPolicy("t", 200, weight=0, tier=1),
        "b": TenantPolicy("b", 0),
    }
    placed = [Placed("g1", "s", "d0", 10, 10), Placed("g2", "s", "d0", 10, 10), Placed("g3", "t", "d0", 200, 200)]
    result = shares(tenants, [*placed, Placed("g4", "b", "d0", 100, 0)], runnable={"g1", "g3", "g4"})
    # 10 left by a's own idle grant, against the 780 unreserved.
    assert abs(surplus(running(result, "g1", "g4"))["g1"] - 1000 * 10 / 790) < 2
    assert result["g3", "d0"].weight == 0


def test_what_a_limited_tenant_of_the_highest_tier_leaves_is_split_by_weight():
    tenants = {"a": TenantPolicy("a", 200), "b": TenantPolicy("b", 100), "h": TenantPolicy("h", 0, 1, 1, 400)}
    placed = [Placed("g1", "a", "d0", 100, 100), Placed("g2", "a", "d0", 100, 100), Placed("g3", "b", "d0", 100, 100)]
    result = shares(tenants, [*placed, Placed("g4", "h", "d0", 100, 0)], runnable={"g1", "g3", "g4"})
    got = surplus(running(result, "g1", "g3", "g4"))
    # 400 of the 700 for h, half of the other 300 for each; and 100 left by a's idle grant.
    assert [round(got[grant]) for grant in ("g1", "g3", "g4")] == [312, 187, 500]


def test_two_grants_of_a_tenant_borrow_no_more_than_one():
    tenants = {"a": TenantPolicy("a", 0, weight=2), "b": TenantPolicy("b", 0, weight=2)}
    placed = [Placed("g1", "a", "d0", 300, 0), Placed("g2", "a", "d0", 100, 0), Placed("g3", "b", "d0", 400, 0)]
    result = shares(tenants, placed)
    assert result["g1", "d0"].weight + result["g2", "d0"].weight == result["g3", "d0"].weight
    assert result["g1", "d0"].weight == 3 * result["g2", "d0"].weight


def test_grants_that_asked_for_no_time_have_their_tenants_weight():
    tenants = {"a": TenantPolicy("a", 0, weight=2), "b": TenantPolicy("b", 0, weight=2)}
    placed = [Placed("g1", "a", "d0", 0, 0), Placed("g2", "a", "d0", 0, 0), Placed("g3", "b", "d0", 400, 0)]
    result = shares(tenants, placed)
    assert result["g1", "d0"].weight == result["g2", "d0"].weight == result["g3", "d0"].weight // 2
    assert all(share.guarantee_milli == 0 for share in result.values())


def test_what_a_full_device_cannot_promise_is_promised_on_others():
    # Of eight devices one failed: b, promised six, keeps five and a quarter, a one and three quarters.
    tenants = policies(a=1750, b=5250)
    placed = [Placed(f"a{i}", "a", f"d{i}", 1000, 875) for i in (0, 1)]
    placed += [Placed(f"b{i}", "b", f"d{i}", 1000, 1000) for i in range(2, 7)]
    placed += [Placed(f"l{i}", "b", f"d{i}", 0, 0) for i in (0, 1)]
    result = shares(tenants, placed)
    assert [result[f"l{i}", f"d{i}"].guarantee_milli for i in (0, 1)] == [125, 125]
    assert [result[f"a{i}", f"d{i}"].guarantee_milli for i in (0, 1)] == [875, 875]


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
            assert all(result[p.grant, device].guarantee_milli >= p.guaranteed_milli for p in mine)


def limits(result, *grants):
    return [share.limit_milli for (grant, _), share in sorted(result.items()) if grant in grants]


def test_a_tenants_limit_binds_its_grant():
    tenants = {"a": TenantPolicy("a", 200, limit_milli=300), "b": TenantPolicy("b", 0)}
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g2", "b", "d0", 100, 0)]
    assert limits(shares(tenants, placed), "g1", "g2") == [300, 1000]


def test_a_tenants_limit_is_split_over_devices_too_guarantees_first_then_by_time():
    tenants = {"a": TenantPolicy("a", 600, limit_milli=1000)}
    placed = [Placed("g1", "a", "d0", 200, 200), Placed("g1", "a", "d1", 200, 200), Placed("g2", "a", "d1", 200, 200)]
    assert limits(shares(tenants, placed), "g1", "g2") == [334, 333, 333]
    assert limits(shares(tenants, placed, runnable={"g2"}), "g2") == [1000]
    by_time = [Placed("g1", "a", "d0", 300, 300), Placed("g2", "a", "d1", 100, 100)]
    assert limits(shares({"a": TenantPolicy("a", 400, limit_milli=600)}, by_time), "g1", "g2") == [450, 150]


def test_who_runs_may_use_all_of_its_tenants_limit_and_who_wakes_has_its_part_at_once():
    tenants = {"a": TenantPolicy("a", 200, limit_milli=300)}
    placed = [Placed("g1", "a", "d0", 100, 100), Placed("g2", "a", "d0", 100, 100)]
    result = shares(tenants, placed, runnable={"g1"})
    assert limits(result, "g1", "g2") == [300, 150]


def test_a_limit_of_as_much_as_there_is_is_none():
    tenants = {"a": TenantPolicy("a", 0, limit_milli=2000)}
    placed = [Placed("g1", "a", "d0", 500, 0), Placed("g2", "a", "d0", 500, 0), Placed("g3", "a", "d1", 500, 0)]
    assert limits(shares(tenants, placed), "g1", "g2", "g3") == [1000, 1000, 1000]


def test_a_limit_below_what_grants_have_reserved_shrinks_them_in_proportion():
    tenants = {"a": TenantPolicy("a", 100, limit_milli=100)}
    placed = [Placed("g1", "a", "d0", 300, 300), Placed("g2", "a", "d0", 100, 100)]
    result = shares(tenants, placed)
    assert limits(result, "g1", "g2") == [75, 25]
    assert result["g1", "d0"].guarantee_milli == 75


limited_rows = st.tuples(
    st.sampled_from("ab"), st.sampled_from(["d0", "d1", "d2"]), st.integers(5, 300), st.integers(300, 1000)
)


@given(
    st.lists(limited_rows, max_size=8),
    st.lists(st.integers(5, 3500), min_size=2, max_size=2),
    st.none() | st.sets(st.sampled_from([f"g{i}" for i in range(8)])),
    st.randoms(use_true_random=False),
)
def test_grants_that_run_are_held_to_their_tenants_limit_to_the_last_unit(found, node_limits, runnable, rng):
    placed, used = [], {"d0": 0, "d1": 0, "d2": 0}
    for number, (tenant, device, time, limit) in enumerate(found):
        if used[device] + time > 1000:
            continue
        used[device] += time
        placed.append(Placed(f"g{number}", tenant, device, time, time, limit))
    tenants = {name: TenantPolicy(name, 0, limit_milli=most) for name, most in zip("ab", node_limits, strict=True)}
    result = shares(tenants, placed, runnable)
    for name, most in zip("ab", node_limits, strict=True):
        mine = [p for p in placed if p.tenant == name]
        for rows in (mine, [p for p in mine if runnable is None or p.grant in runnable]):
            if rows is mine and any(runnable is not None and p.grant in runnable for p in mine):
                continue
            given_ = sum(result[p.grant, p.device].limit_milli for p in rows)
            own = sum(p.limit_milli for p in rows)
            if most >= 1000 * len({p.device for p in rows}):
                assert given_ == own
            else:
                assert given_ == min(max(most, len(rows)), own)
        for p in mine:
            share = result[p.grant, p.device]
            assert 1 <= share.limit_milli <= p.limit_milli
            assert share.guarantee_milli <= share.limit_milli
            if most >= sum(max(1, q.guaranteed_milli) for q in mine):
                assert share.guarantee_milli >= p.guaranteed_milli
    rng.shuffle(placed)
    assert shares(tenants, placed, runnable) == result


def test_who_works_is_entitled_to_its_guarantee_and_its_part_of_what_is_left():
    here = {"a": Share(500, weight=1), "b": Share(200, weight=3), "idle": Share(300), "scavenger": Share(0, weight=0)}
    assert entitlements(here, {"a", "b", "scavenger"}) == {"a": 575, "b": 425, "idle": 0, "scavenger": 0}
    assert entitlements(here, {"scavenger"}) == {"a": 0, "b": 0, "idle": 0, "scavenger": 1000}
    high = {**here, "high": Share(0, limit_milli=100, tier=1)}
    assert entitlements(high, {"a", "high"}) == {"a": 900, "b": 0, "idle": 0, "scavenger": 0, "high": 100}


rows = st.builds(
    lambda guarantee, more, weight, tier: Share(guarantee, min(guarantee + more, DEVICE_MILLI), weight, tier),
    st.integers(0, 250),
    st.integers(1, 1000),
    st.integers(0, 1 << 20),
    st.integers(-3, 3),
)


@given(st.dictionaries(st.sampled_from("abcd"), rows), st.sets(st.sampled_from("abcd")))
def test_entitlements_are_all_that_can_be_used_and_keep_guarantees(here, working):
    found = entitlements(here, working)
    runs = {grant: share for grant, share in here.items() if grant in working}
    assert found.keys() == here.keys()
    assert sum(found.values()) == min(DEVICE_MILLI, sum(share.limit_milli for share in runs.values()))
    for grant, share in here.items():
        least, most = (share.guarantee_milli, share.limit_milli) if grant in runs else (0, 0)
        assert least <= found[grant] <= most


def test_what_is_left_of_a_guarantee_is_in_equal_parts_on_all_devices():
    placed = [Placed("g1", "a", f"d{number}", 0, 0) for number in range(3)]
    result = shares(policies(a=20), placed)
    assert sorted(result["g1", f"d{number}"].guarantee_milli for number in range(3)) == [6, 7, 7]
