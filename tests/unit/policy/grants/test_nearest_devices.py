"""Which of several devices are nearest to each other; admission chooses those."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import RefusedError
from gpushare.policy.grants.admission import Choice, Device, Holding, Request, Tenant, admit, place
from gpushare.policy.grants.distance import LEVELS, all_alike, farthest, nearest, rank
from gpushare.policy.grants.taken import Taken
from gpushare.text.units import GIB


def links_of(count, level):
    """Links among devices `0`, `1`...; `level`: a function of a pair."""
    ids = [str(index) for index in range(count)]
    return {a: {b: level(*sorted((int(a), int(b)))) for b in ids if b != a} for a in ids}


def board(first, second):
    """Two sockets of four devices; NVLink connects pairs across the sockets, a PCIe switch connects neighbours."""
    if second - first == 4:
        return "nvlink"
    if first // 2 == second // 2:
        return "single"
    return "node" if first // 4 == second // 4 else "system"


@pytest.mark.parametrize(
    ("order", "count", "expected", "level"),
    [
        ("01234567", 2, "04", "nvlink"),
        ("76543210", 2, "73", "nvlink"),  # equally near, and preferred by the order
        ("012367", 2, "26", "nvlink"),
        ("0123", 2, "01", "single"),
        ("0257", 2, "02", "node"),
        ("0367", 2, "37", "nvlink"),
        ("01234567", 4, "0123", "node"),  # 0 1 4 5 has more NVLinks, but also a farther pair
        ("016", 3, "016", "system"),
    ],
)
def test_the_nearest_of_those_that_fit(order, count, expected, level):
    links = links_of(8, board)
    found = nearest(order, count, links, lambda _: True)
    assert found is not None
    assert "".join(found) == expected
    assert farthest(found, links) == level


def test_a_pair_of_which_nothing_is_known_is_far():
    links = {"a": {"b": "node"}, "b": {"a": "node"}, "c": {}}
    assert nearest("cab", 2, links, lambda _: True) == ("a", "b")
    assert farthest(("a", "c"), links) == "system"
    assert farthest(("a",), links) is None
    assert all_alike({"a": {}, "b": {}, "c": {"a": "system"}})
    assert not all_alike(links)


@given(st.data())
def test_as_by_trying_all(data):
    total = data.draw(st.integers(2, 7))
    levels = data.draw(st.lists(st.sampled_from(LEVELS), min_size=total**2, max_size=total**2))
    links = links_of(total, lambda a, b: levels[a * total + b])
    order = data.draw(st.permutations([*links]))
    count = data.draw(st.integers(1, total))
    banned = data.draw(st.sets(st.sampled_from(order), max_size=2))

    def allowed(some):
        return not banned.issuperset(some)

    def cost(some):
        ranks = [rank(links[a], b) for a, b in itertools.combinations(some, 2)]
        return max(ranks, default=0), sum(ranks)

    # Among equally near sets min() takes the first, whose devices are preferred.
    expected = min((some for some in itertools.combinations(order, count) if allowed(some)), key=cost, default=None)
    assert nearest(order, count, links, allowed) == expected


def test_sixteen_devices_take_a_bounded_number_of_steps():
    """Counts steps: each step calls `allowed` at most once, and most sets are never tried."""
    for level in (board, lambda a, b: "nvlink" if a % 2 == b % 2 else "system", lambda *_: "system"):
        links = links_of(16, level)
        for count in range(2, 16):
            asked = []
            nearest([*links], count, links, lambda some, asked=asked: asked.append(some) or True)
            assert len(asked) < 64


# Admission.

NODE = [Device(f"GPU-{index}", index, 16 * GIB) for index in range(8)]
NAMES = {str(device.index): device.id for device in NODE}
LINKED = [
    Device(
        one.id, one.index, one.memory_bytes,
        links={NAMES[other]: level for other, level in links_of(8, board)[str(one.index)].items()},
    )
    for one in NODE
]  # fmt: skip
ALL = {"default": Tenant("default", 8000)}


def holding(index, milli, guaranteed=None):
    return Holding("g", "default", f"GPU-{index}", 8 * GIB, milli, milli if guaranteed is None else guaranteed, 1000)


def given_to(request, holdings=(), devices=LINKED, tenants=ALL):
    choices: list[Choice] = []
    places = place(request, devices, tenants, Taken(holdings), choices=choices)
    return {found.index for found in places}, {choice.near for choice in choices}


def test_a_grant_of_several_gets_the_nearest():
    assert given_to(Request("default", GIB, 300, devices=2)) == ({0, 4}, {"nvlink"})
    assert given_to(Request("default", GIB, 300, devices=1)) == ({0}, {None})
    # The fuller device is preferred if it has an equally near partner.
    assert given_to(Request("default", GIB, 300, devices=2), [holding(6, 100)]) == ({2, 6}, {"nvlink"})
    assert given_to(Request("default", GIB, 300, devices=4)) == ({0, 1, 2, 3}, {"node"})
    # A request that names devices, or takes all, leaves no choice.
    assert given_to(Request("default", GIB, 300, devices=2, device=(0, 7))) == ({0, 7}, {None})
    assert given_to(Request("default", GIB, 300, devices=8)) == (set(range(8)), {None})


def test_among_those_that_fit():
    full = [holding(index, 900) for index in (0, 1, 2, 7)]
    assert given_to(Request("default", GIB, 300, devices=2), full) == ({4, 5}, {"single"})
    with pytest.raises(RefusedError, match="does not fit"):
        given_to(Request("default", GIB, 300, devices=5), full)


def test_without_links_the_packing_decides_alone():
    busy = [holding(3, 500), holding(5, 200)]
    assert given_to(Request("default", GIB, 300, devices=2), busy, NODE) == ({3, 5}, {None})


def test_a_guarantee_that_is_short_is_used_where_it_is_needed():
    """Others have requested all time of devices 0 and 4 without a guarantee: only a guaranteed part has room there."""
    tenants = {"default": Tenant("default", 300), "other": Tenant("other", 7700)}
    others = [Holding("o", "other", f"GPU-{index}", GIB, 1000, 0, 1000) for index in (0, 4)]
    request = Request("default", GIB, 300, devices=2)
    # The guarantee suffices for one of these devices, not for both, so the nearest set is another one.
    assert given_to(request, others, tenants=tenants) == ({1, 5}, {"nvlink"})
    more = [*others, *(Holding("p", "other", f"GPU-{index}", 16 * GIB, 5, 5, 1000) for index in (1, 2, 3, 5, 6))]
    assert given_to(request, more, tenants=tenants) == ({4, 7}, {"node"})


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(5, 900)), max_size=6), st.integers(1, 8))
def test_whoever_was_admitted_still_is(held, count):
    """Nearness only chooses among sets that fit; it causes no refusal."""
    holdings, used = [], dict.fromkeys(range(8), 0)
    for index, milli in held:
        if used[index] + milli <= 1000:
            used[index] += milli
            holdings.append(Holding(f"g{len(holdings)}", "default", f"GPU-{index}", GIB, milli, milli, 1000))
    request = Request("default", GIB, 400, devices=count)
    try:
        plain = admit(request, NODE, ALL, holdings)
    except RefusedError:
        with pytest.raises(RefusedError):
            admit(request, LINKED, ALL, holdings)
        return
    assert len(admit(request, LINKED, ALL, holdings)) == len(plain)
