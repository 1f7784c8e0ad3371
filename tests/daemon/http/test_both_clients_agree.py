"""The two clients of the node API: the same verbs, the same answers, the same errors."""

import asyncio
import inspect
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run import doors
from run.waiting import until

from gpushare.aio import AsyncClient
from gpushare.client import Client, types
from gpushare.client.verbs import Course
from gpushare.errors import GoneError, NotFoundError, RefusedError, UnreachableError, UsageError

ASYNC_ONLY = {"close"}


class InTurn:
    """An AsyncClient with the interface of a Client: each call runs to its end."""

    def __init__(self, client):
        self._runner = asyncio.Runner()
        self._client, self._patient = client, []

    def __getattr__(self, name):
        verb = getattr(self._client, name)

        def call(*arguments, **options):
            found = verb(*arguments, **options)
            return self._each(found) if inspect.isasyncgen(found) else self._runner.run(found)

        return call

    def patient(self, seconds):
        client = InTurn(self._client.patient(seconds))
        self._patient.append(client)
        return client

    def _each(self, stream):
        while (value := self._runner.run(anext(stream, None))) is not None:
            yield value

    def end(self):
        for client in self._patient:
            client.end()
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(params=["sync", "async"])
def either(request):
    """Makes a client of one of the two kinds."""
    made = []

    def make(path):
        if request.param == "sync":
            return Client(path)
        made.append(InTurn(AsyncClient(path)))
        return made[-1]

    yield make
    for one in made:
        one.end()


def verbs(kind):
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")} - ASYNC_ONLY


def test_they_have_the_same_verbs_with_the_same_parameters():
    assert verbs(Client) == verbs(AsyncClient)
    for name in verbs(Client):
        one, other = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert one.parameters == other.parameters, name
        assert getattr(AsyncClient, name).__doc__, name


def test_the_life_of_a_grant(daemon, either):
    client = either(daemon.layout.socket)
    assert client.version() == daemon.client.version()
    assert [device["index"] for device in client.devices()] == [0, 1]
    assert client.plan(memory="1GiB", time="10%")["fits"]
    grant = client.create(memory="1GiB", time="10%", key="an ä", class_="inference", ttl_seconds=None)
    assert client.create(memory="1GiB", time="10%", key="an ä", class_="inference")["id"] == grant["id"]
    for answer, kind in ((grant, types.Grant), (client.devices()[0], types.Device), (client.node(), types.Node)):
        assert answer.keys() == kind.__required_keys__  # as editors are told
    assert client.bind(grant["id"], "container")["grant"] == grant["id"]
    assert client.resize(grant["id"], time="20%")["devices"][0]["time_milli"] == 200
    assert [one["id"] for one in client.grants()] == [grant["id"]]
    assert "gpushare_device_memory" in client.text("/metrics")
    assert client.set_sim_lost(1, lost=False) is None
    assert client.release(grant["id"])["phase"] == "released"
    assert grant["id"] in [one["id"] for one in client.grants(ended=True)]


def test_errors_are_the_daemons(daemon, either):
    client = either(daemon.layout.socket)
    with pytest.raises(NotFoundError, match="no grant"):
        client.grant("g-none/../x?y")
    with pytest.raises(RefusedError, match="does not fit"):
        client.create(memory="1000GiB", time="10%", wait_seconds=5)
    with pytest.raises(UsageError, match="body is not what"):
        client.create(memory=[], time=1)
    with pytest.raises(GoneError, match="list again"):
        next(client.watch(since=2**53, timeout=20))


def test_a_socket_that_nobody_serves(tmp_path, either):
    with pytest.raises(UnreachableError, match="no daemon at"):
        either(tmp_path / "none.sock").version()
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreachableError, match="is not a socket"):
        next(either(tmp_path / "file").watch())


