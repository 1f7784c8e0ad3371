"""Where a single share goes: spread, or packed; and what spread never takes from others."""

import contextlib
import random
import secrets
from dataclasses import replace

from gpushare.errors import RefusedError
from gpushare.policy.grants.admission import WORKING_BYTES, Device, Request, Tenant, place
from gpushare.policy.grants.taken import Holding, Taken
from gpushare.text.units import GIB, PAGE

CONTEXT = 16 << 20
LEAST = CONTEXT + WORKING_BYTES


def node(*memory):
    return [Device(f"GPU-{index}", index, size, context_bytes=CONTEXT) for index, size in enumerate(memory)]


def tenants(count, **guarantees):
    """By name: milli, or (milli, bytes). `default` has the rest of the devices' time."""
    pairs = {name: one if isinstance(one, tuple) else (one, 0) for name, one in guarantees.items()}
    found = {name: Tenant(name, *pair) for name, pair in pairs.items()}
    return {**found, "default": Tenant("default", 1000 * count - sum(pair[0] for pair in pairs.values()), rest=True)}


def put(taken, grant, request, devices, policy, choices=None):
    """Places a request, and counts it as taken; returns the indices."""
    places = place(request, devices, policy, taken, choices=choices)
    for p in places:
        one = Holding(grant, request.tenant, p.device, p.memory_bytes, p.time_milli, p.guaranteed_milli, p.limit_milli)
        taken.put(one)
    return [p.index for p in places]


def placed(policy, *requests, devices=None):
    taken, devices, choices = Taken(), devices or node(*[16 * GIB] * 4), []
    found = [put(taken, f"g{number}", one, devices, policy, choices)[0] for number, one in enumerate(requests)]
    return found, choices


def test_shares_are_spread_over_idle_devices():
    run = Request("default", 2 * GIB, 300)
    assert placed(tenants(4), run, run, run, run, run)[0] == [0, 1, 2, 3, 0]
    both = Request("a", GIB, 300), Request("b", GIB, 300)
    for policy in ({"a": 300, "b": 300}, {"a": 2000, "b": 2000}, {"a": 1000, "b": 500}, {"a": 0, "b": 0}):
        assert placed(tenants(4, **policy), *both)[0] == [0, 1], policy
    idle = Request("default", GIB, 0)
    assert placed(tenants(4), idle, idle)[0] == [0, 1]


def test_packed_shares_fill_a_device():
    run = Request("default", 2 * GIB, 300, placement="pack")
    assert placed(tenants(4), run, run, run, run)[0] == [0, 0, 0, 1]
    idle = Request("default", GIB, 0, placement="pack")
    assert placed(tenants(4), idle, idle)[0] == [0, 0]


def test_devices_that_others_are_guaranteed_as_a_whole_stay_whole():
    policy = tenants(4, team=1000, train=3000)
    run, whole = Request("team", 2 * GIB, 300), Request("train", 16 * GIB, 1000, devices=3)
    taken, devices, choices = Taken(), node(*[16 * GIB] * 4), []
    assert [put(taken, f"g{n}", run, devices, policy, choices) for n in range(3)] == [[0], [0], [0]]
    assert (choices[1].chosen.passed, choices[1].chosen.owners) == ((1, 2, 3), ("train",))
    assert put(taken, "whole", whole, devices, policy) == [1, 2, 3]
    # What borrows holds no time there, but memory.
    borrower = Request("default", 4 * GIB, 0)
    assert placed(tenants(4, train=3000), borrower, borrower, borrower)[0] == [0, 0, 0]
    assert placed(tenants(4, train=2000), borrower, borrower, borrower)[0] == [0, 1, 0]


def test_the_rest_is_whole_where_the_guarantees_of_others_need_not_reach():
    run = Request("a", GIB, 100)
    assert placed(tenants(4, a=300, b=300), run, Request("b", GIB, 100), run, run)[0][:3] == [0, 1, 0]
    own = Request("default", GIB, 100)
    assert placed(tenants(4, a=300), own, run)[0] == [0, 1]


