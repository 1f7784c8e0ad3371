"""The DRA driver's decisions alone: how often it writes, which claims are a node's, hostile claims, and concurrent
calls."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedulers.draworld import DEVICE, GIB, NAME, Api, Daemon, claim, named, pod, there

from gpushare.adapters.common import Latest
from gpushare.adapters.kubernetes import claims, driver, pace, slices
from gpushare.adapters.kubernetes.driver import Preparer, Publisher
from gpushare.adapters.kubernetes.kubelet import Health, reports
from gpushare.errors import GpushareError, MakingRoomError, UnreachableError


@given(st.lists(st.tuples(st.floats(0, 300), st.booleans()), max_size=60))
def test_no_hour_has_more_writes_than_the_pace_allows(steps):
    one, now, written = pace.Pace(), 0.0, []
    for gap, tried in steps:
        now += gap
        wait = one.wait(now)
        assert 0 <= wait <= pace.REFILL_SECONDS
        if tried and wait == 0:
            one.wrote()
            written.append(now)
    for at in written:
        assert sum(at <= other < at + 3600 for other in written) <= pace.BURST + 3600 / pace.REFILL_SECONDS + 1


def test_a_device_that_flaps_is_written_as_often_as_the_pace_allows():
    api, now = Api(), 0.0
    publisher, waits = Publisher(api, "n", lambda: now), []
    for step in range(2 * pace.BURST):
        health = ("healthy", "unhealthy")[step % 2]
        waits.append(publisher.publish(slices.devices([{**DEVICE, "health": health}], [])))
    assert (api.version, waits[: pace.BURST]) == (pace.BURST, [0.0] * pace.BURST)
    # A change that was not written needs no write once the device is as it was.
    assert set(waits[pace.BURST :]) == {0.0, pace.REFILL_SECONDS}
    assert publisher.publish(slices.devices([DEVICE], [])) == pace.REFILL_SECONDS
    now = pace.REFILL_SECONDS
    assert publisher.publish(slices.devices([DEVICE], [])) == 0.0
    assert "taints" not in api.kept["spec"]["devices"][0]


@pytest.mark.parametrize("prefix", ["", "cuda_"])
def test_what_a_device_states_of_itself(prefix):
    known = {
        f"{prefix}compute_capability": "9.0",
        "driver_version": "580.95.05",
        "numa_node": "1",
        "pcie_root": "pci0000:3a",
    }
    known |= {
        "cuda_driver_version" if prefix else "cuda_version": "13.0",
        "architecture": "Hopper",
        "nvlink_domain": "3",
    }
    [found] = slices.devices([{**DEVICE, "attributes": known}], [])
    assert found["attributes"] == {
        "uuid": {"string": DEVICE["id"]},
        "productName": {"string": "NVIDIA H200"},
        "index": {"int": 0},
        "backend": {"string": "native"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "numaNode": {"int": 1},
        "nvlinkDomain": {"string": "3"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
        "memoryOnLoanMiB": {"int": 0},
    }


@pytest.mark.parametrize("text", ["simulated", "", "1.2.3.4", "-1", "9.x", "9" * 20, "९.०", "९"])
def test_what_is_no_version_is_left_out(text):
    """Otherwise the API server would refuse the whole slice."""
    [found] = slices.devices([{**DEVICE, "attributes": {"driver_version": text, "numa_node": text}}], [])
    assert {"driverVersion", "numaNode"}.isdisjoint(found["attributes"])


def test_a_device_that_is_drained_takes_nothing_new():
    [found] = slices.devices([{**DEVICE, "state": "draining"}], [])
    assert found["taints"] == [{"key": "gpu.gpushare.dev/draining", "effect": "NoSchedule"}]


def test_whose_claims_a_pod_has():
    made = pod(None, resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "made"}, {"name": "not yet"}])
    extended = pod(None, extendedResourceClaimStatus={"resourceClaimName": "extended", "requestMappings": []})
    found = [[*claims.of_pod(one)] for one in (pod("named"), made, extended, pod(None), {**pod(None), "status": None})]
    assert found == [[("ns", "named")], [("ns", "made")], [("ns", "extended")], [], []]


def test_room_that_comes_too_late_for_a_call_is_there_for_kubelets_next():
    one, daemon = claim(), Daemon()
    create, later = daemon.create, [MakingRoomError("room is made for it: ask again in about 20 s", 20.0)]

    def made(**request):
        if later:
            raise later.pop()
        return create(**request)

    daemon.create = made
    preparer, uid = Preparer(daemon, Api(one), "n"), one["metadata"]["uid"]
    assert preparer.prepare([named(one)], there) == {uid: "room is made for it: ask again in about 20 s"}
    assert [device.name for device in preparer.prepare([named(one)], there)[uid]] == [NAME]


def test_what_can_be_had_on_loan_is_an_attribute_and_no_capacity():
    """In whole GiB: the slice is not written for less."""
    lent = {"memory_asleep_bytes": 3 * GIB, "memory_idle_bytes": (2 * GIB) - 1}
    [found] = slices.devices([{**DEVICE, **lent}], [])
    [plain] = slices.devices([DEVICE], [])
    assert found["attributes"]["memoryOnLoanMiB"] == {"int": 4 * 1024}
    assert found["capacity"] == plain["capacity"]


@pytest.mark.parametrize(
    ("key", "residency", "may"),
    [
        (f"{claims.KEYS}u/gpu/s", None, False),
        (f"{claims.KEYS}u/gpu/s", {"where": "suspended"}, True),
        (None, None, True),
    ],
)
def test_which_grants_may_change_the_slice(key, residency, may):
    """A claim's grant does when its memory may be moved away: what can be had on loan changes."""
    event = {"kind": "grant", "type": "changed", "object": {"key": key, "residency": residency}}
    assert driver.matters(event) is may


