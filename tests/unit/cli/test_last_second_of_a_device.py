"""What a device did in the last second, from answers of the node API."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.text.overview import DeviceTime, device_time


def device(wall_ns=0, switch_ns=0):
    return {"id": "GPU-a", "wall_ns": wall_ns, "switch_ns": switch_ns}


def grant(used, borrowed, where="GPU-a"):
    return {"devices": [{"id": where, "used_milli": used, "borrowed_milli": borrowed}]}


def test_parts_of_a_second():
    before, now = device(10**9, 10**6), device(2 * 10**9, 11 * 10**6)
    grants = [grant(500, 200), grant(250, 0), grant(900, 900, "GPU-b")]
    assert device_time(now, before, grants) == DeviceTime(guaranteed=550, borrowed=200, switching=10, idle=240)


def test_first_look_knows_no_switching():
    assert device_time(device(10**9, 10**8), None, []) == DeviceTime(0, 0, 0, 1000)


def test_a_daemon_that_began_anew():
    assert device_time(device(10**6, 10**3), device(10**12, 10**10), [grant(100, 0)]) == DeviceTime(100, 0, 0, 900)


looks = st.builds(device, st.integers(0, 1 << 62), st.integers(0, 1 << 62))


@given(looks, st.none() | looks, st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=8))
def test_parts_are_a_whole(now, before, used):
    found = device_time(now, before, [grant(*one) for one in used])
    parts = (found.guaranteed, found.borrowed, found.switching, found.idle)
    assert sum(parts) == 1000
    assert min(parts) >= 0
