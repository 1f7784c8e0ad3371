"""The cost of a scrape: 64 tenants with 200 served grants on eight devices. The daemon's processor time hardly changes
on a busy machine; the time of an answer does."""

import os
import statistics
from pathlib import Path

from run.running import Daemon
from test_daemon import busy, living, meanwhile, p99, times  # noqa: F401 - busy is a fixture

TENANTS, GRANTS, CALLS = 64, 200, 200
BOUND_MS = 400
"""The same as for a thousand grants (test_daemon.py)."""


def spent(daemon: Daemon) -> float:
    """Milliseconds of processor time of all the daemon's threads."""
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def test_a_scrape(busy: Daemon, report) -> None:  # noqa: F811 - the fixture
    for number in range(TENANTS):
        busy.client.set_tenant(f"t{number}", {"time": 100, "memory": 1 << 30})
    with living(busy, GRANTS, TENANTS):
        text = busy.client.text("/metrics")
        before = spent(busy)
        times(busy, "/metrics", CALLS)
        each = (spent(busy) - before) / CALLS
        found: list[float] = []
        other = meanwhile(busy, lambda: found.extend(times(busy, "/metrics", CALLS)))
        samples = sum(not line.startswith("#") for line in text.splitlines())
        name = f"/metrics, {TENANTS} tenants, {GRANTS} grants, 8 devices"
        measured = f"p99 {p99(found):.1f} ms, p50 {statistics.median(found):.1f} ms"
        holds = p99(found) <= BOUND_MS
        report(name, measured, f"another's empty call meanwhile: {other:.1f} ms at most", f"<= {BOUND_MS} ms", holds)
        size = f"{samples} samples, {len(text) >> 10} KiB"
        report("the daemon's processor time for it", f"{each:.1f} ms", size, "none", True)
        assert holds