def test_a_daemon_that_was_killed(fresh, either):
    client = either(fresh.layout.socket)
    stream = client.watch(timeout=20)
    assert next(stream)["type"] == "bookmark"
    fresh.kill()
    with pytest.raises(UnreachableError, match="went away"):
        next(stream)
    with pytest.raises(UnreachableError, match="no daemon answers"):
        client.version()
    fresh.start()
    assert client.version()


def test_a_patient_client_waits_for_a_daemon_that_was_here(fresh, tmp_path, either):
    with pytest.raises(UnreachableError, match=r"or name its socket \(--socket, GPUSHARE_SOCKET\)$"):
        either(tmp_path / "none.sock").patient(60).version()
    client = either(fresh.layout.socket)
    for end in (fresh.kill, fresh.terminate):
        end()
        with pytest.raises(UnreachableError, match=r"no daemon .*\(waited \d+\.\d s for it to be back\)"):
            client.patient(0.1).version()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.patient(60).version)
            fresh.start()
            assert waiting.result()


def test_who_follows_misses_nothing(fresh, either):
    client = either(fresh.layout.socket)
    before = fresh.client.create(memory="1GiB", time="10%", keep=True)
    events = client.follow()
    first = next(events)
    assert (first["type"], [grant["id"] for grant in first["object"]]) == ("listed", [before["id"]])
    second = fresh.client.create(memory="1GiB", time="10%", keep=True)
    event = next(events)
    assert (event["type"], event["object"]["id"], event["rv"]) == ("added", second["id"], first["rv"] + 1)
    fresh.kill()
    away = next(events)
    assert (away["type"], away["kind"]) == ("away", "node")
    assert "went away" in away["object"]["why"]
    fresh.start()
    third = fresh.client.create(memory="1GiB", time="10%", keep=True)
    again = next(events)
    known = {grant["id"] for grant in again["object"]}
    while third["id"] not in known:
        known.add(next(events)["object"]["id"])
    assert again["type"] == "listed"
    assert again["epoch"] > first["epoch"]
    assert {before["id"], second["id"]} <= known
    events.close()


def test_a_reader_that_was_slow_lists_anew_and_repeats_nothing():
    course = Course()
    assert course.failed(GoneError("events after 7 are gone")) is None
    assert course.failed(UnreachableError("no daemon"))["object"] == {"why": "no daemon"}
    assert course.failed(UnreachableError("no daemon")) is None
    assert course.listed({"rv": 1, "epoch": 2, "grants": []})["type"] == "listed"
    assert course.failed(UnreachableError("no daemon"))["type"] == "away"


def test_many_at_once_and_those_that_are_cancelled(daemon):
    pid = daemon.process.pid

    async def all_at_once():
        async with AsyncClient(daemon.layout.socket) as client:
            grants = await asyncio.gather(*(client.create(memory="300MiB", time="0%", key=f"k{n}") for n in range(40)))
            assert len({grant["id"] for grant in grants}) == 40
            watchers = [asyncio.create_task(client.watch().__anext__()) for _ in range(5)]
            assert {event["type"] for event in await asyncio.gather(*watchers)} == {"bookmark"}
            before = doors.descriptors(pid)
            waiting = [asyncio.create_task(last(client.watch())) for _ in range(5)]
            while len(os.listdir(f"/proc/{pid}/fd")) < before + 5:
                await asyncio.sleep(0.005)
            for one in waiting:
                one.cancel()
            assert all(isinstance(one, asyncio.CancelledError) for one in await gathered(waiting))
            until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before, "their connections are closed", 20)
            await asyncio.gather(*(client.release(grant["id"]) for grant in grants))

    async def last(stream):
        async for _ in stream:
            pass

    async def gathered(tasks):
        return await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_at_once())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_connect_is_notified(fresh):
    fresh.layout.socket.chmod(0o600)
    Path(fresh.state_dir).chmod(0o755)
    os.seteuid(65534)
    try:
        for client in (Client(fresh.layout.socket), InTurn(AsyncClient(fresh.layout.socket))):
            with pytest.raises(UnreachableError, match=r"permission denied: run as root"):
                client.version()
    finally:
        os.seteuid(0)
    client.end()
