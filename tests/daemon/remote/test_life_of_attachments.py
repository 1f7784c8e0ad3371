"""Programs of another machine use a grant: from the attachment to its end, in the node API."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from remote.elsewhere import Elsewhere, echoes
from run.running import alive
from run.waiting import until

from gpushare.daemon.remote.servers import UIDS
from gpushare.errors import NotFoundError, OnLoanError, RefusedError

GIB = 1 << 30


def grant(node, **more):
    return node.client.create(memory=GIB, time=100, **more)["id"]


def attach(node, grant_id, carrier="echo", **more):
    return node.client.attach(grant_id, carrier=carrier, **more)


def ended(node, grant_id):
    """The grant, once it has ended."""
    return until(lambda: (found := node.client.grant(grant_id))["ended_ns"] and found, "the grant ends")


def last(node, attachment):
    """An attachment that has ended, once it has."""

    def find():
        return [one for one in node.client.remote()["attachments"] if one["id"] == attachment and one["ending"]]

    return until(find, "the attachment ends")[0]


def test_from_the_attachment_to_the_end_of_the_grant(reachable):
    client = reachable.client
    watch = client.watch(timeout=20)
    next(watch)
    mine = grant(reachable)
    before = time.time_ns()
    attached = attach(reachable, mine, origin="laptop.example")
    assert attached["grant"] == mine and attached["link"] == "tls"
    assert attached["carrier"] == {"name": "echo", "version": "", "trouble": ""}
    assert before <= attached["expires_ns"] - 60 * 10**9 <= time.time_ns()
    event = next(event for event in watch if event["kind"] == "attachment")
    assert (event["name"], event["object"]["id"]) == ("RemoteAttached", attached["id"])
    assert "ticket" not in event["object"]

    shown = client.grant(mine)
    assert (shown["phase"], shown["kind"]) == ("active", "process")
    [one] = shown["attachments"]
    assert (one["origin"], one["carrier"], one["uid"], one["ending"]) == ("laptop.example", "echo", 0, "")
    with Elsewhere(attached) as machine:
        assert echoes(machine.open(), 1 << 20)
        assert echoes(machine.open(), 10)

        def counted():
            [one] = client.grant(mine)["attachments"]
            return one if one["bytes_in"] >= (1 << 20) + 10 and one["connections"] == 2 else None

        one = until(counted, "the relay tells what it counted")
        assert one["bytes_out"] == one["bytes_in"] == (1 << 20) + 10
        assert one["address"] == "127.0.0.1"
        server = client.grant(mine)["pid"]
        assert alive(server)
    over = last(reachable, attached["id"])
    assert (over["ending"], over["bytes_in"]) == ("detached", (1 << 20) + 10)
    event = next(event for event in watch if event["name"].startswith("RemoteDe"))
    assert (event["type"], event["object"]["ending"]) == ("removed", "detached")
    assert ended(reachable, mine)["reason"] == "its processes have ended"
    assert not alive(server)
    assert client.remote(grant=mine)["attachments"] == [over]
    assert client.remote(since=time.time_ns())["attachments"] == []


def test_a_grants_attachments_use_one_server_and_the_last_one_ends_it(reachable):
    client, mine = reachable.client, grant(reachable)
    first, second = (Elsewhere(attach(reachable, mine)) for _ in range(2))
    with first:
        with second:
            assert echoes(first.open()) and echoes(second.open())
            assert len(client.grant(mine)["attachments"]) == 2
            second.bye()
            assert second.end().end == "detached"
        until(lambda: len(client.grant(mine)["attachments"]) == 1, "one has ended")
        assert echoes(first.open())
        [left] = client.grant(mine)["attachments"]
        client.detach(mine, left["id"])
        assert first.end().text == "uid 0 has ended it on the node"
    assert ended(reachable, mine)["phase"] == "released"
    with pytest.raises(NotFoundError):
        client.detach(mine, left["id"])


def test_a_kept_grant_is_attached_again(reachable):
    client, mine = reachable.client, grant(reachable, keep=True)
    for _ in range(2):
        attached = attach(reachable, mine)  # at once: its last server may be ending
        with Elsewhere(attached) as machine:
            assert echoes(machine.open())
            client.detach(mine, attached["id"])
    until(lambda: client.grant(mine)["phase"] == "bound", "its server has ended")


def test_each_living_grant_has_an_own_uid(reachable):
    servers = []
    for _ in range(3):
        mine = grant(reachable)
        attach(reachable, mine)
        [own] = uids(reachable, mine) - {0}  # the server's: what starts it is root's, and ends
        assert own in UIDS
        servers.append(own)
    assert len(set(servers)) == 3


def uids(node, grant_id):
    """The uids of the processes that live in a grant's cgroup."""
    found = set()
    for pid in node.cgroup(grant_id).pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            found.add(int(next(line for line in status if line.startswith("Uid:")).split()[1]))
    return found


