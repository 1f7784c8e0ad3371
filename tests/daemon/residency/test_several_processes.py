"""Grants whose memory several processes have, at once or one after the other. They play the interposer's part."""

import os
import signal

import pytest
from run.waiting import until

from gpushare._native import lib

GIB = 1 << 30


@pytest.fixture
def kept(client):
    return client.create(memory=8 * GIB, time=0, device=0, idle_memory="lend", keep=True)["id"]


def hosted(client, grant):
    return client.grant(grant)["devices"][0]["memory_hosted_bytes"]


def test_it_is_away_once_all_of_them_are(client, notebook, kept):
    first, second = notebook(grant=kept), notebook(grant=kept)
    first(f"hold {GIB} {3 * GIB}")
    second(f"hold 0 {2 * GIB}")
    idle = notebook(grant=kept)
    client.suspend(kept)
    first("carry")
    assert first.where == "suspending"
    assert hosted(client, kept) == 3 * GIB
    second("carry")
    first.comes_to("suspended")
    assert client.devices()[0]["guaranteed"]["memory"] == GIB, "what cannot be moved"
    assert idle("wants") == ["told", "0"], "one that has nothing there may want some"
    first.comes_to("resuming")
    first("carry")
    assert first.where == "resuming"
    second("carry")
    first.comes_to("resident")


def test_one_that_cannot_brings_all_back(client, notebook, kept):
    first, second = notebook(grant=kept), notebook(grant=kept)
    for one in (first, second):
        one(f"hold 0 {3 * GIB}")
    client.suspend(kept)
    first("carry")
    second(f"refuse {lib.GS_MOVE_WORKING}")
    first.comes_to("resuming")
    first("carry")
    second("carry")
    assert f"process {second.process.pid} still computes" in first.comes_to("resident")["residency"]["why"]


def test_one_that_ends_is_waited_for_no_more(client, notebook, kept):
    first, second = notebook(grant=kept), notebook(grant=kept)
    for one in (first, second):
        one(f"hold 0 {3 * GIB}")
    client.suspend(kept)
    first("carry")
    os.kill(second.process.pid, signal.SIGKILL)
    first.comes_to("suspended")
    assert client.devices()[0]["guaranteed"]["memory"] == 0
    client.resume(kept)
    first("carry")
    first.comes_to("resident")


def test_what_they_say_together_is_at_most_their_limit(client, notebook, kept):
    """Else a grant whose processes lie has a negative room, which is others'."""
    other = client.create(memory=2 * GIB, time=0, device=0)["id"]
    liars = [notebook(grant=kept) for _ in range(3)]
    for one in liars:
        one(f"hold 0 {7 * GIB}")
    client.suspend(kept)
    assert client.node()["host_pool"]["reserved"] == 8 * GIB
    for one in liars:
        one("carry")
    liars[0].comes_to("suspended")
    assert client.devices()[0]["guaranteed"]["memory"] == 2 * GIB
    assert hosted(client, kept) == 8 * GIB
    client.release(other)


def test_one_that_refuses_late_brings_all_back(client, notebook, kept):
    """It has nothing to move, so nobody waited for it; but it works, and could not go on."""
    first, second = notebook(grant=kept), notebook(grant=kept)
    first(f"hold 0 {3 * GIB}")
    second(f"hold {GIB} 0")
    client.suspend(kept)
    first("carry")
    first.comes_to("suspended")
    second(f"refuse {lib.GS_MOVE_WORKING}")
    first.comes_to("resuming")
    first("follow")
    first.comes_to("resident")


def test_a_kept_grant_whose_processes_have_ended_waits_for_its_room(daemon, client, notebook, kept):
    rest = client.create(memory=8 * GIB, time=0, device=0)["id"]
    first = notebook(grant=kept)
    first(f"hold 0 {6 * GIB}")
    first.suspended()
    lent = client.create(memory=6 * GIB, time=0, device=0, borrow_memory=True, grace_seconds=30)["id"]
    os.kill(first.process.pid, signal.SIGKILL)
    until(lambda: first.shown["phase"] == "bound", "nothing runs in it")
    until(lambda: first.shown["residency"]["wanted"], "it is to have its room again")
    second = notebook(grant=kept)
    assert int(second("word")[1]) & 3 == lib.GS_HOSTED, "what it allocates has to wait"
    client.release(lent)
    second("follow")
    second.comes_to("resident")
    client.release(rest)


def test_their_words_can_be_looked_at(daemon, client, notebook, kept):
    one = notebook(grant=kept)
    one(f"hold {GIB} {3 * GIB}")
    client.suspend(kept)
    one("carry")
    one.comes_to("suspended")
    one("wants")
    found = client.debug(kept)
    [lease], [process] = found["leases"], found["processes"]
    assert (lease["residency"], lease["residency_epoch"]) == ("resident", 2)
    [words] = process["devices"]
    assert (words["movable_bytes"], words["hosted_bytes"], words["residency_epoch"]) == (3 * GIB, 3 * GIB, 1)
    assert words["wants_memory"]
    shown = daemon.cli_here("grant", "debug", kept).stdout
    assert "memory resident since 2" in shown
    assert "3GiB movable, 3GiB of that hosted (epoch 1, move 0), wants it back" in shown
    one("carry")
    one.comes_to("resident")
