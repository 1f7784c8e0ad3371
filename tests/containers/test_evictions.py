"""A container with memory on loan is notified when the owner wants it, and is ended if it allows that."""

import json

import pytest
from run.waiting import until

pytestmark = pytest.mark.xdist_group("machine")

LOAN = {"memory": "10GiB", "time": "0", "borrow-memory": "100%", "grace": "1", "reclaim": "kill"}
OWNER = {"memory": "8GiB", "time": "0", "tenant": "owner"}
WAITS = "trap 'echo told; cat /run/gpushare/self/eviction; exit 3' USR1; echo ready; while :; do sleep 0.02; done"


@pytest.fixture
def client(node):
    node.client.set_tenant("owner", {"memory": "12GiB"})
    yield node.client
    node.client.remove_tenant("owner")


def test_it_is_reported_by_a_file_and_its_signal(client, runc):
    with runc.start("/bin/sh", "-c", WAITS, annotations=LOAN | {"eviction-signal": "USR1"}) as borrower:
        assert borrower.stdout.readline() == "ready\n"
        refused = runc.run("/bin/true", annotations=OWNER)
        assert "asked to give it back within" in refused.stderr
        assert borrower.stdout.readline() == "told\n"
        assert json.loads(borrower.stdout.readline())["for_tenant"] == "owner"
        assert borrower.wait(20) == 3
    until(lambda: not client.grants(), "its grant ends")
    assert runc.run("/bin/true", annotations=OWNER).returncode == 0


def test_it_is_ended_after_its_grace(client, runc):
    with runc.start("/bin/sh", "-c", "echo ready; sleep 60", annotations=LOAN) as borrower:
        assert borrower.stdout.readline() == "ready\n"
        grant = client.create(tenant="owner", memory="8GiB", time=0, wait_seconds=30)
        assert borrower.wait(20) == 137
    client.release(grant["id"])
