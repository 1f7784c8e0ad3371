"""The wall clock is set while the daemon runs: records stay as they were, and loans end when they must."""

import mmap
import os
import struct
import time

import pytest
from run import built
from run.waiting import until

SECOND = 1_000_000_000
DAY = 86_400 * SECOND


@pytest.fixture(scope="module")
def shim():
    return built.program("wallclock.so")


@pytest.fixture
def clock(make_daemon, shim, tmp_path):
    """A daemon, and a function that sets its wall clock."""
    path = tmp_path / "offset"
    path.write_bytes(bytes(8))
    daemon = make_daemon()
    daemon.env |= {"LD_PRELOAD": os.fspath(shim), "WALLCLOCK": os.fspath(path)}
    (daemon.state_dir / "gpushare.toml").write_text("ledger_seconds = 1\n")
    daemon.options += ["--config", os.fspath(daemon.state_dir / "gpushare.toml")]
    daemon.patch()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8) as page:

        def put(ns):
            page[:] = struct.pack("<q", ns)

        yield daemon, put


def periods(daemon):
    return daemon.rows("SELECT from_ns, to_ns, granted_ns FROM periods WHERE tenant NOT LIKE '(%' ORDER BY id")


def test_periods_are_as_long_as_they_took(clock):
    daemon, put = clock
    began = time.monotonic_ns()
    daemon.start()
    daemon.join(time="50%")
    for offset in (DAY, -DAY, 0):
        seen = len(periods(daemon))
        until(lambda seen=seen: len(periods(daemon)) > seen, "a period", 20)
        put(offset)
    seen = len(periods(daemon))
    until(lambda: len(periods(daemon)) > seen, "a period", 20)
    rows = periods(daemon)
    took = time.monotonic_ns() - began
    walls = [to_ns - from_ns for from_ns, to_ns, _ in rows]
    assert min(walls) >= 0
    assert sum(walls) <= took
    assert all(abs(granted - wall / 2) <= 1 for wall, (_, _, granted) in zip(walls, rows, strict=True))
    # Proves that the clock was set.
    assert any(abs(to_ns - time.time_ns()) > DAY // 2 for _, to_ns, _ in rows)


@pytest.mark.parametrize("offset", [-DAY, DAY])
def test_a_reservation_lives_as_long_as_it_said(clock, offset):
    daemon, put = clock
    daemon.start()
    began = time.monotonic()
    grant = daemon.client.create(memory="1GiB", time="10%", ttl_seconds=1)
    put(offset)
    until(lambda: not daemon.client.grants(), "it expires", 30)
    assert time.monotonic() - began > 0.9
    assert "not bound within 1 s" in daemon.cli_here("grant", "show", grant["id"]).stdout


def test_nor_does_it_live_longer_when_the_clock_was_set_back_while_no_daemon_ran(clock):
    daemon, put = clock
    daemon.start()
    daemon.client.create(memory="1GiB", time="10%", ttl_seconds=1)
    daemon.kill()
    put(-DAY)
    daemon.start()
    until(lambda: not daemon.client.grants(), "it expires", 30)


@pytest.mark.parametrize("offset", [-DAY, DAY])
def test_nor_does_it_live_shorter_when_the_clock_was_set_while_no_daemon_ran(clock, offset):
    daemon, put = clock
    client = daemon.start().client
    asked = client.create(memory="1GiB", time="10%", ttl_seconds=600)
    client.create(memory="1GiB", time="10%", ttl_seconds=1)
    daemon.kill()
    put(offset)
    daemon.start()
    until(lambda: len(client.grants()) == 1, "the short one expires")
    [grant] = client.grants()
    assert grant["id"] == asked["id"]
    left = grant["expires_ns"] - (time.time_ns() + offset)
    assert 580 * SECOND < left <= 600 * SECOND


def test_a_runtime_that_hangs_holds_its_grant_no_longer_when_the_clock_was_set_back(clock):
    daemon, put = clock
    daemon.patch("from gpushare.daemon.grants import grants", "grants._ttl_ns = lambda request: 10**9")
    daemon.quicken(starter=0.05, starter_most=0.2).start()
    annotations = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "10%"}
    rootfs = daemon.state_dir / "rootfs"
    rootfs.mkdir()
    root = {"path": os.fspath(rootfs)}
    config = {"ociVersion": "1.0.2", "process": {"args": ["x"]}, "root": root, "annotations": annotations}
    # This process is the runtime, which goes on.
    daemon.client.call(
        "POST", "/v1/oci/edit", {"bundle": os.fspath(daemon.state_dir), "starts": True, "config": config}
    )
    put(-DAY)
    until(lambda: not daemon.client.grants(), "it expires", 10)


@pytest.mark.parametrize("offset", [-DAY, DAY])
def test_what_is_prepared_is_held_for_as_long_as_it_said(clock, offset):
    daemon, put = clock
    client = daemon.start().client
    for ttl in (600, 1):
        client.prepare(f"{ttl} s", [{"memory": "1GiB", "time": "10%"}], ttl_seconds=ttl)
    put(offset)
    until(lambda: len(client.grants()) == 1, "the short one expires", 30)
    client.prepare("1 s more", [{"memory": "1GiB", "time": "10%"}], ttl_seconds=1)
    daemon.kill()
    put(0)
    daemon.start()
    until(lambda: len(client.grants()) == 1, "the short one expires", 30)
    assert client.commit("600 s")["phase"] == "committed"
