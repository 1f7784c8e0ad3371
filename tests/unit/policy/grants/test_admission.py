from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import NotFoundError, RefusedError, UsageError
from gpushare.policy.grants.admission import GRANTS_MAX, Device, Holding, Request, Tenant, admit
from gpushare.policy.quota.shares import DEVICE_MILLI
from gpushare.text.units import GIB, MIB

CONTEXT = 16 * MIB


def device(index=0, memory=16 * GIB, **more):
    return Device(f"GPU-{index}", index, memory, context_bytes=CONTEXT, **more)


def tenants(*named, devices=1):
    """Tenants by name; `default` has the remaining guarantee."""
    found = {tenant.name: tenant for tenant in named}
    left = DEVICE_MILLI * devices - sum(tenant.guarantee_milli for tenant in named if tenant.name != "default")
    found["default"] = replace(found.get("default", Tenant("default", 0)), guarantee_milli=left)
    return found


DEFAULT = tenants()
LABS = tenants(Tenant("research", 750), Tenant("class", 250))


def hold(places, grant, tenant):
    return [
        Holding(grant, tenant, p.device, p.memory_bytes, p.time_milli, p.guaranteed_milli, p.limit_milli)
        for p in places
    ]


def test_several_devices_by_name():
    nodes = [device(index) for index in range(4)]
    both = tenants(devices=4)
    places = admit(Request("default", GIB, 300, devices=2, device=("GPU-3", 1)), nodes, both, [])
    assert {place.index for place in places} == {1, 3}
    with pytest.raises(UsageError, match="2 devices are asked for and 1 are named"):
        admit(Request("default", GIB, 300, devices=2, device=(1, 1)), nodes, both, [])
    with pytest.raises(NotFoundError, match="no device 'GPU-9'"):
        admit(Request("default", GIB, 300, devices=2, device=(1, "GPU-9")), nodes, both, [])


def test_two_labs_fill_a_device_and_a_third_is_notified_what_is_free():
    held = []
    for name, memory, time in (("research", 8 * GIB, 750), ("class", 4 * GIB, 250)):
        places = admit(Request(name, memory, time), [device()], LABS, held)
        assert [(p.device, p.guaranteed_milli, p.borrows) for p in places] == [("GPU-0", time, False)]
        held += hold(places, name, name)
    with pytest.raises(RefusedError, match=r"5% of time does not fit on device 0: 0% is free"):
        admit(Request("class", GIB, 50), [device()], LABS, held)
    with pytest.raises(RefusedError, match=r"5GiB of memory does not fit on device 0: 4GiB of 16GiB is free"):
        admit(Request("class", 5 * GIB, 50), [device()], LABS, held)


def test_what_exceeds_the_tenants_guarantee_is_borrowed_while_it_is_unclaimed():
    places = admit(Request("class", GIB, 600), [device()], LABS, [])
    assert places[0].guaranteed_milli == 250
    assert places[0].borrows
    held = hold(places, "g1", "class")
    # A borrower does not use up the owner's guarantee.
    owner = admit(Request("research", GIB, 750), [device()], LABS, held)
    assert owner[0].guaranteed_milli == 750
    with pytest.raises(RefusedError, match=r"40% is free, and tenant class has 0% of its guarantee of 25% left"):
        admit(Request("class", GIB, 500), [device()], LABS, held)


def test_who_asks_for_no_time_is_admitted_beside_full_promises_where_most_is_left():
    nodes = [device(0), device(1)]
    owners = tenants(Tenant("research", 1000), devices=2)
    held = hold(admit(Request("research", GIB, 1000, device=0), nodes, owners, []), "g1", "research")
    places = admit(Request("default", GIB, 0), nodes, owners, held)
    assert [(p.index, p.guaranteed_milli, p.borrows) for p in places] == [(1, 0, True)]
    assert admit(Request("default", GIB, 0, device=0), nodes, owners, held)[0].borrows
    # Nor does it block others.
    beside = held + hold(places, "g2", "default")
    assert admit(Request("default", GIB, 1000, device=1), nodes, owners, beside)[0].guaranteed_milli == 1000


