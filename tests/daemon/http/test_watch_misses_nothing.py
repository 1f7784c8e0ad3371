"""The watch stream: no event is missed or repeated, and lost history is reported."""

import itertools
import json

import pytest

from gpushare.daemon.state.watch import RING, Watch
from gpushare.errors import GoneError, UsageError


def take(stream, count):
    return list(itertools.islice(stream, count))


def test_changes_of_a_grant_in_order(client):
    stream = client.watch(timeout=20)
    [bookmark] = take(stream, 1)
    assert bookmark["type"] == "bookmark"
    grant = client.create(memory="1GiB", time="10%")
    client.resize(grant["id"], time="20%")
    client.release(grant["id"])
    events = take(stream, 3)
    assert [(event["type"], event["object"]["phase"]) for event in events] == [
        ("added", "reserved"),
        ("changed", "reserved"),
        ("removed", "released"),
    ]
    assert [event["rv"] for event in events] == [bookmark["rv"] + step for step in (1, 2, 3)]
    assert events[1]["object"]["devices"][0]["time_milli"] == 200
    # A later reader gets the same from the same start.
    again = take(client.watch(since=bookmark["rv"], timeout=20), 4)[1:]
    assert again == events


def test_a_list_and_a_watch_fit_together(client):
    grant = client.create(memory="1GiB", time="10%")
    listed = client.call("GET", "/v1/grants")
    client.release(grant["id"])
    events = take(client.watch(since=listed["rv"], timeout=20), 2)
    assert events[1]["object"]["id"] == grant["id"]
    assert events[1]["object"]["phase"] == "released"


def test_history_of_another_run_is_gone(daemon):
    client = daemon.client
    since = client.call("GET", "/v1/grants")["rv"]
    daemon.kill()
    daemon.start()
    with pytest.raises(UsageError, match="list again"):
        next(client.watch(since=since, timeout=20))
    with pytest.raises(UsageError, match="list again"):
        next(client.watch(since=2**53, timeout=20))


def test_stream_ends_with_the_daemon(daemon):
    stream = daemon.client.watch(timeout=20)
    next(stream)
    assert daemon.terminate() == 0
    assert list(stream) == []


def test_tenants_are_watched(client):
    stream = client.watch(timeout=20)
    next(stream)
    client.set_tenant("research", {"time": "75%"})
    client.remove_tenant("research")
    assert [(event["kind"], event["type"]) for event in take(stream, 2)] == [("tenant", "added"), ("tenant", "removed")]


async def _ring() -> None:
    watch = Watch(3)
    first = watch.rv
    for number in range(RING + 10):
        watch.publish("grant", "changed", lambda rv, number=number: {"number": number})
    with pytest.raises(GoneError):
        watch.check(first)
    watch.check(watch.rv)
    watch.check(first + 10)
    seen = []
    async for line in watch.lines(first + 10):
        event = json.loads(line)
        if event["type"] != "bookmark":
            seen.append(event["object"]["number"])
        if len(seen) == RING:
            break
    assert seen == list(range(10, RING + 10))


def test_ring_keeps_the_last_events():
    import asyncio

    asyncio.run(_ring())
