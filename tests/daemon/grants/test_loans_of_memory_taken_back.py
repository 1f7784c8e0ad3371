"""Memory on loan is reclaimed: requested by event, file and signal, then by ending borrowers that allow it."""

import json
import os
import subprocess
import time

import pytest
from run.running import SPIN
from run.waiting import until

from gpushare.errors import OnLoanError, RefusedError

GIB = 1 << 30
GRACE = 0.3


ONE_DEVICE = ("--simulate", "1x16GiB")


@pytest.fixture
def daemon(lone):
    return lone


@pytest.fixture
def tenants(client):
    """Of 16 GiB, tenant a is guaranteed 2 and b 12."""
    client.set_tenant("a", {"memory": 2 * GIB})
    client.set_tenant("b", {"memory": 12 * GIB})


def borrowed(client, memory="10GiB", **more):
    fields = {"borrow_memory": True, "grace_seconds": GRACE, **more}
    return client.create(tenant="a", memory=memory, time=0, **fields)["id"]


def wanted(client, memory="8GiB", **more):
    return client.create(tenant="b", memory=memory, time=0, **more)


def bound(client, grant):
    return client.call("POST", f"/v1/grants/{grant}/bind", {"kind": "container"})["dir"]


def evictions(client, since, count):
    found = []
    for event in client.watch(since=since, timeout=20):
        if event["kind"] == "eviction":
            found.append(event)
        if len(found) == count:
            return found
    raise AssertionError("the watch ended")


def rv(client):
    return client.call("GET", "/v1/grants")["rv"]


def test_memory_that_others_are_guaranteed_is_lent_to_who_accepts_a_loan(client, tenants):
    with pytest.raises(RefusedError, match="12GiB of it is guaranteed to other tenants"):
        client.create(tenant="a", memory="10GiB", time=0)
    [device] = client.grant(borrowed(client))["devices"]
    [free] = client.devices()
    spare = free["capacity"]["memory"] - free["reserved"]["memory"] - 12 * GIB
    assert device["memory_borrowed_bytes"] == 10 * GIB - spare
    part = client.create(tenant="a", memory="1GiB", time=0, borrow_memory="50%", max_rung="kill")
    assert part["devices"][0]["memory_borrowed_bytes"] == GIB
    assert (part["max_rung"], part["grace_seconds"], part["eviction"]) == ("kill", 30, None)
    with pytest.raises(RefusedError, match="of which it may borrow 512MiB"):
        client.create(tenant="a", memory="1GiB", time=0, borrow_memory="512MiB")
    with pytest.raises(RefusedError, match=r"ask with a max_rung of evict or kill, not suspend .*--reclaim"):
        client.create(tenant="a", memory="1GiB", time=0, borrow_memory=True, max_rung="suspend")
    with pytest.raises(RefusedError, match="a grace of 31 s is more than this node gives: ask for 30 s or less"):
        borrowed(client, grace_seconds=31)


def test_it_is_asked_for_by_event_file_and_sentence_and_given_back(client, tenants):
    grant = borrowed(client)
    own, since = bound(client, grant), rv(client)
    with pytest.raises(OnLoanError, match=f"on loan to {grant}, asked to give it back within 0.[0-3] s: ask again"):
        wanted(client)
    shown = client.grant(grant)
    asked = shown["eviction"]
    assert (asked["rung"], asked["max_rung"], asked["for_tenant"], asked["outcome"]) == ("evict", "evict", "b", "asked")
    assert asked["deadline_ns"] - asked["started_ns"] == pytest.approx(GRACE * 1e9, abs=1e7)
    assert "tenant b wants" in shown["notice"]
    with open(f"{own}/eviction", "rb") as file:
        assert json.load(file) == asked
    client.resize(grant, memory="2GiB")
    assert not os.path.exists(f"{own}/eviction")
    assert wanted(client)["devices"][0]["memory_limit_bytes"] == 8 * GIB
    requested, resolved = evictions(client, since, 2)
    assert (requested["type"], requested["name"], requested["object"]) == ("added", "EvictionRequested", asked)
    assert (resolved["type"], resolved["name"]) == ("removed", "EvictionResolved")
    assert resolved["object"]["outcome"] == "released"
    notified = [one for one in client.call("GET", f"/v1/explain/{grant}")["decisions"] if one["what"] == "reclaim"]
    assert [one["text"].split(":")[0] for one in notified] == ["evict", "gave its memory back after 0.0 s"]


