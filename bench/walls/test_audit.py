"""The audit: how long a process past the interposer runs until it is stopped, how long freezing takes, and the cost of
looking. test_false_alarms.py shows that no other process is stopped.

The stopped process is a real one that keeps writing the time into a file; the last time in it is the judge.
"""

import os
import struct
import sys
import time
from pathlib import Path

import pytest
from measures import p99, percent_of_a_core, spread
from run.running import Daemon, copied_driver, start
from run.waiting import until

from gpushare.enforce import freezer
from gpushare.paths import SIM_DIR_ENV

EVADER = Path(__file__).with_name("evader.py")
TRIALS = int(os.environ.get("GPUSHARE_BENCH_EVADERS", "100"))
_WORDS = struct.Struct("<QQ")
BEATS = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    words = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
while True:
    words[1] = time.monotonic_ns()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    daemon = Daemon(tmp_path_factory.mktemp("audit") / "state", simulate="1x64GiB")
    try:
        yield daemon.start()
    finally:
        daemon.stop()


def words(file: Path) -> tuple[int, int]:
    began, beat = _WORDS.unpack(file.read_bytes())
    return began, beat


def evade(node: Daemon, file: Path) -> float:
    """Milliseconds from just before the evader's first byte to its last beat."""
    file.write_bytes(bytes(_WORDS.size))
    bare = f"{SIM_DIR_ENV}={node.layout.sim}"
    driver = copied_driver(node.state_dir)
    command = ("env", "-i", bare, sys.executable, "-S", str(EVADER), str(driver), str(file))
    child = start(node.run("300MiB", "1%", *command), node.env, stderr=False)
    try:
        until(lambda: words(file)[1], "it has the device")
        [found] = until(lambda: node.findings(pid=child.pid, act="frozen"), "it is found")
        until(lambda: freezer.frozen(node.cgroup(found["grant"])), "it is frozen")
        began, beat = words(file)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    until(lambda: not node.client.grants(), "its grant ends")
    return (beat - began) / 1e6


def test_first_byte_to_stop(node, report, tmp_path):
    found = [evade(node, tmp_path / "words") for _ in range(TRIALS)]
    report(
        "first byte past the interposer to the last instruction",
        spread(found),
        "-",
        "p99 <= 150 ms",
        p99(found) <= 150,
    )
    assert not node.false_alarms()


def test_freeze_and_thaw(node, report, tmp_path):
    file = tmp_path / "words"
    file.write_bytes(bytes(_WORDS.size))
    child = start(node.run("300MiB", "1%", sys.executable, "-Sc", BEATS, str(file)), node.env, stderr=False)
    try:
        until(lambda: words(file)[1], "it runs")
        group = node.cgroup(node.client.grants()[0]["id"])
        stops, goes = [], []
        for _ in range(200):
            began = time.monotonic_ns()
            freezer.freeze(group)
            while not freezer.frozen(group):
                pass
            stops.append((time.monotonic_ns() - began) / 1e6)
            last, began = words(file)[1], time.monotonic_ns()
            freezer.thaw(group)
            while words(file)[1] == last:
                pass
            goes.append((time.monotonic_ns() - began) / 1e6)
            time.sleep(0.005)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    report("freeze of a busy process: asked to stopped", spread(stops), "-", "p99 <= 10 ms", p99(stops) <= 10)
    report("its thaw: asked to its next instruction", spread(goes), "-", "p99 <= 10 ms", p99(goes) <= 10)
    until(lambda: not node.client.grants(), "its grant ends")


def test_what_looking_costs(tmp_path_factory, report):
    costs = {}
    for name, seconds in (("with", 0.05), ("without", 3600.0)):
        daemon = Daemon(tmp_path_factory.mktemp(name) / "state", simulate="8x64GiB")
        daemon.quicken(audit=seconds)
        held = []
        try:
            daemon.start()
            held = [daemon.spin("300MiB", "1%") for _ in range(100)]
            for tenant in held:
                assert tenant.tell("alloc 1MiB")["ok"]
            time.sleep(2)
            [costs[name]] = percent_of_a_core(10, daemon.process.pid)
            assert not daemon.false_alarms()
        finally:
            for tenant in held:
                tenant.close()
            daemon.stop()
    report(
        "the audit with 100 grants on 8 devices, one process each",
        f"{costs['with'] - costs['without']:+.1f} % of a core over 10 s",
        f"the same daemon without: {costs['without']:.1f} %",
        "<= 5 %",
        costs["with"] - costs["without"] <= 5,
    )