def test_a_grant_stays_the_claims_whatever_was_made_since():
    """A running pod's claim is still accepted after a tenant with the namespace's name is made."""
    one, daemon = claim(), Daemon()
    preparer = Preparer(daemon, Api(one), "n")
    before = preparer.prepare([named(one)], there)
    daemon.known = [{"name": "ns"}]
    assert preparer.prepare([named(one)], there) == before
    assert len(daemon.live) == 1


def test_the_same_claim_many_times_at_once_is_one_grant():
    one, daemon = claim(), Daemon()
    preparer, answers = Preparer(daemon, Api(one), "n"), []
    threads = [
        threading.Thread(target=lambda: answers.append(preparer.prepare([named(one)], there))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(daemon.live) == 1
    assert all(answer == answers[0] for answer in answers)
    assert preparer._locks == {}


def test_an_end_that_overtakes_a_slow_beginning_leaves_nothing():
    """kubelet gave up and reports the pod as gone before the API server has answered."""
    one, daemon = claim(), Daemon()
    api = Api(one)
    api.late = threading.Event()
    preparer = Preparer(daemon, api, "n")
    beginning = threading.Thread(target=preparer.prepare, args=([named(one)], there))
    beginning.start()
    while not preparer._locks:
        pass
    end = threading.Thread(target=preparer.unprepare, args=([named(one)], there))
    end.start()
    api.late.set()
    beginning.join()
    end.join()
    assert daemon.live == {}


def test_what_nobody_waits_for_is_not_done():
    one, daemon = claim(), Daemon()
    preparer = Preparer(daemon, Api(one), "n")
    assert preparer.prepare([named(one)], lambda: False) == {"uid-a": "kubelet does not wait any more"}
    assert daemon.live == {}


def test_grants_of_claims_that_are_gone_are_released_and_no_others():
    kept, gone = claim("kept"), claim("gone")
    daemon, api = Daemon(), Api(kept, gone)
    preparer = Preparer(daemon, api, "n")
    preparer.prepare([named(kept), named(gone)], there)
    daemon.live["x"] = {"id": "x", "key": "somebody's", "time": 0}
    assert preparer.reconcile() == []
    del api.claims["gone"]
    assert len(preparer.reconcile()) == 1
    assert sorted(grant["key"].split("/")[0] for grant in daemon.grants()) == ["kubernetes", "somebody's"]

    def away(_node):
        raise UnreachableError("away")

    api.pods = away
    del api.claims["kept"]
    with pytest.raises(UnreachableError):
        preparer.reconcile()
    assert len(daemon.live) == 2, "who cannot ask ends nothing"


WORDS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=6)
JSON = st.recursive(
    WORDS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
)
PARAMETERS = st.dictionaries(st.sampled_from([*claims._CLASS, "keep", "key", "memory", "x"]), JSON, max_size=3)
QUANTITIES = st.sampled_from(["1e3", "-1", "300m", "1E", "0", "9999999999999999999999", "1.5Gi", "Inf", "x", ""])


@given(
    parameters=JSON | PARAMETERS.map(lambda found: {**claims.PARAMETERS, **found}),
    source=st.sampled_from(["FromClaim", "FromClass", None]),
    memory=QUANTITIES,
    time=QUANTITIES,
)
def test_whatever_a_claim_states_it_asks_for_its_own_grant_or_is_reported(parameters, source, memory, time):
    config = {"source": source, "opaque": {"driver": "gpu.gpushare.dev", "parameters": parameters}}
    one, daemon = claim(memory=memory, time=time, config=[config]), Daemon()
    try:
        [wanted] = claims.wanted(one, "n", daemon.devices(), ["default"])
    except GpushareError:
        return
    ask = wanted.ask
    assert (ask["keep"], ask["device"], ask["devices"]) == (True, DEVICE["id"], 1)
    assert ask["key"].startswith("kubernetes/claim/uid-a/")
    assert isinstance(ask["memory"], int) and isinstance(ask["time"], int)
    assert source == "FromClass" or ask["tenant"] == "default"


def test_one_claim_that_cannot_be_read_does_not_hold_up_the_others():
    good, bad = claim("good"), claim("bad")
    del bad["status"]["allocation"]["devices"]["results"][0]["device"]
    preparer = Preparer(Daemon(), Api(good, bad), "n")
    answers = preparer.prepare([named(bad), named(good)], there)
    assert "not as Kubernetes describes claims" in answers["uid-bad"]
    assert isinstance(answers["uid-good"], list)


def test_health_is_reported_again_before_kubelet_stops_believing_it(monkeypatch):
    monkeypatch.setattr("gpushare.adapters.kubernetes.kubelet._HEALTH_SECONDS", 0.01)
    healths: Latest[Health] = Latest()
    healths.put([Health("n", NAME, True, 0, "")])
    stream = reports(healths, there)
    assert next(stream) == next(stream) == next(stream)
    healths.put([Health("n", NAME, False, 7, "lost")])
    assert next(stream)["devices"][0]["reason"] == "lost"
    healths.put([Health("n", NAME, None, 7, "the daemon is away")])
    assert next(stream)["devices"][0]["health"] == 0, "unknown"
