"""The DRA driver and the processes around it, killed or unavailable; claims' status."""

import threading

import pytest
from run.waiting import until
from schedulers.apiserver import claim

SMALL = {"memory": "272Mi", "time": "5", "shares": "1"}
AWAY = "gpu.gpushare.dev/unreachable"


def some(site, count):
    made = [claim(f"c{number}", ("gpu", site.devices[number % 2], SMALL)) for number in range(count)]
    for one in made:
        site.api.add_claim(one)
    return made


def notified(site, one):
    return [entry["data"] for entry in site.api.claim(one)["status"].get("devices", ())]


def taints(shown):
    return [{taint["key"] for taint in one.get("taints", ())} for one in shown]


def test_a_claims_status_states_what_it_got(site):
    [one] = some(site, 1)
    writes = len(site.api.status_writes)
    prepared = site.kubelet.prepare(one)
    until(lambda: notified(site, one), "it is told", 20)
    [grant] = site.daemon.client.grants()
    part = grant["devices"][0]
    assert notified(site, one) == [
        {
            "apiVersion": "gpushare.dev/v1",
            "kind": "Share",
            "grant": grant["id"],
            "tenant": "default",
            "memoryBytes": part["memory_limit_bytes"],
            "timeMilli": 5,
            "timeLimitMilli": 1000,
        }
    ]
    [entry] = site.api.claim(one)["status"]["devices"]
    assert (entry["driver"], entry["pool"], entry["device"]) == ("gpu.gpushare.dev", "node1", site.devices[0])
    assert (entry["shareID"], entry["conditions"][0]["type"], entry["conditions"][0]["status"]) == (
        prepared["uid-c0"][0]["share"],
        "Ready",
        "True",
    )
    site.kubelet.prepare(one)
    assert len(site.api.status_writes) == writes + 1


@pytest.mark.slow
def test_killed_in_the_middle_and_asked_again(site):
    """Driver, then daemon, each while claims are being prepared; kubelet asks again, several times at once."""
    made = some(site, 8)

    def ask():
        return site.kubelet.prepare(*made)

    for kill in (site.kill, site.daemon.kill):
        lost = threading.Thread(target=lambda: ask_and_lose(site, made))
        before = len(site.daemon.client.grants())
        lost.start()
        until(lambda before=before: len(site.daemon.client.grants()) > before, "it has begun", 20)
        kill()
        lost.join()
        if kill == site.kill:
            site.start()
        else:
            site.daemon.start()
        site.kubelet.unprepare(*made[:4])
    askers = [threading.Thread(target=ask) for _ in range(2)]
    for one in askers:
        one.start()
    for one in askers:
        one.join()
    answers = ask()
    assert all(isinstance(answer, list) for answer in answers.values()), answers
    assert len(site.daemon.client.grants()) == len(site.grants()) == len(made)
    until(lambda: all(notified(site, one) for one in made), "all are told", 20)
    assert {notified(site, one)[0]["grant"] for one in made} == {grant["id"] for grant in site.daemon.client.grants()}
    assert set(site.kubelet.unprepare(*made, made[0]).values()) == {""}
    assert site.daemon.client.grants() == []


@pytest.mark.slow
def test_after_a_reboot_claims_are_prepared_again_in_their_grants(site):
    """kubelet asks again for claims whose pods are still on the node; the pods of the others were deleted meanwhile.
    The driver, which starts before the daemon, knows the devices from the slice."""
    made = some(site, 4)
    prepared = site.kubelet.prepare(*made)
    site.published("all is well", lambda shown: taints(shown) == [set(), set()])
    site.shut_down()
    for one in made[2:]:
        site.api.remove_claim(one)
    writes = len(site.api.writes)
    site.start()
    site.published("the daemon is away", lambda shown: taints(shown) == [{AWAY}, {AWAY}])
    assert len(site.api.writes) == writes + 1
    site.daemon.start()
    site.published("it is there", lambda shown: taints(shown) == [set(), set()])
    until(lambda: len(site.daemon.client.grants()) == 2, "what nobody has any more is released", 30)
    assert site.kubelet.prepare(*made[:2]) == {uid: prepared[uid] for uid in ("uid-c0", "uid-c1")}
    assert len(site.daemon.specs()) == 2
    assert len(site.grants()) == 2


def ask_and_lose(site, made):
    try:
        site.kubelet.prepare(*made)
    except Exception:
        return


def test_while_the_daemon_is_away_nothing_new_is_placed(site):
    [one] = some(site, 1)
    prepared = site.kubelet.prepare(one)
    site.published("it is free", lambda shown: taints(shown) == [set(), set()])
    site.daemon.kill()
    try:
        site.published("the daemon is away", lambda shown: taints(shown) == [{AWAY}, {AWAY}])
        assert len(site.shown()[0]["capacity"]) == 3, "it is what it was otherwise"
        assert "no daemon" in site.kubelet.prepare(one)["uid-c0"]
    finally:
        site.daemon.start()
    site.published("it is back", lambda shown: taints(shown) == [set(), set()])
    assert site.kubelet.prepare(one) == prepared