def test_a_share_that_fits_on_guaranteed_devices_only_takes_one():
    policy = tenants(2, team=1000, train=1000)
    run = Request("team", 2 * GIB, 400)
    [first, second, third], choices = placed(policy, run, run, Request("team", GIB, 600), devices=node(*[16 * GIB] * 2))
    assert (first, second, third) == (0, 0, 1)
    assert (choices[2].chosen.placement, choices[2].chosen.passed) == ("pack", ())


def test_several_devices_and_gangs_are_placed_as_before():
    devices, policy = node(*[16 * GIB] * 4), tenants(4)
    for request in (Request("default", GIB, 300, devices=2), Request("default", GIB, 300, gang="job")):
        taken = Taken()
        put(taken, "g0", Request("default", GIB, 300, device=3), devices, policy)
        assert put(taken, "g1", request, devices, policy)[0] == 3
    taken = Taken()
    assert [put(taken, f"g{n}", Request("default", GIB, 300, device=2), devices, policy) for n in range(3)] == [[2]] * 3


NAMES = ("a", "b", "default")


def world(chance):
    """Devices, tenants, and what is taken: by small shares and large ones, of some of the tenants' guarantees."""
    count = chance.randint(2, 5)
    devices = node(*(chance.choice((8, 16, 24)) * GIB for _ in range(count)))
    first = chance.randrange(0, 1000 * count + 1, 250)
    second = chance.randrange(0, 1000 * count - first + 1, 250)
    memory = sum(device.memory_bytes for device in devices) // GIB
    bytes_ = [chance.choice((0, chance.randint(0, memory // 2))) * GIB for _ in range(2)]
    policy, taken = tenants(count, a=(first, bytes_[0]), b=(second, bytes_[1])), Taken()
    for number in range(chance.randrange(6)):
        with contextlib.suppress(RefusedError):
            put(taken, f"g{number}", share(chance), devices, policy)
    return devices, policy, taken


def share(chance):
    memory, time = chance.randint(LEAST + PAGE, chance.choice((2, 8)) * GIB), chance.choice((0, 100, 300, 600, 1000))
    return Request(chance.choice(NAMES), memory, time, placement=chance.choice(("spread", "pack")))


def whole_devices(name, devices, policy, taken):
    """How many this tenant may still ask for, and the memory that it may ask for on them together."""
    spare = policy[name].guarantee_milli - taken.of(name).guaranteed_milli
    most = max(0, spare) // 1000
    if policy[name].rest:
        own = sum(any(one.tenant == name for one in taken if one.device == device.id) for device in devices)
        others = sum(-(-one.guarantee_milli // 1000) for one in policy.values() if not one.rest)
        most = min(most, len(devices) - own - others)
        return most, policy[name].memory_bytes - taken.memory(name, [device.id for device in devices])
    return most, sum(device.memory_bytes for device in devices)


def fits(request, devices, policy, taken):
    try:
        place(request, devices, policy, taken)
    except RefusedError:
        return False
    return True


def test_spread_takes_no_whole_device_from_others_that_pack_would_have_left_them():
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance, kept, elsewhere = random.Random(seed), 0, 0
    for _ in range(600):
        devices, policy, taken = world(chance)
        request, after, indices = share(chance), {}, set()
        if not fits(request, devices, policy, taken):
            continue
        for way in ("spread", "pack"):
            after[way] = taken.copy()
            indices |= set(put(after[way], "new", replace(request, placement=way), devices, policy))
        elsewhere += len(indices) > 1
        for name in set(NAMES) - {request.tenant}:
            most, memory = whole_devices(name, devices, policy, taken)
            for number in range(1, most + 1):
                for size in (memory // number, chance.randint(0, max(memory // number, 0)), 16 * GIB, 8 * GIB, 0):
                    each = max(LEAST + PAGE, min(size, memory // number))
                    whole = Request(name, each, 1000, devices=number)
                    if fits(whole, devices, policy, after["pack"]):
                        kept += 1
                        assert fits(whole, devices, policy, after["spread"]), (whole, request)
    assert kept > 100 and elsewhere > 20
