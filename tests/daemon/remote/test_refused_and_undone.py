"""What may not be attached, with the reason; and attachments that fail on the way, which leave everything as it was."""

import os
import threading

import pytest
from machine.members import NOBODY, as_nobody, opened_to_members
from remote.elsewhere import ECHO, Elsewhere, contract, echoes
from run.running import SPIN
from run.waiting import until

from gpushare.client import Client
from gpushare.errors import FailedError, NotFoundError, RefusedError, UsageError

GIB = 1 << 30


def grant(node, **more):
    return node.client.create(memory=GIB, time=100, **more)["id"]


def in_use(node):
    node.tenant(SPIN)
    return until(lambda: [one["id"] for one in node.client.grants() if one["phase"] == "active"], "it runs")[0]


def bound_to_container(node):
    mine = grant(node)
    node.client.bind(mine, "container")
    return mine


def prepared(node):
    part = node.client.prepare("job", [{"memory": GIB, "time": 100}])
    return part["grants"][0]["id"]


def lost_device(node):
    mine = grant(node, device=1)
    node.client.set_sim_lost(1, lost=True)
    until(lambda: node.client.devices()[1]["health"] == "unhealthy", "it is noticed")
    return mine


def ended(node):
    mine = grant(node)
    node.client.release(mine)
    return mine


@pytest.mark.parametrize(
    ("make", "asked", "error", "text"),
    [
        (in_use, {}, RefusedError, "in use by something else"),
        (bound_to_container, {}, RefusedError, "bound to a container"),
        (prepared, {}, RefusedError, "its gang is not committed"),
        (lost_device, {}, RefusedError, "does not work"),
        (ended, {}, NotFoundError, "has ended"),
        (lambda node: "g-0123456789ab", {}, NotFoundError, "no grant"),
        (grant, {"carrier": None}, UsageError, "several carriers, echo, ends, numbered, silent"),
        (grant, {"carrier": "none"}, NotFoundError, "no carrier 'none'"),
        (grant, {"carrier": "numbered", "version": "1.3"}, RefusedError, "version '1.2', this machine '1.3'"),
        (grant, {"origin": "a\nb"}, UsageError, "origin"),
        (grant, {"origin": "a" * 254}, UsageError, "origin"),
        (grant, {"host_memory": "many"}, UsageError, "not a size"),
        (grant, {"link": "ssh"}, UsageError, "link"),
    ],
)
def test_refused_with_the_reason(reachable, make, asked, error, text):
    mine = make(reachable)
    before = [one for one in reachable.client.grants() if one["id"] == mine]
    with pytest.raises(error, match=text):
        reachable.client.attach(mine, **{"carrier": "echo", **asked})
    after = [one for one in reachable.client.grants() if one["id"] == mine]
    assert [one["phase"] for one in after] == [one["phase"] for one in before]
    assert not reachable.client.remote(grant=mine)["attachments"]
    if make is prepared:
        reachable.client.abort("job")


def test_the_same_carrier_and_host_memory_as_the_grant_has(reachable):
    client, mine = reachable.client, grant(reachable)
    client.attach(mine, carrier="echo", host_memory="1GiB")
    client.attach(mine, carrier="echo", host_memory="1GiB")
    with pytest.raises(RefusedError, match="served by carrier echo"):
        client.attach(mine, carrier="numbered")
    with pytest.raises(RefusedError, match="has 1GiB of host memory"):
        client.attach(mine, carrier="echo", host_memory="2GiB")
    assert len(client.grant(mine)["attachments"]) == 2


@pytest.mark.promise("attach-own-grant")
def test_members_attach_their_own_grants_only(reachable):
    client, roots = reachable.client, grant(reachable)
    attached = client.attach(roots, carrier="echo")

    def own():
        mine = Client(reachable.layout.socket)
        got = mine.attach(mine.create(memory=GIB, time=100)["id"], carrier="echo")
        with Elsewhere(got) as machine:
            assert echoes(machine.open())
            [one] = mine.grant(got["grant"])["attachments"]
            assert one["uid"] == NOBODY
            mine.detach(got["grant"], got["id"])

    def of_root():
        Client(reachable.layout.socket).attach(roots, carrier="echo")

    def end_of_root():
        Client(reachable.layout.socket).detach(roots, attached["id"])

    def greedy():
        mine = Client(reachable.layout.socket)
        mine.attach(mine.create(memory=GIB, time=100)["id"], carrier="echo", host_memory="5GiB")

    with opened_to_members(reachable.layout.socket):
        assert as_nobody(own) == "ok"
        assert as_nobody(of_root).startswith("ForbiddenError")
        assert as_nobody(end_of_root).startswith("ForbiddenError")
        assert "may use 4GiB of the node's memory" in as_nobody(greedy)
        nobodys = [one for one in client.grants() if one["uid"] == NOBODY and one["phase"] == "reserved"]
        got = client.attach(nobodys[0]["id"], carrier="echo")
        assert client.grant(got["grant"])["attachments"][0]["uid"] == 0, "root may, for any"


