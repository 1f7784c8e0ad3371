"""The DRA driver as a process, through the real protocols."""

import shutil
import subprocess

import pytest
from run.running import GPUSHARE, SPIN, Tenant
from run.waiting import until
from schedulers.apiserver import claim, opaque
from schedulers.kubelet import V1, V1BETA1, timed

GIB = 1 << 30
QUARTER = {"memory": "4Gi", "time": "250", "shares": "1"}


def share_of(site, device, *, request="gpu", consumed=None, name="a", **more):
    made = claim(name, (request, site.devices[device], consumed or QUARTER), **more)
    site.api.add_claim(made)
    return made


def uid(one):
    return one["metadata"]["uid"]


def test_it_registers_as_a_driver_of_both_versions(site):
    reply = site.kubelet.register()
    assert reply == {"type": "DRAPlugin", "name": "gpu.gpushare.dev", "versions": ["v1.DRAPlugin", "v1beta1.DRAPlugin"]}


def test_the_slice_states_what_the_node_has(site):
    """The API server checks the type of each field (apiserver.check), so a slice it accepts has the right types."""
    site.published("both devices", lambda shown: len(shown) == 2)
    spec = site.api.slice("node1")["spec"]
    assert (spec["driver"], spec["nodeName"], spec["pool"]["name"]) == ("gpu.gpushare.dev", "node1", "node1")
    assert spec["pool"]["resourceSliceCount"] == 1
    [owner] = site.api.slice("node1")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "uid-of-node1")
    one = spec["devices"][0]
    assert one["name"] == site.devices[0]
    assert one["allowMultipleAllocations"] is True
    assert one["attributes"]["uuid"] == {"string": site.daemon.client.devices()[0]["id"]}
    assert one["capacity"]["memory"]["value"] == "16Gi"
    policy = one["capacity"]["memory"]["requestPolicy"]
    assert (policy["default"], policy["validRange"]) == ("16Gi", {"min": "272Mi", "max": "16Gi", "step": "2Mi"})
    assert one["capacity"]["time"]["requestPolicy"]["validRange"] == {"min": "5", "max": "1k", "step": "1"}


@pytest.mark.parametrize("service", [V1, V1BETA1])
def test_a_claim_is_a_grant_until_it_is_unprepared(site, service):
    made = share_of(site, 0)
    prepared = site.kubelet.prepare(made, service=service)[uid(made)]
    [grant] = site.daemon.client.grants()
    assert prepared == [
        {
            "requests": ["gpu"],
            "pool": "node1",
            "device": site.devices[0],
            "cdi": [f"gpushare.dev/gpu={grant['id']}"],
            "share": f"{uid(made)}-0",
        }
    ]
    part = grant["devices"][0]
    assert (grant["keep"], part["memory_limit_bytes"], part["time_milli"]) == (True, 4 * GIB, 250)
    assert site.kubelet.prepare(made, service=service)[uid(made)] == prepared, "kubelet asks again after a restart"
    assert len(site.daemon.client.grants()) == 1
    assert site.kubelet.unprepare(made, service=service) == {uid(made): ""}
    assert site.daemon.client.grants() == []
    assert site.kubelet.unprepare(made, service=service) == {uid(made): ""}, "again"


def test_several_claims_of_one_device_and_of_one_pod(site):
    one, two = share_of(site, 1, name="a"), share_of(site, 1, name="b", consumed={"memory": "8Gi", "time": "700"})
    answers = site.kubelet.prepare(one, two)
    assert {len(answer) for answer in answers.values()} == {1}
    three = share_of(site, 1, name="c", consumed={"memory": "8Gi", "time": "100"})
    reply = site.kubelet.prepare(three)[uid(three)]
    assert isinstance(reply, str) and "does not fit" in reply
    site.kubelet.unprepare(two)
    assert isinstance(site.kubelet.prepare(three)[uid(three)], list)


def test_a_claim_of_several_devices_is_one_grant(site):
    made = claim("wide", *(("gpu", name, QUARTER) for name in site.devices))
    site.api.add_claim(made)
    first, second = site.kubelet.prepare(made)[uid(made)]
    [grant] = site.daemon.client.grants()
    assert {part["id"].lower() for part in grant["devices"]} == set(site.devices)
    assert (first["cdi"], second["cdi"]) == ([f"gpushare.dev/gpu={grant['id']}"], [])


def test_requests_of_one_claim_are_grants_of_their_own(site):
    made = claim("two", ("train", site.devices[0], QUARTER), ("serve/fast", site.devices[0], QUARTER))
    site.api.add_claim(made)
    answers = site.kubelet.prepare(made)[uid(made)]
    assert [answer["requests"] for answer in answers] == [["train"], ["serve"]]
    assert len({answer["cdi"][0] for answer in answers}) == 2
    site.kubelet.unprepare(made)
    assert site.daemon.client.grants() == []


def test_where_a_part_cannot_be_given_nothing_is_kept(site):
    made = claim("two", ("a", site.devices[0], QUARTER), ("b", site.devices[0], {"memory": "64Gi", "time": "5"}))
    site.api.add_claim(made)
    assert "does not fit" in site.kubelet.prepare(made)[uid(made)]
    assert site.daemon.client.grants() == []