def test_sixty_and_sixty_per_cent_do_not_fit_one_device():
    held = hold(admit(Request("default", GIB, 600), [device()], DEFAULT, []), "g1", "default")
    with pytest.raises(RefusedError, match=r"60% of time does not fit on device 0: 40% is free"):
        admit(Request("default", GIB, 600), [device()], DEFAULT, held)


def test_too_little_memory_is_refused_with_the_number():
    with pytest.raises(RefusedError, match=r"271MiB .* ask for 272MiB or more"):
        admit(Request("default", 271 * MIB, 100), [device()], DEFAULT, [])
    assert admit(Request("default", 272 * MIB, 100), [device()], DEFAULT, [])


def test_reserved_memory_is_not_given():
    with pytest.raises(RefusedError, match=r"15GiB of 16GiB is free"):
        admit(Request("default", 16 * GIB, 100), [device(reserved_bytes=GIB)], DEFAULT, [])


def test_memory_in_per_cent_is_of_each_device():
    devices = [device(0, 16 * GIB), device(1, 32 * GIB)]
    both = tenants(devices=2)
    places = admit(Request("default", "50%", 100, devices=2), devices, both, [])
    assert {p.index: p.memory_bytes for p in places} == {0: 8 * GIB, 1: 16 * GIB}


def test_the_fullest_device_that_fits_is_packed_and_a_named_one_is_kept_to():
    devices, both = [device(0), device(1)], tenants(devices=2)
    held = hold(admit(Request("default", 8 * GIB, 500, device=1), devices, both, []), "g1", "default")
    assert held[0].device == "GPU-1"
    assert admit(Request("default", 4 * GIB, 300, placement="pack"), devices, both, held)[0].index == 1
    assert admit(Request("default", 4 * GIB, 300), devices, both, held)[0].index == 0
    assert admit(Request("default", 4 * GIB, 600), devices, both, held)[0].index == 0
    assert admit(Request("default", 4 * GIB, 300, device="GPU-0"), devices, both, held)[0].index == 0
    with pytest.raises(RefusedError, match="on device 1"):
        admit(Request("default", 4 * GIB, 600, device=1), devices, both, held)


