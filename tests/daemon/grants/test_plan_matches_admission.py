"""A plan says what admission would do, and does nothing."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from run.running import SPIN
from run.waiting import until

from gpushare.client import Client
from gpushare.errors import GpushareError, RefusedError, UsageError

GIB = 1 << 30


def plans(client: Client, *requests: dict[str, Any]) -> Any:
    return client.call("POST", "/v1/plan", {"grants": list(requests)})


def asked(number: int) -> dict[str, Any]:
    """A request, random by `number`: it may fit, borrow or not fit."""
    pick = random.Random(number)
    request: dict[str, Any] = {
        "memory": pick.choice([GIB, "2GiB", "30%", 9 * GIB, "100MiB"]),
        "time": pick.choice([0, 10, "25%", 400, 1000, 2]),
        "tenant": pick.choice(["default", "team-a", "team-b"]),
    }
    if pick.random() < 0.3:
        request["devices"] = 2
    elif pick.random() < 0.3:
        request["device"] = pick.randrange(2)
    if pick.random() < 0.2:
        request["gang"] = "job:4"
    if pick.random() < 0.2:
        request["key"] = pick.choice(["k1", "k2"])
    return request


@pytest.fixture
def tenants(client: Client) -> None:
    client.set_tenant("team-a", {"time": "50%", "memory": "4GiB"})
    client.set_tenant("team-b", {"time": "75%", "time_limit": "150%"})


def outcome(client: Client, request: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """The result of `POST /v1/grants`: places, or the refusal."""
    try:
        grant = client.call("POST", "/v1/grants", request)
    except RefusedError as refusal:
        return [], [str(refusal)]
    places = [
        (device["index"], device["memory_limit_bytes"], device["time_milli"], device["guaranteed_milli"])
        for device in grant["devices"]
    ]
    return places, []


def planned(plan: Any) -> tuple[list[Any], list[str]]:
    places = [
        (device["index"], device["memory_bytes"], device["time_milli"], device["guaranteed_milli"])
        for device in plan["devices"]
    ]
    assert plan["fits"] == bool(places) == (plan["class"] is not None)
    return places, plan["reasons"]


@pytest.mark.usefixtures("tenants")
@pytest.mark.parametrize("seed", range(2))
def test_a_plan_is_what_admission_does_then(client, seed):
    requests = [asked(1000 * seed + number) for number in range(40)]
    together = plans(client, *requests)["plans"]
    fits = 0
    for request, planned_before in zip(requests, together, strict=True):
        alone = planned(client.call("POST", "/v1/plan", request))
        done = outcome(client, request)
        assert alone == done, request
        places, reasons = planned(planned_before)
        # A plan of several requests names earlier ones by their index in the list, as they have no ids.
        assert (places, bool(reasons)) == (done[0], bool(done[1])), request
        assert [reason for reason in reasons if "grants[" not in reason] in ([], done[1])
        fits += bool(places)
    assert 5 < fits < 35, "some of each"


def everything(daemon: Any) -> Any:
    """Everything that a plan could have changed; not memory in use and times, which change anyway."""
    client = daemon.client
    daemon.written()
    devices = [{name: device[name] for name in ("guaranteed", "allocatable")} for device in client.devices()]
    grants = client.call("GET", "/v1/grants?ended=1")
    roots = (daemon.layout.run, daemon.layout.grants, daemon.layout.cdi)
    files = sorted(str(path) for root in roots if Path(root).exists() for path in Path(root).rglob("*"))
    ledger = daemon.rows("SELECT * FROM grants ORDER BY id")
    return json.dumps([devices, grants, client.tenants(), files, [list(map(str, row)) for row in ledger]])


@pytest.mark.promise("plans-change-nothing")
@pytest.mark.usefixtures("tenants")
def test_a_plan_changes_nothing(daemon, client):
    client.create(memory="1GiB", time="25%", tenant="team-a", key="k1")
    before = everything(daemon)
    for number in range(20):
        client.call("POST", "/v1/plan", asked(number))
    found = plans(client, *map(asked, range(100)))
    assert len(found["plans"]) == 100
    assert not found["fits"]
    assert everything(daemon) == before


def test_what_makes_no_sense_is_answered_as_admission_answers_it(client):
    for request in (
        {"memory": "1GiB", "time": "10%", "tenant": "nobody"},
        {"memory": "1GiB", "time": "10%", "device": 7},
        {"memory": "1GiB", "time": "50%", "time_limit": "10%"},
        {"memory": "a lot", "time": "10%"},
        {"memory": "1GiB", "time": "10%", "colour": "red"},
    ):
        answer = []
        for path in ("/v1/grants", "/v1/plan"):
            with pytest.raises(UsageError) as refused:
                client.call("POST", path, request)
            answer.append((type(refused.value), str(refused.value).replace(path, "")))
        assert answer[0] == answer[1]
        with pytest.raises(GpushareError, match=r"grants\[1\]"):
            plans(client, {"memory": "1GiB", "time": "10%"}, request)
    for bad in ([], [{"memory": "1GiB", "time": 1}] * 101, [{}], [3], "x"):
        with pytest.raises(UsageError):
            client.call("POST", "/v1/plan", {"grants": bad})


def test_keys(client):
    first = {"memory": "1GiB", "time": "10%", "key": "mine"}
    one, same, other = plans(client, first, first, {**first, "time": "20%"})["plans"]
    assert one == same
    assert one["grant"] is None
    assert "taken by grants[0]" in other["reasons"][0]
    made = client.call("POST", "/v1/grants", first)
    assert client.call("POST", "/v1/plan", first)["grant"] == made["id"]


def test_who_would_lose_what_it_borrows(make_daemon):
    daemon = make_daemon("--simulate", "1x8GiB").quicken(tick=0.1).start()
    client = daemon.client
    client.set_tenant("team-a", {"time": "50%"})
    child = daemon.tenant(str(SPIN), time="0", tenant="default")
    child.stdin.write("run 1000000\n")
    child.stdin.flush()
    request = {"memory": "1GiB", "time": "40%", "tenant": "team-a"}

    def lent() -> tuple[dict, dict, str] | None:
        """All in one window: on a busy machine it may have nothing in the next one."""
        victims, loans = client.call("POST", "/v1/plan", request)["victims"], client.grants()
        text = daemon.cli_here("plan", "--memory", "1GiB", "--time", "40%", "--tenant", "team-a").stdout
        return (victims[0], loans[0], text) if victims and loans[0]["devices"][0]["borrowed_milli"] else None

    victim, loan, text = until(lent, "the loan is seen", 20)
    [device] = loan["devices"]
    assert device["borrowed_milli"] <= device["used_milli"] <= 1000
    assert (victim["grant"], victim["tenant"], victim["index"]) == (loan["id"], "default", 0)
    assert (victim["rung"], victim["rule"]) == ("throttle", "guarantee")
    assert 0 < victim["time_milli"] <= 400
    assert f"{loan['id']} of default would lose" in text


def test_the_command(daemon):
    done = daemon.cli("plan", "--memory", "1GiB", "--time", "25%")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    waits = (" ms in 99 of 100 (", "no such grant has waited there yet, so nothing says how long this one would")
    why = "of 2 devices that fit it has most free"
    assert first.endswith(f"1GiB of memory and 25% of its time, all out of the guarantee of default; {why}")
    assert first.startswith("fits on device 0 (GPU-")
    assert any(answer in second for answer in waits)
    refused = daemon.cli_here("plan", "--memory", "17GiB", "--time", "25%")
    assert (refused.returncode, refused.stderr) == (3, "")
    assert refused.stdout.startswith("does not fit: 17GiB of memory does not fit on device 0")
    shown = json.loads(daemon.cli_here("plan", "--memory", "1GiB", "--time", "0", "--json").stdout)
    assert (shown["fits"], shown["class"], shown["victims"]) == (True, "borrow", [])
    assert daemon.cli_here("plan", "--memory", "1GiB", "--time", "5%", "--tenant", "nobody").returncode == 2