def test_who_gives_nothing_back_is_ended_where_it_allows_that(daemon, client, tenants):
    """With real processes: the borrower lives for its grace period, then the owner gets its memory."""
    options = {"tenant": "a", "borrow-memory": "8GiB", "reclaim": "kill", "grace": str(GRACE)}
    borrower = daemon.spin("10GiB", "0", **options)
    assert borrower.tell("alloc 9G")["ok"]
    [grant] = client.grants()
    began = time.monotonic()
    owner = daemon.spin("11GiB", "0", tenant="b")
    assert time.monotonic() - began >= GRACE
    assert owner.tell("alloc 10G")["ok"]
    assert borrower.process.wait(20) == -9
    ended = client.grant(grant["id"])
    assert (ended["phase"], "on loan from tenant b" in ended["reason"]) == ("released", True)
    text = client.text("/metrics")
    assert 'gpushare_reclaims_total{rung="kill",outcome="ended"} ' in text
    assert "\ngpushare_evictions 0" in text
    borrower.kill()
    owner.close()


def test_who_may_only_be_asked_stays(client, tenants):
    grant = borrowed(client)
    bound(client, grant)
    with pytest.raises(RefusedError, match=f"on loan to {grant}, which gave nothing back in time"):
        wanted(client, wait_seconds=30)
    assert client.grant(grant)["phase"] == "bound"
    assert client.grant(grant)["eviction"] is None


def test_a_program_is_notified_by_the_signal_that_it_names(daemon, client, tenants, tmp_path):
    script = f'trap "cp $GPUSHARE_GRANT_DIR/eviction {tmp_path}/seen; exit 7" USR1; touch {tmp_path}/ready;'
    command = daemon.run(
        "10GiB", "0", "sh", "-c", script + "while :; do sleep 0.01; done", tenant="a", **{"borrow-memory": "100%"}
    )
    process = subprocess.Popen(command, env={**os.environ, "GPUSHARE_EVICTION_SIGNAL": "SIGUSR1"})
    until(lambda: (tmp_path / "ready").exists(), "the program runs")
    assert wanted(client, wait_seconds=20)["phase"] == "reserved"
    assert process.wait(20) == 7
    assert json.loads((tmp_path / "seen").read_text())["for_tenant"] == "b"


@pytest.mark.promise("no-grant-is-sacrificed")
def test_nobody_is_asked_for_more_than_is_guaranteed_or_by_who_has_no_guarantee(client, tenants):
    grant = borrowed(client, max_rung="kill")
    for request in ({"tenant": "b", "memory": "13GiB"}, {"tenant": "default", "memory": "8GiB"}):
        with pytest.raises(RefusedError) as refusal:
            client.create(**request, time=0)
        assert refusal.type is RefusedError
    assert client.grant(grant)["eviction"] is None


def test_several_that_ask_for_the_same_have_as_many_asked_as_they_need(client, tenants):
    grants = [borrowed(client, "3GiB", grace_seconds=10) for _ in range(4)]

    def asked():
        return sum(one["eviction"] is not None for one in client.grants())

    for target, count in (("", 1), ("", 1), ("?asker=x", 2), ("?asker=x", 2)):
        with pytest.raises(OnLoanError):
            client.call("POST", f"/v1/grants{target}", {"tenant": "b", "memory": "4.5GiB", "time": 0})
        assert asked() == count, target
    for grant in grants:
        if client.grant(grant)["eviction"] is not None:
            client.release(grant)
    for target in ("", "?asker=x"):
        assert client.call("POST", f"/v1/grants{target}", {"tenant": "b", "memory": "4.5GiB", "time": 0})
    assert asked() == 0
    assert borrowed(client, "1GiB")


