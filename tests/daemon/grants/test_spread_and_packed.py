"""Placement with a real daemon: which device, by whose wish, with which words, and who is called starved for it."""

import json

import pytest
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare.errors import UsageError


@pytest.fixture
def four(make_daemon):
    return make_daemon("--simulate", "4x16GiB").start()


def device(grant):
    return grant["devices"][0]["index"]


def test_two_runs_get_a_device_each(four):
    client = four.client
    for name in ("team-a", "team-b"):
        client.set_tenant(name, {"time": "30%"})
    grants = [client.create(memory="1GiB", time="30%", tenant=name) for name in ("team-a", "team-b")]
    assert [device(grant) for grant in grants] == [0, 1]
    [first] = client.plan(memory="1GiB", time="30%")["devices"]
    assert (first["index"], first["rule"]) == (2, "most free")
    assert first["why"] == "of 4 devices that fit it has most free"
    assert device(client.create(memory="1GiB", time="30%")) == 2
    answer = client.call("GET", f"/v1/explain/{grants[1]['id']}")["decisions"][0]
    assert answer["rule"] == "most free" and answer["text"].endswith("; of 4 devices that fit it has most free")


def test_whole_devices_that_are_guaranteed_stay_whole(four):
    client = four.client
    client.set_tenant("team", {"time": "100%"})
    client.set_tenant("train", {"time": "300%"})
    for _ in range(3):
        plan = client.plan(memory="1GiB", time="30%", tenant="team")["devices"][0]
        grant = client.create(memory="1GiB", time="30%", tenant="team")
        assert device(grant) == plan["index"] == 0
    assert (plan["rule"], plan["why"]) == ("whole devices", "train may ask for devices 1, 2, 3 as a whole")
    whole = client.create(memory="16GiB", time="100%", devices=3, tenant="train")
    assert [(one["index"], one["guaranteed_milli"]) for one in whole["devices"]] == [(1, 1000), (2, 1000), (3, 1000)]


def test_the_request_comes_before_the_tenant_and_that_before_the_node(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('placement = "pack"\n')
    daemon = make_daemon("--simulate", "4x16GiB", "--config", str(config)).start()
    client = daemon.client
    assert client.node()["placement"] == "pack"
    client.set_tenant("lab", {"placement": "spread"})
    client.set_tenant("lab/ada", {})
    assert {row["name"]: row["placement"] for row in client.tenants()} == {
        "default": "pack",
        "lab": "spread",
        "lab/ada": "spread",
    }
    client.create(memory="1GiB", time="10%")

    def placed(**request):
        return client.plan(memory="1GiB", time="10%", **request)["devices"][0]["index"]

    assert (placed(), placed(placement="spread"), placed(placement="pack")) == (0, 1, 0)
    assert (placed(tenant="lab/ada"), placed(tenant="lab/ada", placement="pack")) == (1, 0)
    asked = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "10%", "gpushare.dev/placement": "spread"}
    edited = client.call("POST", "/v1/oci/edit", {"config": {"annotations": asked, "mounts": []}})
    assert device(client.grant(edited["grant"])) == 1
    assert (
        device(json.loads(daemon.cli_here("grant", "create", "--memory", "1GiB", "--time", "10%", "--json").stdout))
        == 0
    )
    line = daemon.cli_here("plan", "--memory", "1GiB", "--time", "10%", "--placement", "spread").stdout
    assert line.startswith("fits on device 2 ")
    with pytest.raises(UsageError):
        client.plan(memory="1GiB", time="10%", placement="binpack")
    with pytest.raises(UsageError):
        client.set_tenant("lab", {"placement": "most-allocated"})


def test_nobody_is_called_starved_for_where_we_put_it(four):
    """Two tenants share one of four devices because their requests say so: what they could have on the others does not
    count."""
    client, runs = four.client, []
    for name in ("team-a", "team-b"):
        client.set_tenant(name, {"time": "200%"})
        runs.append(Tenant(four.run("1GiB", "30%", SPIN, tenant=name, placement="pack"), four.env))
    try:
        assert [device(grant) for grant in client.grants()] == [0, 0]
        for run in runs:
            run.tell("run 2000000")

        def read():
            """What both tenants and their grants had in the same second; empty if a second ended in between."""
            before, grants, after = client.tenants(), client.grants(), client.tenants()
            if before != after:
                return {}
            due = {grant["tenant"]: grant["devices"][0]["entitled_milli"] for grant in grants}
            return {row["name"]: (row["now"], due[row["name"]]) for row in after if row["name"] in due}

        def side_by_side():
            both = read()
            waited = [now["waited_milli"] and now["entitlement_milli"] >= 1000 for now, _ in both.values()]
            return both if len(waited) == 2 and all(waited) else None

        for now, due in until(side_by_side, "both are measured side by side", 30).values():
            assert due < 1000 <= now["entitlement_milli"]
            assert (now["state"] == "starved") == (now["used_milli"] < due * 950 // 1000), (now, due)
    finally:
        for run in runs:
            run.close()


def test_all_that_is_reported_free_can_be_had_in_one_piece(four):
    run = Tenant(four.run("1001MiB", "30%", SPIN), four.env)
    try:
        [grant] = four.client.grants()
        [part] = grant["devices"]
        assert (part["memory_limit_bytes"], part["memory_asked_bytes"]) == (1000 << 20, 1001 << 20)
        free = run.tell("memory")["free_bytes"]
        assert 0 < free <= (1000 - 16) << 20  # the context is charged, and what the program has loaded
        assert not run.tell(f"alloc {free + 1}")["ok"]
        assert run.tell(f"alloc {free}")["ok"]
        assert "the share has 1000MiB of memory, 1001MiB were asked for" in run.process.stderr.readline()
    finally:
        run.close()
    done = four.cli_here("grant", "create", "--memory", "1001MiB", "--time", "10%")
    assert done.stderr == (
        "gpushare: the share has 1000MiB of memory, 1001MiB were asked for: devices give memory in pages of 2MiB\n"
    )
    assert "1000MiB (1001MiB in whole pages of 2MiB) of memory" in (
        four.cli_here("plan", "--memory", "1001MiB", "--time", "10%").stdout
    )
    for memory in ("1002MiB", "7%"):
        assert four.cli_here("grant", "create", "--memory", memory, "--time", "10%").stderr == ""
