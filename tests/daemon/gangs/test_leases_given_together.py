"""How a job gets leases of several devices: real programs on two simulated devices, checked against the arbiter's
record."""

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from run.running import SPIN
from run.waiting import until

LEASES = 10
"""Leases of each grant on each device that a test waits for: some hundred milliseconds of turns, more on a busy
machine."""


def spinning(*devices: int) -> tuple[str, ...]:
    """The command of a job with a rank on each device, as processes of one grant."""
    ranks = [f"{SPIN} --device {device} --kernel-ns 1000000 --seconds 300 &" for device in devices]
    return ("sh", "-c", " ".join([*ranks, "wait"]))


class Record:
    """The arbiter's events since the creation of this object."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._after = client.call("GET", "/v1/events")["after"]
        self.events: list[Any] = []

    def read(self) -> "Record":
        found = self._client.call("GET", f"/v1/events?after={self._after}")
        self._after = found["after"]
        self.events += found["events"]
        return self

    def until_leased(self, *places: tuple[str, int]) -> "Record":
        def enough() -> bool:
            self.read()
            return all(len(self.instants("lease", *place)) >= LEASES for place in places)

        until(enough, f"{LEASES} leases of each", 60)
        return self

    def instants(self, kind: str, grant: str, device: int) -> list[int]:
        return [e["t_ns"] for e in self.events if (e["kind"], e["grant"], e["device"]) == (kind, grant, device)]


def grant_of(client: Any, child: "subprocess.Popen[str]") -> str:
    return until(lambda: next((g["id"] for g in client.grants() if g["pid"] == child.pid), None), "it has a grant", 20)


def pair(daemon: Any, **options: str) -> list[str]:
    """Two jobs that always have work on both devices."""
    jobs = [daemon.tenant(*spinning(0, 1), time="50%", devices="2", **options) for _ in range(2)]
    return [grant_of(daemon.client, job) for job in jobs]


@pytest.fixture(autouse=True)
def ended(client: Any) -> Iterator[None]:
    """Ranks are background processes of their shell, so they end with their grants."""
    yield
    for grant in client.grants():
        client.release(grant["id"])


@pytest.fixture
def restarted(daemon: Any) -> Callable[[], None]:
    def restart() -> None:
        daemon.kill()
        daemon.start()

    return restart


def test_a_grant_has_leases_on_all_its_devices_at_one_instant(daemon, client, restarted):
    jobs = pair(daemon)
    for again in (False, True):
        if again:
            restarted()
        record = Record(client).until_leased(*((job, device) for job in jobs for device in (0, 1)))
        for job in jobs:
            for kind in ("lease", "revoke"):
                assert record.instants(kind, job, 0) == record.instants(kind, job, 1)
    for job in jobs:
        until(lambda job=job: min(device["share_got_milli"] for device in client.grant(job)["devices"]) > 300)


def test_independent_leases_are_of_each_device_by_itself(daemon, client, restarted):
    """The job keeps the device on which it has no rival."""
    job = grant_of(client, daemon.tenant(*spinning(0, 1), time="50%", devices="2", turns="independent"))
    rival = grant_of(client, daemon.tenant(*spinning(0), time="50%", gpu="1"))
    for again in (False, True):
        if again:
            restarted()
        record = Record(client).until_leased((job, 1), (rival, 1))
        assert len(record.instants("revoke", job, 1)) >= LEASES - 1
        assert record.instants("revoke", job, 0) == []


def test_a_grant_with_peers_elsewhere_keeps_nobody_waiting(daemon, client, restarted):
    """It shares the device with two grants that take turns; their times add up to the whole device."""
    part = grant_of(client, daemon.tenant(*spinning(0), time="20%", gang="job:2", gpu="0"))
    others = [grant_of(client, daemon.tenant(*spinning(0), time="40%", gpu="0")) for _ in range(2)]
    for again in (False, True):
        if again:
            restarted()
        record = Record(client).until_leased(*((other, 0) for other in others))
        taken_for = {e["other"] for e in record.events if e["kind"] == "revoke" and e["grant"] in others}
        assert part not in taken_for
        assert taken_for & set(others)
        # soon after each of its leases, another grant is in the record
        for t in record.instants("lease", part, 0)[:-1]:
            assert any(e["t_ns"] <= t + 1_000_000_000 for e in record.events if e["grant"] in others)


def test_a_jobs_leases_end_with_receipts_on_each_device(daemon, client):
    jobs = pair(daemon)
    record = Record(client).until_leased(*((job, device) for job in jobs for device in (0, 1)))
    seen = {"taken": 0, "drained": 0}
    open_: dict[tuple[str, int], object] = {}
    for e in record.events:
        place = (e["grant"], e["device"])
        if e["kind"] == "revoke" and e["rule"] not in {"idle", "sleeping", "gone"}:
            assert place not in open_
            open_[place] = e
            seen["taken"] += 1
            assert e["other"] in {None, *jobs} - {e["grant"]}
        elif e["kind"] == "drained" and place in open_:
            taken = open_.pop(place)
            assert e["reclaim_ns"] == e["t_ns"] - taken["t_ns"]
            assert (e["rule"], e["other"]) == (taken["rule"], taken["other"])
            seen["drained"] += 1
        elif e["kind"] == "lease":
            assert e["wait_ns"] >= e["reclaim_ns"] or not e["wait_ns"]
    assert seen["drained"] >= LEASES
    assert len(open_) <= 4, "the last may drain yet"
