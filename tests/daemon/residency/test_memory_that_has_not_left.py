"""A grant whose processes say that their memory has left, and keep it: the driver's count tells."""

import os

import pytest
from run.waiting import until

GIB = 1 << 30


@pytest.mark.promise("kept-memory-is-found")
@pytest.mark.skipif(os.geteuid() != 0, reason="the daemon has to make cgroups")
def test_who_keeps_what_it_says_has_left_is_found_and_stopped(daemon, client, notebook):
    one = notebook(gpu="0")
    assert one(f"take {7 * GIB}") == ["took", "0"]
    one.holds().suspended()
    [found] = until(lambda: daemon.findings(grant=one.id, kind="kept-memory", act="frozen"), "it is found")
    assert found["memory_bytes"] >= 7 * GIB
    assert "it says that they have left" in one.shown["notice"]
    assert "is said to have left" in daemon.cli_here("events", "--findings").stdout
    # Nothing of it is another's any more once it is counted as there again.
    client.resume(one.id)
    until(lambda: daemon.findings(grant=one.id, kind="kept-memory")[0]["outcome"] == "left", "it may have it again")
    one.comes_to("resident")


def test_who_is_away_with_what_it_says_is_not(daemon, client, notebook):
    one = notebook(gpu="0")
    one(f"take {GIB // 4}")
    one.holds(fixed=GIB // 2, movable=6 * GIB).suspended()
    looks = client.call("GET", "/v1/findings")["total"]
    other, grant = daemon.join(memory="6GiB", gpu="0", borrow_memory="6GiB")
    until(lambda: client.grant(grant)["processes"], "another one runs")
    one("wants")
    client.release(grant)
    one.comes_to("resident")
    assert client.call("GET", "/v1/findings")["total"] == looks
    assert one.shown["devices"][0]["memory_uncharged_bytes"] == 0
    other.wait(20)