@pytest.mark.promise("attachment-ends-with-grant")
def test_a_released_grant_ends_its_attachments(reachable):
    mine = grant(reachable)
    attached = attach(reachable, mine)
    with Elsewhere(attached) as machine:
        connection = machine.open()
        assert echoes(connection)
        reachable.client.release(mine)
        line = machine.end()
        assert (line.end, line.text) == ("released", f"grant {mine} has ended: released by uid 0")
        with pytest.raises(ConnectionError):
            machine.open()
    assert last(reachable, attached["id"])["ending"] == "released"


def test_a_server_that_ends_takes_its_attachments_along(reachable):
    mine = grant(reachable)
    attached = attach(reachable, mine)
    with Elsewhere(attached) as machine:
        reachable.cgroup(mine).kill()
        assert machine.end().end == "server"
    assert last(reachable, attached["id"])["ending"] == "server"
    assert ended(reachable, mine)["phase"] == "released"


def test_a_client_that_is_gone_without_a_word(reachable):
    mine = grant(reachable)
    attached = attach(reachable, mine)
    with Elsewhere(attached) as machine:
        machine.control.close(reset=True)
        assert last(reachable, attached["id"])["ending"] == "detached"
    ended(reachable, mine)


@pytest.mark.slow
def test_a_client_that_says_nothing_any_more_is_lost(reachable):
    with reachable.started_with(heard=1.5):
        until(lambda: reachable.client.remote()["relay"], "the relay serves")
        watch = reachable.client.watch(timeout=20)
        next(watch)
        mine = grant(reachable)
        attached = attach(reachable, mine)
        with Elsewhere(attached):
            assert last(reachable, attached["id"])["ending"] == "lost"
        event = next(event for event in watch if event["type"] == "removed" and event["kind"] == "attachment")
        assert (event["name"], event["object"]["id"]) == ("RemoteLost", attached["id"])
        ended(reachable, mine)


def test_a_drained_device_tells_who_uses_it_and_takes_no_more(reachable):
    client = reachable.client
    mine, other = grant(reachable, device=0), grant(reachable, device=0)
    with Elsewhere(attach(reachable, mine)) as machine:
        client.drain("0", "a new fan")
        assert machine.notice() == f"grant {mine}: device 0 of the node takes no new work: a new fan: end this one soon"
        assert echoes(machine.open())
        with pytest.raises(RefusedError, match="device 0 takes no new work, since it is drained: a new fan"):
            attach(reachable, other)
        client.undrain("0")


def test_memory_that_is_wanted_back_is_asked_for(reachable):
    client = reachable.client
    client.set_tenant("owner", {"memory": "30GiB"})
    client.set_tenant("borrower", {"memory": "1GiB"})
    mine = client.create(memory="14GiB", time=0, tenant="borrower", device=0, borrow_memory=True)["id"]
    with Elsewhere(attach(reachable, mine)) as machine:
        with pytest.raises(OnLoanError):
            client.create(memory="8GiB", time=0, tenant="owner", device=0)
        assert "wants" in machine.notice()


@pytest.mark.slow
def test_thirty_at_once(reachable):
    """Each has its own grant and server, and its own bytes."""
    mine = [reachable.client.create(memory=512 << 20, time=0, device=number % 2)["id"] for number in range(30)]
    with ThreadPoolExecutor(30) as pool:
        attached = list(pool.map(lambda grant_id: attach(reachable, grant_id), mine))
        assert len({one["ticket"] for one in attached}) == 30
        with contextlib.ExitStack() as open_now:
            machines = [open_now.enter_context(Elsewhere(one)) for one in attached]
            assert all(pool.map(lambda machine: echoes(machine.open()), machines))
            assert len([one for one in reachable.client.remote()["attachments"] if not one["ending"]]) == 30
    until(lambda: not reachable.client.grants(), "all end")
