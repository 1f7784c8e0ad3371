"""A thousand processes in one grant: all of them are recorded, and recording them does not delay the node."""

import os
import signal
from pathlib import Path

import pytest
from run import built
from run.waiting import until

from gpushare.binding.pages import LimitsPage, UsagePage

N = 1000


@pytest.fixture(scope="module")
def crowd():
    return built.program("crowd")


def slots(daemon, grant_id):
    own = daemon.layout.grants / grant_id / "self"
    with (
        LimitsPage.open(own / "limits", writable=False) as limits,
        UsagePage.open(own / "usage", writable=False) as usage,
    ):
        return sorted(slot.pid for slot in usage.live_slots(limits))


def test_a_thousand_join_and_go(daemon, client, crowd):
    before = client.call("GET", "/v1/grants")["rv"]
    # The shell keeps the grant alive while the processes exit.
    child = daemon.tenant("sh", "-c", f'"{crowd}" {N}; read line')
    taken, milliseconds, directory = child.stdout.readline().split()
    assert int(taken) == N
    assert int(milliseconds) < 30_000
    grant_id = Path(directory).parent.name
    pids = client.grant(grant_id)["processes"]
    assert len(pids) == N
    assert slots(daemon, grant_id) == pids

    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: client.grant(grant_id)["processes"] == [], "all are gone", 60)
    assert slots(daemon, grant_id) == []
    # Watchers get the last event, and are not flooded: the ring holds 4096 events of the whole node.
    last = []
    for event in client.watch(since=before, timeout=20):
        if event["kind"] == "grant" and event["object"]["id"] == grant_id:
            last.append(len(event["object"]["processes"]))
            if last[-1] == 0 and N in last:
                break
    print(len(last), "events", milliseconds, "ms")
    assert max(last) == N
    assert len(last) < N // 4, last


def test_who_is_notified_its_slot_is_in_the_ledger_whenever_the_daemon_is_killed(daemon, client, crowd):
    """The ledger is written before the reply, so no process that joined is lost."""
    child = daemon.tenant("sh", "-c", f'"{crowd}" 50; read line')
    taken, _, directory = child.stdout.readline().split()
    daemon.kill()
    daemon.start()
    grant_id = Path(directory).parent.name
    assert len(client.grant(grant_id)["processes"]) == int(taken) == 50
