"""A suspended grant, as schedulers and people see it: allocated, alive, asleep. And the room that it has left, as what
a borrower can have, and nobody else."""

import re
import time

import pytest

from gpushare.adapters import common
from gpushare.adapters.deviceplugin import slots
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.adapters.htcondor import ads
from gpushare.adapters.kubernetes import claims, slices, statuses
from gpushare.adapters.kubernetes.claims import Part, Wanted
from gpushare.adapters.nomad import tasks
from gpushare.adapters.nomad.usage import Usage
from gpushare.adapters.slurm import programs
from gpushare.dashboard import rows
from gpushare.errors import RefusedError

GIB = 1 << 30
MOVABLE = 7 * GIB
ROOM = 8 * GIB - GIB // 4
"""Of its limit, all but what cannot be moved."""


@pytest.fixture
def asleep(client, notebook):
    """Makes a kept grant of device 0 with this key, with a process in it, and suspends it. Returns its notebook."""

    def made(key):
        grant = client.create(memory=8 * GIB, time=100, device=0, idle_memory="lend", keep=True, key=key)
        return notebook(grant=grant["id"]).holds(movable=MOVABLE).suspended()

    return made


def device(client):
    return client.devices()[0]


def test_its_room_is_for_who_would_give_it_back(client, asleep):
    before = device(client)["allocatable"]["memory"]
    asleep("a")
    now = device(client)
    assert (now["memory_asleep_bytes"], now["memory_idle_bytes"]) == (ROOM, 0)
    assert now["allocatable"]["memory"] == before - 8 * GIB
    with pytest.raises(RefusedError, match="is to go back to suspended grants"):
        client.create(memory=now["allocatable"]["memory"] + GIB, time=0, device=0)
    client.create(memory=now["allocatable"]["memory"], time=0, device=0)
    now = device(client)
    assert (now["allocatable"]["memory"], now["memory_asleep_bytes"]) == (0, ROOM)
    client.create(memory=2 * GIB, time=0, device=0, borrow_memory=True)
    assert device(client)["memory_asleep_bytes"] == ROOM - 2 * GIB
    client.create(memory=ROOM - 2 * GIB, time=0, device=0, borrow_memory=True)
    now = device(client)
    assert (now["allocatable"]["memory"], now["memory_asleep_bytes"]) == (0, 0)


def test_a_device_that_takes_no_grants_has_nothing_to_borrow(client, asleep):
    asleep("a")
    shown = device(client)
    client.drain("0")
    try:
        assert device(client)["memory_asleep_bytes"] == 0
    finally:
        client.undrain("0")
    assert device(client)["memory_asleep_bytes"] == shown["memory_asleep_bytes"] == ROOM


def test_commands_metrics_and_the_dashboard(daemon, client, asleep):
    one = asleep("a")
    [row] = [line for line in daemon.cli_here("ps").stdout.splitlines() if one.id in line]
    assert "suspended" in row and "+7GiB hosted" in row
    assert "device 0 has 7.75GiB for grants that may borrow: 7.75GiB of suspended" in daemon.cli_here("devices").stdout
    shown = client.text("/metrics")
    assert re.search(rf'gpushare_grant_state{{grant="{one.id}",[^}}]*state="asleep"}} 1\n', shown)
    assert f'gpushare_device_memory_asleep_bytes{{gpu="0",gpu_uuid="{device(client)["id"]}"}} {ROOM}\n' in shown
    grant = client.grant(one.id)
    assert (rows.grant(grant)["phase"], rows.grant(grant)["devices"][0]["memory_hosted"]) == ("suspended", MOVABLE)
    assert rows.device(device(client), None, [grant])["asleep"] == ROOM
    client.resume(one.id)
    one.comes_to("resident")
    assert re.search(rf'gpushare_grant_state{{grant="{one.id}",[^}}]*state="active"}} 1\n', client.text("/metrics"))


def test_nomads_task(client, asleep):
    key = slots.key(device(client)["id"], range(5), "n", tasks.KEYS)
    one = asleep(key)
    [grant] = client.grants(key_prefix=tasks.KEYS)
    shown = tasks.stats(client.devices(), [grant], 0)["groups"][0]["instances"]
    assert set(shown) == slots.names(grant) and len(shown) == 5
    found = shown[min(shown)]["stats"]["attributes"]
    assert found["state"]["string"] == "asleep"
    assert (found["memory"]["numerator"], found["memory"]["denominator"]) == (MOVABLE + GIB // 4, 8 * GIB)
    groups = tasks.fingerprint(client.devices(), [grant], Sizes(10))["groups"]
    assert all(slot["healthy"] for group in groups for slot in group["devices"])
    used = Usage().used({one.id: grant["dir"]})
    given = tasks.Config(idle_seconds=0, start_seconds=0)
    assert tasks.Watch().look([grant], used, given, time.monotonic_ns()) == [], "its task runs"


def test_slots_of_a_pod(client, asleep):
    """Also when kubelet does not list the pod any more: its programs run."""
    one = asleep(slots.key(device(client)["id"], range(5), "n"))
    [grant] = client.grants(key_prefix=slots.KEYS)
    assert not slots.is_idle(grant)
    assert slots.over([grant], (), {one.id}, {one.id: 1e6}, trusted=True) == []
    assert all(slot.healthy for slot in slots.slots(client.devices(), [grant], Sizes(10)))


def test_a_claim(client, asleep):
    asleep(f"{claims.key_of('uid-a')}gpu/seal")
    [grant] = client.grants(key_prefix=claims.KEYS)
    name = slices.device_name(device(client)["id"])
    wanted = Wanted("gpu", "node1", (Part(name, None),), {"key": grant["key"]})
    [entry] = statuses.entries(wanted, grant)
    by_type = {one["type"]: one for one in entry["conditions"]}
    assert {kind: one["status"] for kind, one in by_type.items()} == {"Ready": "True", "Asleep": "True"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", by_type["Asleep"]["lastTransitionTime"])
    assert entry["data"]["state"] == "asleep"
    claim = {"status": {"devices": [entry]}}
    assert statuses.has_entries(claim, statuses.entries(wanted, grant)), "it is written once"
    [awake] = statuses.entries(wanted, {**grant, "phase": "active"})
    assert [one["type"] for one in awake["conditions"]] == ["Ready"]
    assert not statuses.has_entries(claim, [awake]), "and once more when it wakes"


def test_what_kubernetes_may_promise_stays_the_same(client, asleep):
    """Whether the grant is a claim's, which the scheduler counts, or another one's, which is subtracted."""
    before = slices.devices(client.devices(), [])[0]
    asleep(f"{claims.key_of('uid-a')}gpu/seal")
    grants = client.grants()
    for others, memory in (([], 16 * GIB), (grants, 8 * GIB)):
        [found, _] = slices.devices(client.devices(), others)
        assert slices.amount(found["capacity"]["memory"]["value"]) == memory
        assert found["attributes"]["memoryOnLoanMiB"] == {"int": MOVABLE >> 20}
        assert "taints" not in found
    assert before["attributes"]["memoryOnLoanMiB"] == {"int": 0}


def test_htcondors_slots_stay_the_same(client, asleep):
    before = ads.text(client.devices(), 4)
    asleep("a")
    assert ads.text(client.devices(), 4) == before


def test_slurms_job(client, asleep, monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_state", lambda _job: "RUNNING")
    one = asleep("slurm/gst/7/0/0")
    assert programs.Programs(client, tmp_path, 100).reap() == []
    assert common.state(client.grant(one.id)) == "asleep"
