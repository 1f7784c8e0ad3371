"""Slots of devices: the device plugin's decisions, without kubelet or a daemon."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedulers.slotkubelet import Reuse

from gpushare.adapters.deviceplugin import slots
from gpushare.adapters.deviceplugin.kubelet import Pods
from gpushare.adapters.deviceplugin.plugin import Allocator, Options
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.client import Client
from gpushare.errors import RefusedError, UsageError
from gpushare.inject import oci
from gpushare.text.units import PAGE

GIB = 1 << 30


def device(name="GPU-a", memory=16 * GIB, **more):
    return {
        "id": name, "capacity": {"memory": memory, "time": 1000}, "health": "healthy", "attributes": {}, **more
    }  # fmt: skip


def grant(of, those, *, key=None, phase="reserved", memory=GIB, time=100, created=0):
    return {
        "id": "g", "key": key or slots.key(of, those, "n"), "phase": phase, "created_ns": created,
        "devices": [{"id": of, "memory_limit_bytes": memory, "time_milli": time}],
    }  # fmt: skip


@given(st.integers(1, 100), st.integers(1 << 30, 1 << 38))
def test_all_slots_are_the_device_and_no_more(count, memory):
    sizes, one = Sizes(count), device(memory=memory)
    assert sizes.of(one, count) == (memory - memory % PAGE, 1000)
    parts = [sizes.of(one, 1) for _ in range(count)]
    assert sum(part[0] for part in parts) <= memory
    assert sum(part[1] for part in parts) <= 1000


@given(st.sets(st.integers(0, 99), min_size=1))
def test_a_key_has_the_slots(those):
    one = grant("GPU-a", those)
    assert slots.numbers(one) == those
    assert len(one["key"]) < 256
    assert slots.is_slots(one)


def test_other_keys_have_none():
    assert slots.numbers(grant("GPU-a", (), key="kubernetes/slots/x")) == set()
    assert not slots.is_slots(grant("GPU-a", (), key="kubernetes/claim/x"))
    assert not slots.is_slots({"key": None})


def test_numa_and_drained_devices():
    found = slots.slots([device(attributes={"numa_node": "1"}), device("GPU-b", state="draining")], [], Sizes(1))
    assert [(one.healthy, one.numa) for one in found] == [(True, 1), (False, None)]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 16)), max_size=3), st.sets(st.integers(0, 9)))
def test_what_is_offered_fits_beside_others(others, used):
    sizes, one = Sizes(10), device()
    grants = [grant("GPU-a", (), key="other", time=time, memory=memory * GIB) for time, memory in others]
    grants.append(grant("GPU-a", used))
    free = [each.healthy for number, each in enumerate(slots.slots([one], grants, sizes)) if number not in used]
    memory, time = sizes.of(one, sum(free)) if any(free) else (0, 0)
    in_use = sizes.of(one, len(used)) if used else (0, 0)
    if any(free):
        assert sum(time for time, _ in others) + time + in_use[1] <= 1000
        assert sum(memory for _, memory in others) * GIB + memory + in_use[0] <= 16 * GIB


def test_chosen_states_what_is_wrong():
    both = [device(), device("GPU-b")]
    assert slots.chosen(["GPU-b.1", "GPU-b.0"], both, Sizes(2)) == (both[1], {0, 1})
    with pytest.raises(RefusedError, match="of 2 devices"):
        slots.chosen(["GPU-a.0", "GPU-b.0"], both, Sizes(2))
    with pytest.raises(UsageError, match="unknown"):
        slots.chosen(["GPU-a.2"], both, Sizes(2))
    with pytest.raises(UsageError, match="longer than 63"):
        slots.slot_name("G" * 62, 1)


def test_a_grant_is_over_when_nobody_has_its_slots():
    idle, busy = grant("GPU-a", {1, 2}), grant("GPU-a", {1, 2}, phase="active")
    old, young = {"g": slots.UNLISTED_SECONDS}, {"g": slots.UNLISTED_SECONDS - 0.1}
    assert slots.over([idle], {"GPU-a.2"}, {"g"}, old, trusted=True) == [], "its pod has some"
    assert slots.over([idle], {"GPU-b.2"}, set(), young, trusted=True) == [], "its pod is about to be listed"
    assert slots.over([idle], {"GPU-b.2"}, {"g"}, {"g": 0.0}, trusted=True) == ["g"]
    assert slots.over([idle], set(), set(), old, trusted=True) == ["g"]
    assert slots.over([busy], set(), {"g"}, old, trusted=True) == [], "its container still runs"
    assert slots.over([idle], set(), set(), old, trusted=False) == [], "kubelet may not know its pods yet"
    assert slots.over([idle], set(), {"g"}, old, trusted=False) == ["g"]
    assert slots.overlapping([idle], {"GPU-a.2", "GPU-a.3"}) == ["g"]
    assert slots.overlapping([idle], {"GPU-a.3"}) == []


def of(slots_of: list[str], turn: str = "s", phase: str = "reserved"):
    numbers = {int(name.rpartition(".")[2]) for name in slots_of}
    return {**grant("GPU-a", numbers, phase=phase), "in_turn": {"set": turn, "parts": sorted(numbers)}}


CONTAINERS = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=6)


@given(CONTAINERS, st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 1 << 30))
def test_whatever_kubelet_gives_to_a_pods_containers_is_one_pods(inits, mains, seed):
    """Init containers, of which some are restartable, and main containers."""
    reuse, there = Reuse([f"GPU-a.{number}" for number in range(100)], seed), []
    for init, count in [*inits, *((False, count) for count in mains)]:
        own = reuse.take(count, init=init)
        beside = [one for one in slots.sets(there).values() if not slots.of_set(one).isdisjoint(own)]
        assert len(beside) <= 1
        assert all(slots.may_continue(one, own) for one in beside)
        there.append(
            {**of(own, beside[0][0]["in_turn"]["set"] if beside else str(len(there))), "created_ns": len(there)}
        )
    started = [{**there[0], "phase": "active"}, *there[1:]]
    for one in slots.sets(started).values():
        if one[0]["phase"] == "active":
            assert not slots.may_continue(one, list(slots.of_set(one))), "its admission is over"


def test_slots_that_no_container_of_the_same_pod_could_get_are_another_pods():
    init = of(["GPU-a.0", "GPU-a.1", "GPU-a.2"])
    assert slots.may_continue([init], ["GPU-a.1"])
    assert slots.may_continue([init], ["GPU-a.0", "GPU-a.1", "GPU-a.2", "GPU-a.9"])
    assert not slots.may_continue([init], ["GPU-a.2", "GPU-a.3"]), "kubelet would have given those that are left first"
    assert not slots.may_continue([init, of(["GPU-a.0"])], ["GPU-a.0", "GPU-a.2", "GPU-a.3"])


def test_many_containers_take_no_time_to_tell():
    reuse = Reuse([f"GPU-a.{number}" for number in range(100)], 0)
    many = [of(reuse.take(40 - number, init=True)) for number in range(30)]
    assert slots.may_continue(many, reuse.take(3, init=False))


def test_a_set_of_grants_ends_as_one():
    init, main = of(["GPU-a.1", "GPU-a.2"]), {**of(["GPU-a.2"], phase="bound"), "id": "h"}
    old = dict.fromkeys("gh", slots.UNLISTED_SECONDS)
    assert slots.over([init, main], {"GPU-a.2"}, "gh", old, trusted=True) == []
    assert slots.over([init, main], set(), {"h"}, dict.fromkeys("gh", 0.0), trusted=True) == ["g", "h"]
    assert slots.over([init, {**main, "phase": "active"}], set(), {"h"}, old, trusted=True) == []
    assert slots.over([init, main], set(), set(), {**old, "h": 0.0}, trusted=True) == [], "made just now"
    assert slots.over([init, main], set(), set(), old, trusted=True) == ["g", "h"]


def test_a_grant_that_was_listed_itself_ends_with_its_own_pod():
    """Pods share a set where one failed after its allocation."""
    failed, ran, runs = of(["GPU-a.0", "GPU-a.1"]), of(["GPU-a.0"], phase="bound"), of(["GPU-a.1"], phase="active")
    there = [failed, {**ran, "id": "h"}, {**runs, "id": "i"}]
    young = dict.fromkeys("ghi", 0.0)
    assert slots.over(there, {"GPU-a.1"}, {"g", "h", "i"}, young, trusted=True) == ["h"]
    assert slots.over([{**one, "phase": "bound"} for one in there], set(), {"h"}, young, trusted=True) == [
        "g",
        "h",
        "i",
    ]


class Listed(Pods):
    """A kubelet that lists these slots."""

    def __init__(self) -> None:
        super().__init__(Path("/none"))
        self.slots: list[str] = []
        self.asked = 0

    def list(self, of):
        self.asked += 1
        return [{"containers": [{"devices": [{"resource": "r", "ids": self.slots}]}]}]


class Holds(Client):
    """A daemon that holds these grants."""

    def __init__(self) -> None:
        super().__init__("/none")
        self.held = []

    def grants(self):
        return self.held

    def release(self, grant_id):
        self.held = [one for one in self.held if one["id"] != grant_id]


def test_a_pod_that_was_listed_only_while_it_ran_takes_its_grant_along():
    daemon, pods = Holds(), Listed()
    allocator = Allocator(daemon, Options(Sizes(10), "r", False, {}))
    daemon.held, pods.slots = [grant("GPU-a", {1, 2}, phase="active")], ["GPU-a.1", "GPU-a.2"]
    for now in (0.0, 1.0, 2.0):
        allocator.release_over(pods, None, now, trusted=False)
    assert pods.asked == 1, "once it has been listed nothing is asked while it runs"
    daemon.held, pods.slots = [grant("GPU-a", {1, 2}, phase="bound")], []
    allocator.release_over(pods, None, 3.0, trusted=False)
    assert daemon.held == []


@given(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1), st.data())
def test_preferred_are_of_one_device_where_it_can_be(free, data):
    names = [f"{of}.{number}" for of, number in free]
    size = data.draw(st.integers(1, len(names)))
    must = data.draw(st.sampled_from([[], names[:1]]))
    got = slots.preferred(names, must, size)
    assert len(got) == len(set(got)) == size
    assert set(must) <= set(got) <= set(names)
    by = [sum(of == one for of, _ in free) for one in "ab" if not must or must[0][0] == one]
    if max(by) >= size:
        assert len({name[0] for name in got}) == 1


def test_annotations_go_before_the_slots_size():
    plain = {"gpushare.dev/slot-memory": "1073741824", "gpushare.dev/slot-time": "100", "gpushare.dev/device": "GPU-a"}
    asked = oci.request({"annotations": plain})
    assert (asked["memory"], asked["time"], asked["device"]) == (GIB, 100, "GPU-a")
    asked = oci.request({"annotations": {**plain, "gpushare.dev/memory": "2Gi"}})
    assert (asked["memory"], asked["time"]) == ("2Gi", 100)
    with pytest.raises(UsageError, match="slot-time"):
        oci.request({"annotations": {**plain, "gpushare.dev/slot-time": "x"}})


def test_of_two_reservations_of_a_slot_the_later_one_counts():
    asked = slots.Asked()
    first, other = asked.begin(["d.0", "d.1"]), asked.begin(["d.5"])
    asked.check(first, waits=True)
    second = asked.begin(["d.1", "d.2"])
    for given_up, waits in ((first, True), (second, False)):
        with pytest.raises(RefusedError, match="nobody waits for these slots"):
            asked.check(given_up, waits=waits)
    asked.end(first)
    asked.check(second, waits=True)
    asked.check(other, waits=True)
    asked.end(second)
    asked.end(other)
    asked.check(asked.begin(["d.0", "d.1", "d.2", "d.5"]), waits=True)