def test_a_claim_for_which_room_is_made_waits(site):
    made = share_of(site, 0)
    site.room.is_made_after(3, 0.15)
    assert isinstance(site.kubelet.prepare(made)[uid(made)], list)
    assert len(site.room.pauses) == 3 and min(site.room.pauses) >= 0.15
    assert {(one["asker"], one["key"]) for one in site.room.asked} == {("", site.room.asked[0]["key"])}


def test_who_it_belongs_to(site):
    site.daemon.client.set_tenant("labs", {"time": 500})
    site.daemon.client.set_tenant("ns", {"time": 500})
    try:
        classy = share_of(site, 0, name="a", config=[opaque("FromClass", tenant="labs", timeLimit="600m")])
        plain = share_of(site, 1, name="b", config=[opaque("FromClaim", ["gpu"], priority=3, timeLimit="40%")])
        site.kubelet.prepare(classy, plain)
        by_tenant = {grant["tenant"]: grant for grant in site.daemon.client.grants()}
        assert by_tenant["labs"]["devices"][0]["time_limit_milli"] == 600
        assert by_tenant["ns"]["devices"][0]["time_limit_milli"] == 400, "the namespace's tenant"
        assert by_tenant["ns"]["priority"] == 3
        site.kubelet.unprepare(classy, plain)
    finally:
        site.daemon.client.remove_tenant("labs")
        site.daemon.client.remove_tenant("ns")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (opaque("FromClaim", tenant="labs"), "a claim names no tenant"),
        (opaque("FromClaim", memroy="1Gi"), "'memroy' is unknown"),
        (
            {"source": "FromClaim", "opaque": {"driver": "gpu.gpushare.dev", "parameters": {"kind": "Share"}}},
            "apiVersion",
        ),
        (opaque("FromClaim", managed=7), "managed"),
        (opaque("FromClaim", timeLimit=60), "time '60' has no unit: write 60% or 60m"),
    ],
)
def test_parameters_that_make_no_sense_are_reported_to_the_pod(site, config, message):
    made = share_of(site, 0, config=[config])
    assert message in site.kubelet.prepare(made)[uid(made)]
    assert site.daemon.client.grants() == []


def test_a_claim_that_is_elsewhere_or_another_or_gone(site):
    elsewhere = share_of(site, 0, name="a", node="node2")
    assert "no device of gpu.gpushare.dev on node node1" in site.kubelet.prepare(elsewhere)[uid(elsewhere)]
    again = claim("a", ("gpu", site.devices[0], QUARTER), uid="another")
    assert "is another one by now" in site.kubelet.prepare(again)["another"]
    gone = claim("gone", ("gpu", site.devices[0], QUARTER))
    assert "not found" in site.kubelet.prepare(gone)[uid(gone)]
    lost = claim("lost", ("gpu", "gpu-9", QUARTER))
    site.api.add_claim(lost)
    assert "device gpu-9 of the claim is not there" in site.kubelet.prepare(lost)[uid(lost)]


def test_an_allocation_that_was_made_anew_replaces_the_one_before(site):
    before = share_of(site, 0)
    site.kubelet.prepare(before)
    anew = share_of(site, 1)
    [device] = site.kubelet.prepare(anew)[uid(anew)]
    [grant] = site.daemon.client.grants()
    assert device["device"] == site.devices[1] == grant["devices"][0]["id"].lower()


def test_what_others_hold_is_not_offered(site):
    """What claims' own grants hold is offered: the scheduler counts those itself."""
    site.published("all is free", lambda shown: shown[0]["capacity"]["memory"]["value"] == "16Gi")
    held = site.daemon.client.create(memory=4 * GIB, time=300, device=0, keep=True)
    site.published("a part", lambda shown: shown[0]["capacity"]["memory"]["value"] == "12Gi")
    assert site.shown()[0]["capacity"]["time"]["value"] == "700"
    writes = len(site.api.writes)
    made = share_of(site, 0)
    site.kubelet.prepare(made)
    site.daemon.client.resize(held["id"], memory=5 * GIB)
    site.published("less", lambda shown: shown[0]["capacity"]["memory"]["value"] == "11Gi")
    assert len(site.api.writes) == writes + 1
    site.daemon.client.release(held["id"])
    site.published("all again", lambda shown: shown[0]["capacity"]["memory"]["value"] == "16Gi")
    assert len(site.api.writes) == writes + 2


def test_a_device_that_fails_is_tainted_and_its_health_is_reported(site):
    site.published("it works", lambda shown: "taints" not in shown[1])
    try:
        site.daemon.client.set_sim_lost(1, lost=True)
        site.published("it is lost", lambda shown: "taints" in shown[1])
        assert site.shown()[1]["taints"][0]["key"] == "gpu.gpushare.dev/unhealthy"
        assert site.kubelet.healths(1) == [{site.devices[0]: True, site.devices[1]: False}]
    finally:
        site.daemon.client.set_sim_lost(1, lost=False)
    site.published("it is back", lambda shown: "taints" not in shown[1])


