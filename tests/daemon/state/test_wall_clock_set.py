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
def test_what_is_reserved_or_prepared_is_held_for_its_time(clock, offset):
    """The clock is set while the daemon runs, and the other way while no daemon runs."""
    daemon, put = clock
    client = daemon.start().client

    def ask(seconds: int) -> str:
        client.prepare(f"{seconds} s", [{"memory": "1GiB", "time": "10%"}], ttl_seconds=seconds)
        return client.create(memory="1GiB", time="10%", ttl_seconds=seconds)["id"]

    def only_long_ones_are_left() -> None:
        until(lambda: len(client.grants()) == 2, "the short ones expire", 30)

    long, began, short = ask(600), time.monotonic(), ask(1)
    put(offset)
    only_long_ones_are_left()
    assert time.monotonic() - began > 0.9
    assert "not bound within 1 s" in daemon.cli_here("grant", "show", short).stdout
    client.prepare("1 s more", [{"memory": "1GiB", "time": "10%"}], ttl_seconds=1)
    client.create(memory="1GiB", time="10%", ttl_seconds=1)
    daemon.kill()
    put(-offset)
    daemon.start()
    only_long_ones_are_left()
    left = client.grant(long)["expires_ns"] - (time.time_ns() - offset)
    assert 570 * SECOND < left <= 600 * SECOND
    assert client.commit("600 s")["phase"] == "committed"


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
