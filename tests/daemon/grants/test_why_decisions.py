"""`gpushare why` with a real daemon: admission, resizes and ends of a grant, and the two standing questions."""

import json

import pytest
from run.waiting import until

from gpushare.errors import NotFoundError, RefusedError


def explained(client, grant):
    return client.call("GET", f"/v1/explain/{grant}")


def test_the_life_of_a_grant(daemon, client):
    grant = client.create(memory="1GiB", time="25%", device=1)["id"]
    client.resize(grant, memory="2GiB", time="40%")
    client.release(grant)
    found = explained(client, grant)
    assert (found["grant"], found["tenant"], found["phase"], found["now"]) == (grant, "default", "released", [])
    admitted, resized, ended = found["decisions"]
    assert [one["what"] for one in (admitted, resized, ended)] == ["admitted", "resized", "ended"]
    assert (admitted["device"], admitted["numbers"]["guaranteed_milli"], admitted["rule"]) == (1, 250, "only fit")
    assert "to 2GiB of memory and 40% of its time" in resized["text"]
    assert ended["text"] == "ended: released by uid 0"
    text = daemon.cli_here("why", grant).stdout.splitlines()
    assert text[0] == f"{grant} of default, released"
    assert [line.partition("  ")[2] for line in text[1:]] == [one["text"] for one in found["decisions"]]
    assert json.loads(daemon.cli("why", grant, "--json").stdout) == found
    assert daemon.cli_here("why", "g-none").returncode == 2
    with pytest.raises(NotFoundError):
        explained(client, "g-none")


def test_who_holds_idle_devices_and_who_is_refused_for_it(make_daemon):
    daemon = make_daemon("--simulate", "1x8GiB").quicken(tick=0.05).start()
    client = daemon.client
    client.set_tenant("team-a", {"time": "50%"})
    assert daemon.cli_here("why").stdout.splitlines() == [
        "no grant holds a device without work",
        "nobody waits for time that is due",
    ]
    holder = client.create(memory="5GiB", time="25%", tenant="team-a")["id"]
    small = client.create(memory="1GiB", time="25%", tenant="team-a")["id"]
    for grant in (holder, small):
        client.bind(grant, "container")
    with pytest.raises(RefusedError):
        client.create(memory="4GiB", time="10%")
    with pytest.raises(RefusedError):
        client.create(memory="9GiB", time="10%")

    def rows():
        return client.call("GET", "/v1/explain?idle_seconds=0")["idle_holders"]

    first, second = until(lambda: len(rows()) == 2 and rows(), "both are seen to be idle", 20)
    assert (first["grant"], first["tenant"], first["memory_limit_bytes"]) == (holder, "team-a", 5 << 30)
    assert [(one["tenant"], one["memory"], one["time_milli"]) for one in first["in_the_way"]] == [
        ("default", "4GiB", 100)
    ]
    assert first["device_idle_milli"] == 1000
    assert first["text"].endswith("without it there would be room for 4GiB and 10% for default")
    assert (second["grant"], second["in_the_way"]) == (small, [])
    assert client.call("GET", "/v1/explain")["idle_holders"] == [], "not for 30 s yet"
    shown = json.loads(daemon.cli_here("why", "--idle-holders", "--idle-seconds", "0", "--json").stdout)
    assert [row["grant"] for row in shown["idle_holders"]] == [holder, small]
    assert "waiting" not in shown
    assert daemon.cli_here("why", holder, "--waiting").returncode == 2
    daemon.kill()
    daemon.start()
    [admitted] = explained(client, holder)["decisions"]
    assert admitted["text"].startswith("admitted on device 0: 5GiB of memory and 25% of its time")