def test_while_it_is_wanted_nobody_borrows_anew_and_a_plan_states_who_would_be_asked(client, tenants):
    grant = borrowed(client, max_rung="kill", grace_seconds=10)
    plan = client.plan(tenant="b", memory="8GiB", time=0)
    assert not plan["fits"]
    [victim] = plan["victims"]
    assert (victim["grant"], victim["rung"], victim["max_rung"], victim["rule"]) == (
        grant,
        "evict",
        "kill",
        "guarantee",
    )
    assert client.grant(grant)["eviction"] is None, "a plan changes nothing"
    with pytest.raises(OnLoanError):
        wanted(client)
    with pytest.raises(RefusedError, match="is guaranteed to other tenants"):
        borrowed(client, "2GiB")
    client.release(grant)
    assert wanted(client)["phase"] == "reserved"
    assert borrowed(client, "3GiB", max_rung="kill", grace_seconds=10)


def test_a_daemon_that_starts_again_asks_nobody(make_daemon):
    fresh = make_daemon(*ONE_DEVICE).start()
    client = fresh.client
    client.set_tenant("b", {"memory": 12 * GIB})
    command = fresh.run("10GiB", "0", SPIN, "--seconds", "60", **{"borrow-memory": "100%", "reclaim": "kill"})
    with subprocess.Popen(command, env=fresh.env, stdout=subprocess.DEVNULL) as process:
        until(lambda: [one["phase"] for one in client.grants()] == ["active"], "it runs")
        with pytest.raises(OnLoanError):
            wanted(client)
        [grant] = client.grants()
        file = f"{grant['dir']}/eviction"
        assert os.path.exists(file)
        fresh.kill()
        fresh.start()
        [again] = client.grants()
        assert (again["id"], again["eviction"], os.path.exists(file)) == (grant["id"], None, False)
        assert again["devices"][0]["memory_borrowed_bytes"] == grant["devices"][0]["memory_borrowed_bytes"]
        with pytest.raises(OnLoanError):
            wanted(client)
        process.kill()


ENGINE = """
import dataclasses, gpushare.daemon.node as node
from gpushare.daemon.grants.evictions import Evictions
from gpushare.policy.loans.reclaim import Rung
class Park:
    limit_ns = 10**10
    def __init__(self, transitions): self.transitions = transitions
    def start(self, live, cannot):
        if live.record.request.priority:
            return cannot("it cannot be parked")
        small = [dataclasses.replace(place, memory_bytes=1 << 30, borrowed_bytes=0) for place in live.record.places]
        self.transitions.move(live, small)
node.Evictions = lambda state, transitions, _: Evictions(state, transitions, {Rung.SUSPEND: Park(transitions)})
"""


def test_an_engine_for_a_milder_rung_is_tried_first(make_daemon):
    client = make_daemon(*ONE_DEVICE).patch(ENGINE).start().client
    client.set_tenant("a", {"memory": 2 * GIB})
    client.set_tenant("b", {"memory": 12 * GIB})
    grant, since = borrowed(client), rv(client)
    assert client.plan(tenant="b", memory="8GiB", time=0)["victims"][0]["rung"] == "suspend"
    assert wanted(client, wait_seconds=10)["phase"] == "reserved"
    shown = client.grant(grant)
    assert (shown["phase"], shown["devices"][0]["memory_limit_bytes"]) == ("reserved", GIB)
    requested, resolved = evictions(client, since, 2)
    assert (requested["object"]["rung"], resolved["object"]["outcome"]) == ("suspend", "released")
    # A borrower that cannot be suspended is asked.
    for other in client.grants():
        client.release(other["id"])
    since, _ = rv(client), borrowed(client, priority=1)
    with pytest.raises(OnLoanError):
        wanted(client)
    assert [event["object"]["rung"] for event in evictions(client, since, 2)] == ["suspend", "evict"]
