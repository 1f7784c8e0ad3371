"""Daemon, relay, sandbox and server of remote grants, killed at any moment: who notices, and what is left."""

import os
import signal
import socket
import threading

import pytest
from remote.elsewhere import Elsewhere, echoes
from remote.processes import relay, sandbox
from run.waiting import until

from gpushare.errors import FailedError, RefusedError

GIB = 1 << 30


def grant(node, **more):
    return node.client.create(memory=GIB, time=100, **more)["id"]


def serves(node):
    return until(lambda: node.client.remote()["relay"], "the relay serves")


def attach(node, grant_id):
    serves(node)
    return node.client.attach(grant_id, carrier="echo")


def endings(node, *attachments):
    def find():
        shown = {one["id"]: one["ending"] for one in node.client.remote()["attachments"]}
        found = [shown.get(one["id"]) for one in attachments]
        return found if all(found) else None

    return until(find, "the attachments have ended")


def test_a_killed_daemon_is_not_noticed(reachable):
    client, mine = reachable.client, grant(reachable)
    attached = attach(reachable, mine)
    before = relay(reachable)
    with Elsewhere(attached) as machine:
        connection = machine.open()
        assert echoes(connection)
        reachable.kill()
        assert echoes(connection) and echoes(machine.open())
        reachable.start()
        assert echoes(connection)
        assert serves(reachable)["cert_sha256"] == attached["relay"]["cert_sha256"]
        [one] = client.grant(mine)["attachments"]
        assert (one["id"], one["ending"], relay(reachable)) == (attached["id"], "", before)
        second = client.attach(mine, carrier="echo")  # the same server
        with Elsewhere(second) as other:
            assert echoes(other.open())
        assert endings(reachable, second) == ["detached"]
        client.detach(mine, attached["id"])
        assert machine.end().end == "detached"
    assert endings(reachable, attached) == ["detached"]
    until(lambda: client.grant(mine)["phase"] == "released", "the grant ends")


def test_what_ended_while_no_daemon_ran_is_recorded(reachable):
    client, mine, other = reachable.client, grant(reachable), grant(reachable, keep=True)
    first, second = attach(reachable, mine), attach(reachable, other)
    with Elsewhere(first) as one, Elsewhere(second):
        assert echoes(one.open(), 1 << 16)
        reachable.kill()
    reachable.start()
    assert endings(reachable, first, second) == ["detached", "detached"]
    [over] = client.remote(grant=mine)["attachments"]
    assert over["bytes_in"] == 1 << 16
    until(lambda: client.grant(mine)["ended_ns"], "the grant ends")
    until(lambda: client.grant(other)["phase"] == "bound", "the kept one stays")
    attach(reachable, other)


def test_a_relay_that_died_while_no_daemon_ran(reachable):
    mine = grant(reachable)
    attached = attach(reachable, mine)
    reachable.kill()
    os.kill(relay(reachable), signal.SIGKILL)
    reachable.start()
    assert endings(reachable, attached) == ["relay"]
    until(lambda: reachable.client.grant(mine)["ended_ns"], "the grant ends")
    with Elsewhere(attach(reachable, grant(reachable))) as machine:
        assert echoes(machine.open())


def test_a_killed_relay_ends_attachments_and_is_started_again(reachable):
    client, mine = reachable.client, grant(reachable)
    attached = attach(reachable, mine)
    watch = client.watch(timeout=20)
    next(watch)
    with Elsewhere(attached) as machine:
        connection = machine.open()
        os.kill(relay(reachable), signal.SIGKILL)
        assert connection.recv(1) == b""
    event = next(event for event in watch if event["name"] == "RemoteLost")
    assert (event["object"]["id"], event["object"]["ending"]) == (attached["id"], "relay")
    until(lambda: client.grant(mine)["ended_ns"], "the grant ends")
    with Elsewhere(attach(reachable, grant(reachable))) as machine:
        assert echoes(machine.open())


def test_a_killed_sandbox_takes_no_server_along(reachable):
    mine = grant(reachable)
    with Elsewhere(attach(reachable, mine)) as machine:
        os.kill(sandbox(reachable), signal.SIGKILL)
        assert echoes(machine.open())
        with Elsewhere(attach(reachable, grant(reachable))) as other:
            assert echoes(other.open()) and echoes(machine.open())


def attaching(node, mine, carrier):
    """A thread that attaches, and the list that gets the refusal."""
    said = []

    def attach_it():
        with pytest.raises(FailedError) as caught:
            node.client.attach(mine, carrier=carrier)
        said.append(str(caught.value))

    thread = threading.Thread(target=attach_it)
    thread.start()
    return thread, said


