"""Grants that are part of a gang: admission, placement and leases."""

import json
import re

import pytest

from gpushare.errors import RefusedError, UsageError

GIB = 1 << 30


def device_of(grant):
    return [device["index"] for device in grant["devices"]]


def test_grants_of_one_gang_are_on_different_devices(client):
    first = client.create(memory=GIB, time=100, gang={"id": "job-7", "size": 2})
    second = client.create(memory=GIB, time=100, gang="job-7:2")
    assert device_of(first) != device_of(second)
    with pytest.raises(RefusedError, match=f"grant ({first['id']}|{second['id']}) of gang 'job-7'") as refused:
        client.create(memory=GIB, time=100, gang="job-7:3")
    assert "communicator" in str(refused.value)
    client.create(memory=GIB, time=100, gang="job-8:2")
    client.release(first["id"])
    assert device_of(client.create(memory=GIB, time=100, gang="job-7:2")) == device_of(first)


def test_a_gang_that_does_not_fit_beside_its_own_is_refused_on_a_named_device(client):
    client.create(memory=GIB, time=100, gang="job", device=0)
    with pytest.raises(RefusedError, match="gang 'job'"):
        client.create(memory=GIB, time=100, gang="job", device=0)
    with pytest.raises(RefusedError, match="gang 'job'"):
        client.create(memory=GIB, time=100, gang="job", devices=2)
    assert len(client.grants()) == 1


def test_gangs_of_different_tenants_do_not_know_each_other(client):
    client.call("PUT", "/v1/tenants/other", {"time": "50%"})
    client.create(memory=GIB, time=100, gang="job", device=0)
    assert device_of(client.create(memory=GIB, time=100, gang="job", tenant="other", device=0)) == [0]


def test_the_grant_states_what_gang_it_is_of(daemon, client):
    assert client.create(memory=GIB, time=100)["gang"] is None
    assert client.create(memory=GIB, time=100, gang="a")["gang"] == {"id": "a", "size": 1}
    both = client.create(memory=GIB, time=100, devices=2, gang="b::independent")
    assert both["gang"] == {"id": "b", "size": 2, "leases": "independent"}
    shown = daemon.cli_here("grant", "show", both["id"]).stdout
    assert "b: turns on its devices are independent" in shown
    daemon.kill()
    daemon.start()
    assert client.grant(both["id"])["gang"] == both["gang"]


def test_the_command_line_asks_for_gangs(daemon):
    def made(*options):
        created = daemon.cli_here("grant", "create", "--memory", "1GiB", "--time", "10%", "--json", *options)
        assert created.returncode == 0, created.stderr
        return json.loads(created.stdout)["gang"]

    assert made("--gang", "job:4") == {"id": "job", "size": 4}
    assert made("--devices", "2", "--turns", "independent") == {"size": 2, "leases": "independent"}
    assert made("--devices", "2", "--gang", "k:2", "--turns", "together") == {"id": "k", "size": 2}


@pytest.mark.parametrize(
    ("gang", "message"),
    [
        ("", "empty"),
        ("x" * 129, "128"),
        ("a\nb", "printable"),
        ("job:four", "number"),
        ("job:0", "0"),
        ("job:-1", "number"),
        ("job:2:sometimes", "together or independent"),
        ("job:4:independent", "elsewhere"),
        ({"id": "job", "size": 1}, "in this grant"),
        ({"id": "job", "size": 1 << 40}, "in this grant"),
        ({"id": "job", "leases": "sometimes"}, "leases"),
        ({"id": "job", "ranks": 4}, "ranks"),
        (7, "gang"),
    ],
)
def test_bad_gangs(client, gang, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        client.create(memory=GIB, time=100, devices=2, gang=gang)
    assert client.grants() == []