def is_as_before(node, mine):
    """The grant is reserved, nothing of a server is left, and it can be used."""
    until(lambda: node.client.grant(mine)["phase"] == "reserved", "it is reserved again")
    until(lambda: not os.listdir(node.layout.cgroups), "its cgroup goes")
    shown = node.client.grant(mine)
    assert (shown["kind"], shown["pid"], shown["processes"], shown["attachments"]) == (None, None, [], [])
    with Elsewhere(node.client.attach(mine, carrier="echo")) as machine:
        assert echoes(machine.open())


def test_a_server_that_ends_at_its_start(reachable):
    mine = grant(reachable)
    with pytest.raises(FailedError, match="it has no licence"):
        reachable.client.attach(mine, carrier="ends")
    is_as_before(reachable, mine)


@pytest.mark.slow
def test_a_server_that_does_not_listen(reachable):
    with reachable.started_with(served=0.2):
        until(lambda: reachable.client.remote()["relay"], "the relay serves")
        mine = grant(reachable)
        with pytest.raises(FailedError, match="does not start"):
            reachable.client.attach(mine, carrier="silent")
        until(lambda: reachable.client.grant(mine)["phase"] == "reserved", "it is reserved again")
        reachable.client.release(mine)


def test_a_grant_that_ends_while_its_server_starts(reachable):
    """Its owner may change their mind: the attachment is refused, and nothing is left."""
    mine, said = grant(reachable), []

    def attach():
        with pytest.raises((RefusedError, FailedError)) as caught:
            reachable.client.attach(mine, carrier="silent")
        said.append(str(caught.value))

    thread = threading.Thread(target=attach)
    thread.start()
    until(lambda: reachable.client.grant(mine)["phase"] == "active", "its server is being started")
    reachable.client.release(mine)
    thread.join(30)
    assert said
    assert reachable.client.grant(mine)["phase"] == "released"


def test_a_program_that_is_no_server_is_named(reachable, tmp_path):
    carriers = reachable.state_dir / "carriers"
    contract(carriers, "absent", ("no-such-server", "{port}"))
    contract(carriers, "mute", ECHO, ("/bin/true",))
    (carriers / "open.toml").write_text('name = "open"\n[server]\nargv = ["true", "{port}"]\n')
    (carriers / "open.toml").chmod(0o666)
    try:
        shown = {one["name"]: one for one in reachable.client.remote()["carriers"]}
        assert "no-such-server is not there" in shown["absent"]["trouble"]
        assert "says no version" in shown["mute"]["trouble"]
        assert "others may write to it" in shown["open"]["trouble"]
        assert (shown["numbered"]["version"], shown["echo"]["trouble"]) == ("1.2", "")
        with pytest.raises(RefusedError, match="cannot serve carrier open"):
            reachable.client.attach(grant(reachable), carrier="open")
    finally:
        for name in ("absent", "mute", "open"):
            (carriers / f"{name}.toml").unlink()


@pytest.mark.slow
def test_no_more_than_the_node_takes(reachable):
    config = reachable.state_dir / "gpushare.toml"
    with reachable.configured("attachments = 40", "attachments = 2"):
        until(lambda: reachable.client.remote()["relay"], "the relay serves")
        assert "attachments = 2" in config.read_text()
        mine = grant(reachable)
        for _ in range(2):
            reachable.client.attach(mine, carrier="echo")
        with pytest.raises(RefusedError, match="has 2 attachments, all that it may"):
            reachable.client.attach(mine, carrier="echo")
        reachable.client.release(mine)


def test_an_attachment_that_is_not_there(reachable):
    with pytest.raises(NotFoundError):
        reachable.client.detach(grant(reachable), "0" * 32)
