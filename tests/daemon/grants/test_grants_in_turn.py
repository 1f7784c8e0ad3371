"""Grants of one set, of which some never run at once: parts that several of them have are taken once."""

import os

import pytest
from machine.members import as_nobody, open_to_members
from run.running import GPUSHARE, SPIN, Tenant
from run.waiting import until

from gpushare.client import Client
from gpushare.errors import RefusedError, UsageError

GIB = 1 << 30


def part_of(client, parts, name="pod", size=1.6, **more):
    """A grant of some tenths of device 0."""
    asked = {"set": name, "parts": list(parts)}
    memory = int(size * len(parts) * GIB)
    return client.create(memory=memory, time=100 * len(parts), device=0, keep=True, in_turn=asked, **more)["id"]


def guaranteed(client, grant):
    return client.grant(grant)["devices"][0]["guaranteed_milli"]


@pytest.fixture
def spin_in(daemon):
    tenants = []

    def start(grant):
        command = [*GPUSHARE, "run", "--socket", str(daemon.client.path), "--grant", grant, "--", str(SPIN)]
        tenants.append(Tenant(command))
        return tenants[-1]

    yield start
    for tenant in tenants:
        tenant.close()


def test_together_they_take_what_their_parts_are(client):
    init, main = part_of(client, range(10)), part_of(client, range(10))
    assert client.grant(init)["in_turn"] == {"set": "pod", "parts": [*range(10)]}
    assert client.devices()[0]["guaranteed"] == {"time": 1000, "memory": 16 * GIB}
    assert client.tenants()[0]["allocated"]["time"] == 1000
    for name, fits in (("pod", True), ("other", False)):
        asked = {"memory": GIB, "time": 100, "device": 0, "in_turn": {"set": name, "parts": [3]}}
        assert client.plan(**asked)["fits"] == fits
    with pytest.raises(RefusedError, match="does not fit"):
        client.create(memory=GIB, time=100, device=0)
    with pytest.raises(RefusedError, match="does not fit"):
        part_of(client, [0], name="other")
    client.release(init)
    assert client.devices()[0]["guaranteed"] == {"time": 1000, "memory": 16 * GIB}
    client.release(main)
    assert client.devices()[0]["guaranteed"] == {"time": 0, "memory": 0}


def test_more_parts_need_room(client):
    part_of(client, range(4))
    client.create(memory=int(4.8 * GIB), time=300, device=0)
    part_of(client, range(2, 7))
    with pytest.raises(RefusedError, match="does not fit"):
        part_of(client, range(6, 8))
    assert client.devices()[0]["guaranteed"]["time"] == 1000


@pytest.mark.promise("grants-in-turn")
def test_a_part_belongs_to_one_that_runs(daemon, client, spin_in, phase_of):
    init, main, beside = part_of(client, range(6)), part_of(client, range(3)), part_of(client, range(3, 7))
    first = spin_in(init)
    assert (guaranteed(client, init), guaranteed(client, main)) == (600, 0)
    for other in (main, beside):
        with pytest.raises(RefusedError, match=f"grant {init} is in use, and {other} has some of its parts"):
            client.bind(other, "process")
    first.kill()
    until(lambda: phase_of(init) == "bound", "nothing runs in it")
    for_main, for_beside = spin_in(main), spin_in(beside)
    assert [guaranteed(client, one) for one in (init, main, beside)] == [0, 300, 400]
    assert for_main.tell("alloc 4GiB")["ok"]
    assert for_beside.tell("alloc 6GiB")["ok"]
    daemon.kill()
    daemon.start()
    assert [guaranteed(client, one) for one in (init, main, beside)] == [0, 300, 400]
    assert client.devices()[0]["guaranteed"]["time"] == 700
    with pytest.raises(RefusedError, match="is in use"):
        client.bind(init, "process")
    for tenant in (for_main, for_beside):
        tenant.kill()
    until(lambda: {phase_of(main), phase_of(beside)} == {"bound"}, "nothing runs in them")
    assert spin_in(init).tell("alloc 9GiB")["ok"], "a pod may start again from its beginning"


def test_what_cannot_be_shared_is_refused(client):
    one = part_of(client, [0, 1])
    with pytest.raises(RefusedError, match=f"grants of its set are on device {client.devices()[0]['id']}"):
        client.create(memory=GIB, time=100, device=1, in_turn={"set": "pod", "parts": [0]})
    with pytest.raises(UsageError, match="ask for one device"):
        client.create(memory=GIB, time=100, devices=2, in_turn={"set": "x", "parts": [0]})
    with pytest.raises(UsageError, match="none of it on loan"):
        part_of(client, [0], borrow_memory=True, max_rung="evict")
    for wrong in ({"set": "x", "parts": []}, {"set": "x", "parts": [1024]}, {"set": "x"}):
        with pytest.raises(UsageError, match="body is not what"):
            client.create(memory=GIB, time=100, in_turn=wrong)
    with pytest.raises(RefusedError, match="too little"):
        part_of(client, [0], size=0.01)
    assert client.resize(one, time="10%")["devices"][0]["time_milli"] == 100
    part_of(client, [0])
    with pytest.raises(RefusedError, match="runs in turn with others"):
        client.resize(one, time="20%")


@pytest.mark.promise("grants-in-turn")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_root_states_what_runs_in_turn(public):
    open_to_members(public.layout.socket)
    answer = as_nobody(lambda: part_of(Client(public.layout.socket), [0]))
    assert answer.startswith("ForbiddenError")
