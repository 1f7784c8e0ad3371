"""The event loop's latency, and the watchdog signal that systemd waits for."""

import os
import re
import signal
import socket

import pytest
from run.waiting import until

from gpushare.daemon.host.pulse import BUCKETS, Latency


def test_longest_is_that_of_the_last_minute():
    latency = Latency()
    latency.add(0.5, 1.0)
    for second in range(2, 60):
        latency.add(0.002, float(second))
    assert latency.longest(60.0) == 0.5
    for second in range(60, 130):
        latency.add(0.002, float(second))
    assert latency.longest(130.0) == 0.002
    assert latency.longest(1000.0) == 0.0
    assert (latency.count, sum(latency.below)) == (129, 129)
    latency.add(BUCKETS[-1] + 1, 131.0)
    assert (latency.count, sum(latency.below)) == (130, 129)


def test_latency_is_a_metric(client):
    text = client.text("/metrics")
    rows = re.findall(r'gpushare_loop_latency_seconds_bucket\{le="([^"]+)"\} (\d+)', text)
    counts = [int(count) for _, count in rows]
    assert rows[-1][0] == "+Inf"
    assert counts == sorted(counts)
    assert f"gpushare_loop_latency_seconds_count {counts[-1]}" in text
    assert counts[-1] > 0
    assert client.node()["loop_latency_max_ns"] > 0


def test_a_turn_that_takes_long_is_seen(make_daemon):
    held = "lambda: (asyncio.get_running_loop().call_later(0.2, time.sleep, 0.7), beat())[1]"
    change = f"import asyncio, time; beat = gpushare.daemon.host.pulse.beat; gpushare.daemon.host.pulse.beat = {held}"
    client = make_daemon().patch("import gpushare.daemon.host.pulse", change).start().client
    until(lambda: client.node()["loop_latency_max_ns"] >= 700_000_000, "seen")
    below = dict(re.findall(r'gpushare_loop_latency_seconds_bucket\{le="([^"]+)"\} (\d+)', client.text("/metrics")))
    assert int(below["+Inf"]) > int(below["0.25"])


@pytest.fixture
def notified(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(20)
        yield bound


@pytest.mark.promise("hung-loop-restarted")
def test_a_loop_that_turns_reports_it_and_one_that_hangs_does_not(make_daemon, notified):
    daemon = make_daemon()
    daemon.env |= {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "200000"}
    daemon.env.pop("WATCHDOG_PID", None)
    daemon.start()
    assert notified.recv(64) == b"READY=1"
    for _ in range(3):
        assert notified.recv(64) == b"WATCHDOG=1"
    os.kill(daemon.process.pid, signal.SIGSTOP)
    notified.settimeout(1)
    with pytest.raises(TimeoutError):
        while True:
            notified.recv(64)
    os.kill(daemon.process.pid, signal.SIGCONT)
    notified.settimeout(20)
    assert notified.recv(64) == b"WATCHDOG=1"
    daemon.terminate()
    while (answer := notified.recv(64)) == b"WATCHDOG=1":
        pass
    assert answer == b"STOPPING=1"


def test_a_watchdog_of_another_process_is_not_fed(make_daemon, notified):
    daemon = make_daemon()
    daemon.env |= {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    daemon.start()
    assert notified.recv(64) == b"READY=1"
    daemon.terminate()
    assert notified.recv(64) == b"STOPPING=1"


def test_a_device_is_idle_from_the_start(make_daemon):
    client = make_daemon().start().client
    first = client.devices()[0]
    assert first["idle_ns"] == first["wall_ns"] > 0
    grant = client.create(memory="1GiB", time="10%", device=0)
    client.bind(grant["id"], "container")
    second = client.devices()[0]
    assert second["idle_ns"] > first["idle_ns"]
    assert second["wall_ns"] == second["idle_ns"] + second["leased_ns"] + second["switch_ns"]
    client.release(grant["id"])
    assert client.devices()[0]["idle_ns"] > second["idle_ns"]
