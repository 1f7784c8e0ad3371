"""`gpushare why` with a real daemon: admission, resizes and ends of a grant, and the two standing questions."""

import json
import re
import subprocess

import pytest
from run.running import GPUSHARE
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


def test_memory_that_was_refused_is_known_while_it_runs_and_after_its_end(attentive):
    client = attentive.client
    program = attentive.spin("1GiB", "25%", gpu="1")
    [grant] = [one["id"] for one in client.grants()]

    def device():
        [one] = [one for one in client.grants(ended=True) if one["id"] == grant]
        return one["devices"][0]

    assert (device()["memory_refusals"], device()["memory_refused"]) == (0, None)
    assert [program.tell("alloc 2GiB")["ok"] for _ in range(3)] == [False] * 3
    until(lambda: device()["memory_refusals"] == 3, "all are counted", 20)
    last = device()["memory_refused"]
    assert (last["asked_bytes"], last["limit_bytes"], last["why"]) == (2 << 30, 1 << 30, "limit")
    assert last["left_bytes"] == (1 << 30) - attentive.books(1)["bytes"]
    own = attentive.cli_here("why", grant).stdout.splitlines()
    advice = f"`gpushare grant resize {grant} --memory 3GiB`, or let the program take less"
    assert re.search(rf" [0-9]+ s ago: {advice}$", own[1]), own
    assert not program.tell("alloc 3GiB")["ok"]
    program.close()  # and is read no more while it lives
    until(lambda: not client.grants(), "it has ended", 20)
    assert (device()["memory_refusals"], device()["memory_refused"]["asked_bytes"]) == (4, 3 << 30)
    events = client.call("GET", f"/v1/events?grant={grant}&kind=refused")["events"]
    assert sum(event["value"] for event in events) == 4
    assert (events[-1]["device"], events[-1]["refused"]["asked_bytes"]) == (1, 3 << 30)
    [told] = [one for one in explained(client, grant)["decisions"] if one["what"] == "refused"]
    assert told["text"].startswith("refused memory 4 times, the last time when it asked for 3GiB with ")
    assert f"{grant}: {told['text']}" in attentive.cli_here("ps", "--all").stdout
    counted = (
        f'gpushare_memory_refusals_total{{grant="{grant}",tenant="default",gpu="1",gpu_uuid="{device()["id"]}"}} 4.0'
    )
    assert counted in client.text("/metrics").splitlines()


def test_inside_a_share_the_question_is_about_that_share(daemon, client):
    kept = client.create(memory="1GiB", time="25%", keep=True)["id"]
    inside = daemon.run("1GiB", "25%", *GPUSHARE, "why", "--json", gpu="1")
    done = subprocess.run(inside, env=daemon.env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["grant"] not in ("", kept)
    assert found["why"] == ["no process of it uses the GPU: none has called CUDA yet, or all have ended"]
    gone = daemon.run("1GiB", "25%", *GPUSHARE, "why", "--socket", "/nowhere", gpu="1")
    done = subprocess.run(gone, env=daemon.env, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "this is share g-" in done.stderr