def test_a_device_that_is_drained_takes_no_new_claims(site):
    try:
        site.daemon.client.drain("1", "repair")
        site.published("it is drained", lambda shown: "taints" in shown[1])
        assert site.shown()[1]["taints"][0]["key"] == "gpu.gpushare.dev/drained"
    finally:
        site.daemon.client.undrain("1")
    site.published("it takes claims again", lambda shown: "taints" not in shown[1])


def test_programs_in_claims_get_their_parts(site):
    """Here these are plain commands in the claim's grant; on a real node, containers with the CDI device."""
    one = claim("a", ("gpu", site.devices[0], {"memory": "1Gi", "time": "300"}))
    site.api.add_claim(one)
    site.kubelet.prepare(one)
    [grant] = site.daemon.client.grants()
    command = [*GPUSHARE, "run", "--socket", str(site.daemon.layout.socket), "--grant", grant["id"], "--", str(SPIN)]
    tenant = Tenant(command)
    assert not tenant.tell("alloc 1100MiB")["ok"]
    assert tenant.tell("alloc 900MiB")["ok"]
    site.kubelet.unprepare(one)
    assert tenant.process.wait(20) == -9
    tenant.close()


def test_killed_and_started_again(site):
    """Driver, daemon and kubelet: nothing is lost or duplicated."""
    kept, left = share_of(site, 0, name="kept"), share_of(site, 1, name="left")
    prepared = site.kubelet.prepare(kept, left)
    before = set(site.grants())
    site.kill()
    site.daemon.kill()
    site.daemon.start()
    site.api.remove_claim(left)  # nobody told the driver
    writes = len(site.api.writes)
    site.start()
    until(lambda: len(site.daemon.client.grants()) == 1, "the claim that is gone holds nothing", 30)
    assert site.kubelet.prepare(kept)[uid(kept)] == prepared[uid(kept)]
    assert set(site.grants()) < before
    assert len(site.api.writes) == writes, "the slice is as it was"


def test_a_slice_that_somebody_removes_is_there_again(site):
    """A kubelet removes the slices of its node when it starts."""
    site.published("it is there", lambda shown: len(shown) == 2)
    site.api.remove_slice("node1")
    site.published("it is there again", lambda shown: len(shown) == 2)


def test_sockets_that_somebody_removes_are_there_again(site):
    """As when kubelet's whole directory is removed."""
    made = share_of(site, 0)
    prepared = site.kubelet.prepare(made)
    shutil.rmtree(site.kubelet.directory)
    until(lambda: [*site.kubelet.directory.glob("plugins_registry/[!.]*.sock")], "it can be registered again", 30)
    site.kubelet.register()
    assert site.kubelet.prepare(made) == prepared


def test_what_the_api_server_does_not_know_is_not_written_for_ever(site):
    """An older API server drops taints."""
    site.api.drop = ("taints",)
    writes = len(site.api.writes)
    try:
        site.daemon.client.set_sim_lost(1, lost=True)
        until(lambda: len(site.api.writes) > writes, "it is written", 30)
        held = site.daemon.client.create(memory=4 * GIB, time=300, device=0, keep=True)
        site.published("a later change", lambda shown: shown[0]["capacity"]["memory"]["value"] == "12Gi")
        assert len(site.api.writes) == writes + 2
    finally:
        site.api.drop = ()
        site.daemon.client.set_sim_lost(1, lost=False)
    site.daemon.client.release(held["id"])
    site.published("all again", lambda shown: shown[0]["capacity"]["memory"]["value"] == "16Gi")


def test_an_api_server_that_is_away(site):
    made = share_of(site, 0)
    site.api.away = True
    try:
        assert "not now" in site.kubelet.prepare(made)[uid(made)]
        held = site.daemon.client.create(memory=4 * GIB, time=300, device=0, keep=True)
    finally:
        site.api.away = False
    site.published("what changed meanwhile", lambda shown: shown[0]["capacity"]["time"]["value"] == "700")
    site.daemon.client.release(held["id"])


def test_how_long_a_claim_takes(site):
    """20 ms are promised; on a machine in use, the median must stay below ten times that."""
    claims = [share_of(site, 0, name=str(number), consumed={"memory": "272Mi", "time": "5"}) for number in range(9)]
    times = sorted(timed(lambda one=one: site.kubelet.prepare(one))[0] for one in claims)
    assert times[4] < 200, times
    site.kubelet.unprepare(*claims)


def test_without_a_way_to_the_cluster_it_reports_it(site):
    command = [*GPUSHARE, "adapter", "kubernetes", "--socket", str(site.daemon.layout.socket)]
    reply = subprocess.run(command, capture_output=True, text=True)
    assert (reply.returncode, "which node is this" in reply.stderr) == (2, True)
    reply = subprocess.run([*command, "--node", "node1"], capture_output=True, text=True)
    assert (reply.returncode, "--kubeconfig" in reply.stderr) == (2, True), reply.stderr
