"""Requests that are answered with `making_room`: who repeats them, at what pace, and what those are told who do not."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from run.makingroom import Room
from run.running import Daemon
from run.waiting import until

from gpushare.aio import AsyncClient
from gpushare.client import transport
from gpushare.errors import MakingRoomError

GIB = 1 << 30
SHARE = {"memory": GIB, "time": 100}
ASKS = {"gpushare.dev/memory": "512MiB", "gpushare.dev/time": "2%"}
ESTIMATE = 0.15
ROOT_ANSWERS = 64
"""Answers to root in the making at once (gpushare/daemon/http/reception.py)."""
WAITING_MAX = 16
"""Containers that wait at once (gpushare/daemon/engines/containers.py)."""
READERS = 4
"""Configurations that the daemon reads at once (gpushare/daemon/host/readers.py)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[tuple[Daemon, Room]]:
    room = Room(tmp_path_factory.mktemp("room"))
    directory = tmp_path_factory.mktemp("d")
    daemon = Daemon(directory).patch(room.patch).start()
    yield daemon, room
    daemon.stop()


@pytest.fixture
def daemon(made) -> Daemon:
    return made[0]


@pytest.fixture
def room(made) -> Iterator[Room]:
    daemon, room = made
    yield room
    room.is_there()
    for grant in daemon.client.grants():
        daemon.client.release(grant["id"])


def edit(daemon: Daemon, bundle: Path, args: Sequence[str] = ("true",), **more: Any) -> Any:
    config = {"annotations": ASKS, "process": {"args": args}, "root": {"path": "/nonexistent"}}
    return daemon.client.call("POST", "/v1/oci/edit", {"bundle": str(bundle), "config": config, **more})


def is_one(room: Room) -> bool:
    """Whether all requests name the same asker."""
    return len({one["asker"] for one in room.asked}) == 1


def test_who_does_not_wait_is_told_when_to_ask_again(daemon, room):
    room.is_made_after(1, ESTIMATE)
    with pytest.raises(MakingRoomError, match=r"ask again in about 0\.15 s") as refused:
        daemon.client.create(**SHARE)
    assert refused.value.estimate_seconds == ESTIMATE
    assert daemon.client.create(**SHARE)["phase"] == "reserved"


@pytest.mark.parametrize("awaited", [False, True])
def test_a_client_repeats_its_request_at_the_pace_of_the_estimate(daemon, room, awaited):
    async def create() -> Any:
        async with AsyncClient(daemon.client.path) as client:
            return await client.create(wait_seconds=60, **SHARE)

    room.is_made_after(3, ESTIMATE)
    grant = asyncio.run(create()) if awaited else daemon.client.create(wait_seconds=60, **SHARE)
    assert grant["phase"] == "reserved"
    assert len(room.pauses) == 3 and min(room.pauses) >= ESTIMATE
    assert is_one(room) and room.asked[0]["asker"], "equal requests of others are told from it"


def test_a_request_with_a_key_is_known_by_that(daemon, room):
    """So it is the same one when another process repeats it, as kubelet's calls do."""
    room.is_made_after(1)
    daemon.client.create(wait_seconds=60, key="k", **SHARE)
    assert [(one["asker"], one["key"]) for one in room.asked] == [("", "k")] * 2


def test_the_time_to_wait_is_kept(daemon, room):
    room.is_made_after(1000, 60.0)
    began = time.monotonic()
    with pytest.raises(MakingRoomError):
        daemon.client.create(wait_seconds=0.3, **SHARE)
    assert time.monotonic() - began >= 0.3
    assert len(room.asked) == 2, "the estimate is longer: it is asked once more, at the end"


def test_commands_wait(daemon, room):
    share = ("--memory", "1GiB", "--time", "10%")
    for verb, rest in ((("run",), ("--", "true")), (("grant", "create"), ()), (("gang", "prepare", "job-1"), ())):
        room.is_made_after(2)
        done = daemon.cli(*verb, *share, *rest)
        assert (done.returncode, len(room.asked)) == (0, 3), (verb, done.stderr)
        assert is_one(room)
    for verb, rest, status in ((("run",), ("--", "true"), 125), (("gang", "prepare", "job-0"), (), 3)):
        room.is_made_after(1)
        refused = daemon.cli(*verb, *share, "--wait", "0", *rest)
        assert refused.returncode == status
        assert "ask again in about 0.02 s" in refused.stderr


def test_a_part_of_a_gang_keeps_the_estimate(daemon, room):
    """Also where the refusal says which of its grants it is."""
    room.is_made_after(1, ESTIMATE)
    with pytest.raises(MakingRoomError, match=r"grants\[0\]: room is made") as refused:
        daemon.client.prepare("job-2", [SHARE, SHARE])
    assert refused.value.estimate_seconds == ESTIMATE
    part = daemon.client.prepare("job-2", [SHARE, SHARE], wait_seconds=60)
    assert part["phase"] == "prepared"