def is_as_before(node, mine):
    """The grant is reserved, and can be attached."""
    until(lambda: node.client.grant(mine)["phase"] == "reserved", "it is reserved again")
    assert not node.client.grant(mine)["attachments"]
    with Elsewhere(attach(node, mine)) as machine:
        assert echoes(machine.open())


def test_a_sandbox_that_dies_while_it_starts_a_server(reachable):
    mine = grant(reachable)
    thread, said = attaching(reachable, mine, "silent")
    until(lambda: reachable.client.grant(mine)["phase"] == "active", "its server is being started")
    os.kill(sandbox(reachable), signal.SIGKILL)
    thread.join(30)
    assert "ended: try again" in said[0]
    is_as_before(reachable, mine)


@pytest.mark.slow
def test_a_sandbox_that_hangs_is_killed(reachable):
    with reachable.started_with("from gpushare.daemon.remote import sandbox", "sandbox.START_S = 1"):
        serves(reachable)
        before, mine = until(lambda: sandbox(reachable), "it is started"), grant(reachable)
        os.kill(before, signal.SIGSTOP)
        thread, said = attaching(reachable, mine, "echo")
        thread.join(30)
        assert "hangs" in said[0]
        until(lambda: sandbox(reachable) not in (None, before), "another is started")
        reachable.client.release(mine)


@pytest.mark.slow
def test_a_relay_that_hangs_is_killed(reachable):
    with reachable.started_with("from gpushare.daemon.remote import living", "living._WORD_S = 1"):
        serves(reachable)
        before, mine = relay(reachable), grant(reachable)
        os.kill(before, signal.SIGSTOP)
        thread, said = attaching(reachable, mine, "echo")
        thread.join(30)
        assert "hangs" in said[0]
        until(lambda: relay(reachable) not in (None, before), "another is started")
        is_as_before(reachable, mine)
        until(lambda: not reachable.client.grants(), "it ends")


@pytest.mark.slow
def test_a_daemon_that_is_stopped_leaves_those_who_use_it(reachable):
    attached = attach(reachable, grant(reachable))
    before = relay(reachable)
    with Elsewhere(attached) as machine:
        reachable.terminate()
        assert echoes(machine.open())
        reachable.start()
        assert serves(reachable) and relay(reachable) == before
        assert echoes(machine.open())
    assert endings(reachable, attached) == ["detached"]
    until(lambda: not reachable.client.grants(), "the grant ends")
    reachable.terminate()
    until(lambda: relay(reachable) is None, "a relay that nobody uses ends with the daemon")
    reachable.start()


@pytest.mark.promise("remote-is-off")
def test_nothing_listens_unless_it_is_asked_for(reachable):
    attached = attach(reachable, grant(reachable))
    with reachable.configured('listen = "127.0.0.1:0"', 'listen = ""'):
        until(lambda: relay(reachable) is None, "the relay is stopped")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", attached["relay"]["port"]))
        shown = reachable.client.remote()
        assert (shown["relay"], shown["carriers"], shown["attachments_max"]) == (None, [], 0)
        assert "set listen in [remote]" in shown["reason"]
        assert endings(reachable, attached) == ["relay"]
        with pytest.raises(RefusedError, match=r"set listen in \[remote\]"):
            reachable.client.attach(grant(reachable), carrier="echo")
        until(lambda: len(reachable.client.grants()) == 1, "the attached one has ended")
        reachable.client.release(reachable.client.grants()[0]["id"])


@pytest.mark.slow
def test_another_address_is_another_relay(reachable):
    attached = attach(reachable, grant(reachable))
    before = relay(reachable)
    with reachable.configured('listen = "127.0.0.1:0"', 'listen = "127.0.0.2:0"'):
        serves(reachable)
        assert relay(reachable) != before
        assert endings(reachable, attached) == ["relay"]
        with Elsewhere(reachable.client.attach(grant(reachable), carrier="echo"), "127.0.0.2") as machine:
            assert echoes(machine.open())


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(reachable):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with reachable.configured('listen = "127.0.0.1:0"', f'listen = "{address}"'):
            why = until(lambda: (shown := reachable.client.remote())["relay"] is None and shown["reason"], "it says so")
            until(lambda: "Address already in use" in reachable.client.remote()["reason"], f"it says why: {why}")
            taken.close()
            serves(reachable)
