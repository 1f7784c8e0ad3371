"""After how long without work the memory of a grant counts as idle: the grant says it, a tenant, or the node."""

import pytest

from gpushare.errors import UsageError

GIB = 1 << 30


def in_force(client, **asked):
    grant = client.create(**{"memory": GIB, "time": 0, "device": 0, "idle_memory": "lend", **asked})
    client.release(grant["id"])
    return grant["idle_after_seconds"]


def tenant(client, name):
    return {one["name"]: one["idle_after_seconds"] for one in client.tenants()}[name]


def test_the_nearest_that_says_it(daemon, client):
    with daemon.configured("[memory]\n", "[memory]\nidle_after_seconds = 700\n"):
        client.set_tenant("org", {})
        client.set_tenant("org/team", {})
        assert in_force(client, tenant="org/team") == 700, "the node's"
        assert daemon.cli("tenants", "set", "org", "--idle-after", "5m").returncode == 0
        assert in_force(client, tenant="org/team") == 300, "of the tenant above"
        assert (tenant(client, "org/team"), tenant(client, "default")) == (300, 700)
        client.set_tenant("org/team", {"idle_after_seconds": 60})
        assert in_force(client, tenant="org/team") == 60
        assert in_force(client, tenant="org/team", idle_after_seconds=0.5) == 0.5
        assert in_force(client, tenant="org") == 300
        assert in_force(client, idle_memory="keep") is None
        for name in ("org/team", "org"):
            client.remove_tenant(name)


def test_it_outlives_the_daemon(daemon, client):
    grant = daemon.cli(
        *("grant", "create", "--memory=1GiB", "--time=0", "--idle-memory=lend", "--idle-after=2m", "--keep")
    ).stdout.strip()
    daemon.terminate()
    daemon.start()
    assert client.grant(grant)["idle_after_seconds"] == 120
    assert "counts as idle after 120 s without work" in daemon.cli("grant", "show", grant).stdout
    client.release(grant)


@pytest.mark.parametrize("seconds", [0, 0.05, -1, 86401, 1e300])
def test_what_is_out_of_range(client, seconds):
    with pytest.raises(UsageError, match=r"idle_after_seconds .* is out of range: give 0\.1 to 86400"):
        in_force(client, idle_after_seconds=seconds)
    with pytest.raises(UsageError, match=r"tenant lab: idle_after_seconds .* is out of range"):
        client.set_tenant("lab", {"idle_after_seconds": seconds})


def test_only_for_memory_that_is_lent(daemon, client):
    with pytest.raises(UsageError, match="idle_after_seconds is for memory that is lent"):
        in_force(client, idle_memory="keep", idle_after_seconds=60)
    done = daemon.cli("run", "--memory=1GiB", "--time=0", "--idle-memory=lend", "--idle-after=soon", "--", "true")
    assert done.returncode == 2
    assert "--idle-after: duration 'soon' is none" in done.stderr
