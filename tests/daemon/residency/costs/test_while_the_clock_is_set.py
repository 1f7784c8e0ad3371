"""The wall clock is set while memory is away and a call waits for it: what is counted is the time that has passed."""

import mmap
import os
import struct
import time

import pytest
from run import built
from run.waiting import until

GIB = 1 << 30
S = 10**9
DAY = 86_400 * S


@pytest.fixture
def daemon(make_daemon, tmp_path):
    """A daemon whose wall clock a test can set."""
    path = tmp_path / "offset"
    path.write_bytes(bytes(8))
    config = tmp_path / "gpushare.toml"
    config.write_text('ledger_seconds = 1\n[memory]\nhost_pool = "32GiB"\nmove_seconds = 60\n')
    made = make_daemon("--simulate", "2x16GiB", "--config", str(config))
    made.env |= {"LD_PRELOAD": os.fspath(built.program("wallclock.so")), "WALLCLOCK": os.fspath(path)}
    made.patch()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8) as page:
        made.set_clock = lambda ns: page.__setitem__(slice(None), struct.pack("<q", ns))
        yield made.start()


def sums(daemon):
    query = "SELECT COALESCE(SUM(stall_ns), 0), COALESCE(SUM(hosted_mib_ms), 0), MIN(to_ns - from_ns) FROM moves"
    return daemon.rows(query)[0]


def test_stalls_and_hosted_memory_are_as_long_as_they_took(daemon, notebook):
    began = time.monotonic_ns()
    one = notebook(gpu="0").holds()
    daemon.client.suspend(one.id, hold=True)
    one("carry")
    one.comes_to("suspended")
    one("wants")
    for offset in (DAY, -DAY, 0):
        before = sums(daemon)
        until(lambda before=before: all(map(int.__gt__, sums(daemon)[:2], before[:2])), "both go on", 30)
        daemon.set_clock(offset)
    before = sums(daemon)
    until(lambda: all(map(int.__gt__, sums(daemon)[:2], before[:2])), "both go on", 30)
    stalled, hosted, shortest = sums(daemon)
    took = time.monotonic_ns() - began
    assert 0 < stalled <= took
    assert 0 < hosted <= 7 * 1024 * took // 10**6
    assert shortest >= 0
    spread = daemon.rows("SELECT MAX(to_ns) - MIN(to_ns) FROM moves")[0][0]
    assert spread > DAY, "the clock was set"