def test_memory_is_given_in_whole_pages_of_the_device():
    for asked, given_ in ((1001 * MIB, 1000 * MIB), (1002 * MIB, 1002 * MIB), (GIB + 1, GIB), ("35%", 2867 * 2 * MIB)):
        [found] = admit(Request("default", asked, 100), [device()], tenants(), [])
        assert found.memory_bytes == given_
        assert found.asked_bytes == (asked if isinstance(asked, int) else 16 * GIB * 35 // 100)


def test_several_devices_are_different_ones_and_all_or_none():
    devices, both = [device(0), device(1)], tenants(devices=2)
    assert [p.index for p in admit(Request("default", GIB, 1000, devices=2), devices, both, [])] == [0, 1]
    held = hold(admit(Request("default", GIB, 500), devices, both, []), "g1", "default")
    with pytest.raises(RefusedError, match="does not fit on device 0"):
        admit(Request("default", GIB, 600, devices=2), devices, both, held)
    with pytest.raises(RefusedError, match="3 devices asked for, the node has 2"):
        admit(Request("default", GIB, 600, devices=3), devices, both, held)


def test_unhealthy_devices_take_nothing():
    devices, both = [device(0, fault="it does not answer"), device(1)], tenants(devices=2)
    assert admit(Request("default", GIB, 100), devices, both, [])[0].index == 1
    with pytest.raises(RefusedError, match="takes no new grants: it does not answer"):
        admit(Request("default", GIB, 100, device=0), devices, both, [])


def test_memory_guaranteed_to_others_stays_free():
    held_back = tenants(Tenant("owner", 500, memory_bytes=8 * GIB))
    with pytest.raises(RefusedError, match=r"8GiB of it is guaranteed to other tenants"):
        admit(Request("default", 9 * GIB, 100), [device()], held_back, [])
    assert admit(Request("default", 8 * GIB, 100), [device()], held_back, [])
    assert admit(Request("owner", 9 * GIB, 100), [device()], held_back, [])


def test_memory_of_a_family_is_kept_for_those_in_it():
    lab = {
        "ml": Tenant("ml", 0, 6 * GIB),
        "ml/a": Tenant("ml/a", 0, 2 * GIB, parent="ml"),
        "sales": Tenant("sales", 0),
    }

    def fits(tenant, memory, held):
        try:
            return hold(admit(Request(tenant, memory, 0), [device()], lab, held), f"{tenant}{memory}", tenant)
        except RefusedError:
            return []

    held = fits("ml/a", 5 * GIB, [])  # 2 of its own, 3 of its parent's: of ml's 8, 3 are left
    assert not fits("sales", 9 * GIB, held)
    held += fits("sales", 8 * GIB, held)
    assert not fits("ml", 4 * GIB, held)
    assert fits("ml", 3 * GIB, held) and fits("ml/a", 3 * GIB, held)
    # The parent cannot take what ml/a is guaranteed.
    assert not fits("ml", 15 * GIB, []) and fits("ml", 14 * GIB, [])


def test_a_tenants_limit_counts_over_its_grants():
    limited = tenants(Tenant("lab", 500, limit_milli=600))
    held = hold(admit(Request("lab", GIB, 400), [device()], limited, []), "g1", "lab")
    with pytest.raises(RefusedError, match=r"limited to 60% of device time and its grants have 40%: 30% more"):
        admit(Request("lab", GIB, 300), [device()], limited, held)


def test_the_node_holds_so_many_grants_as_the_arbiter_can():
    held = [Holding(f"g{i}", "default", "GPU-0", 0, 0, 0) for i in range(GRANTS_MAX)]
    with pytest.raises(RefusedError, match="which is all it can"):
        admit(Request("default", GIB, 100), [device()], DEFAULT, held)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (Request("nobody", GIB, 100), NotFoundError, "no tenant 'nobody': known are default"),
        (Request("default", GIB, 100, device=7), NotFoundError, r"no device 7: known are 0 \(GPU-0\)"),
        (Request("default", GIB, -1), UsageError, "above 0"),
        (Request("default", GIB, 0, limit_milli=0), UsageError, "above 0"),
        (Request("default", GIB, 1001), UsageError, "at most 100%"),
        (Request("default", GIB, 500, limit_milli=400), UsageError, "below the time"),
        (Request("default", GIB, 100, devices=0), UsageError, "at least one device"),
        (Request("default", GIB, 100, devices=2, device=0), UsageError, "1 are named: name as many, or none"),
        (Request("default", "140%", 100), UsageError, "out of range"),
        (Request("default", GIB, 4), RefusedError, "ask for 0.5% or more"),
    ],
)
def test_bad_requests_say_what_is_wrong(request_, error, message):
    with pytest.raises(error, match=message):
        admit(request_, [device()], DEFAULT, [])


def test_a_node_without_devices_reports_it():
    with pytest.raises(RefusedError, match="no device"):
        admit(Request("default", GIB, 100), [], tenants(devices=0), [])


names = st.sampled_from(["default", "a", "b"])
requests = st.builds(Request, names, st.integers(MIB, 12 * GIB), st.integers(1, 1000), st.just(1000), st.integers(1, 2))


@given(st.lists(st.tuples(requests, st.booleans()), max_size=20))
def test_i4_promises_fit_after_any_history(history):
    devices = [device(0), device(1, 24 * GIB, reserved_bytes=GIB)]
    policy = tenants(Tenant("a", 700), Tenant("b", 300), devices=len(devices))
    held = []
    for number, (request, release) in enumerate(history):
        if release and held:
            gone = held[0].grant
            held = [holding for holding in held if holding.grant != gone]
        try:
            held += hold(admit(request, devices, policy, held), f"g{number}", request.tenant)
        except RefusedError:
            continue
        for d in devices:
            here = [holding for holding in held if holding.device == d.id]
            assert sum(holding.guaranteed_milli for holding in here) <= 1000
            assert sum(holding.memory_bytes for holding in here) <= d.memory_bytes - d.reserved_bytes
        for name, tenant in policy.items():
            guaranteed = sum(holding.guaranteed_milli for holding in held if holding.tenant == name)
            assert guaranteed <= tenant.guarantee_milli