def test_equal_parts_of_two_gangs_are_told_apart(daemon, room):
    room.is_made_after(2)
    for gang in ("job-3", "job-4"):
        with pytest.raises(MakingRoomError):
            daemon.client.prepare(gang, [SHARE])
        daemon.client.abort(gang)
    assert len({one["asker"] for one in room.asked}) == 2


@pytest.mark.parametrize("adapter", ["htcondor", "ray"])
def test_jobs_that_start_in_their_share_wait(daemon, room, adapter):
    device = daemon.client.devices()[0]["id"]
    words = {"htcondor": ("--slots", "4"), "ray": ("--memory", "1GiB", "--time", "10%")}[adapter]
    room.is_made_after(3, ESTIMATE)
    job = daemon.cli("adapter", adapter, *words, "--", "true", env={**daemon.env, "_CONDOR_AssignedGPUs": device})
    assert job.returncode == 0, job.stderr
    assert len(room.pauses) == 3 and min(room.pauses) >= ESTIMATE
    assert is_one(room)


# Containers.


def test_the_start_of_a_container_waits(daemon, room, tmp_path):
    room.is_made_after(3, ESTIMATE)
    assert edit(daemon, tmp_path)["grant"] == daemon.client.grants()[0]["id"]
    assert len(room.pauses) == 3 and min(room.pauses) >= ESTIMATE


def test_the_start_is_refused_at_once_where_room_comes_too_late_for_its_engine(daemon, room, tmp_path):
    room.is_made_after(1, 30.0)
    again = "the container is not started: start it again in about 30.0 s, when there is room"
    with pytest.raises(MakingRoomError, match=again) as refused:
        edit(daemon, tmp_path)
    assert refused.value.estimate_seconds == 30.0
    assert daemon.client.grants() == []
    assert edit(daemon, tmp_path)["grant"], "its engine starts it again"


def test_an_engine_says_how_long_it_waits(daemon, room, tmp_path):
    room.is_made_after(1, ESTIMATE)
    with pytest.raises(MakingRoomError, match=r"start it again in about 0\.[12] s"):
        edit(daemon, tmp_path, wait_seconds=0.1)
    assert len(room.asked) == 1


def test_containers_that_wait_do_not_delay_others(daemon, room, tmp_path):
    """They hold no process that reads configurations: more wait than there are of those."""
    waiting = 2 * READERS
    room.is_made_after(10**6, 0.05)
    with ThreadPoolExecutor(waiting) as pool:
        starts = [pool.submit(edit, daemon, tmp_path, wait_seconds=60) for _ in range(waiting)]
        until(lambda: len(room.asked) >= 2 * waiting, "all of them wait")
        config = {"process": {"args": ["true"]}, "root": {"path": "/nonexistent"}}
        other = daemon.client.call("POST", "/v1/oci/edit", {"bundle": str(tmp_path), "config": config})
        assert other["grant"] is None
        assert not any(start.done() for start in starts)
        room.is_there()
        assert len({start.result()["grant"] for start in starts}) == waiting


def test_containers_that_wait_leave_answers_to_others(daemon, room, tmp_path):
    """Root's answers are bounded, too: of more starts than that, most are told to come back."""
    starts = ROOT_ANSWERS + 16
    room.is_made_after(10**6, 0.05, takes=0.01)  # those that ask again are never all asleep at once
    with ThreadPoolExecutor(starts) as pool:
        tried = [pool.submit(edit, daemon, tmp_path, wait_seconds=60) for _ in range(starts)]
        until(lambda: sum(one.done() for one in tried) >= starts - WAITING_MAX, "others are refused", 45)
        assert daemon.client.version()
        room.is_there()
    refused = [one.exception() for one in tried if one.exception() is not None]
    assert all("start it again in about 0.1 s" in str(one) for one in refused)
    assert len(refused) == starts - WAITING_MAX, "those that ask again keep their place"
    assert len(daemon.client.grants()) == WAITING_MAX


def test_a_config_that_others_wait_for_does_not_wait(daemon, room, tmp_path):
    """The daemon has one large body at a time."""
    room.is_made_after(1, 0.05)
    with pytest.raises(MakingRoomError, match="the container is not started"):
        edit(daemon, tmp_path, args=["x" * 1024] * 1100)
    assert len(room.asked) == 1


def test_a_container_that_nobody_waits_for_any_more_gets_nothing(daemon, room, tmp_path):
    room.is_made_after(10**6, 0.05)
    config = '{"annotations":{"gpushare.dev/memory":"1GiB","gpushare.dev/time":"10%"}}'
    body = f'{{"bundle":"{tmp_path}","config":{config},"wait_seconds":60}}'.encode()
    with pytest.raises((OSError, HTTPException)):
        transport.request(daemon.client.path, "POST", "/v1/oci/edit", body, 0.3)
    # Far longer than from one request to the next.
    until(lambda: room.asked and time.monotonic() - room.asked[-1]["at"] > 1.0, "nobody asks for it any more")
    room.is_there()
    assert daemon.client.grants() == []
