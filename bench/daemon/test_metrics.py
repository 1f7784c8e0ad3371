"""The cost of a scrape: 64 tenants with 200 served grants on eight devices. The daemon's processor time hardly changes
on a busy machine; the time of an answer does."""

from measures import cpu_ns, p99, spread
from run.running import Daemon
from test_daemon import busy, living, meanwhile, times  # noqa: F401 - busy is a fixture

TENANTS, GRANTS, CALLS = 64, 200, 200
BOUND_MS = 400
"""The same as for a thousand grants (test_daemon.py)."""


def test_a_scrape(busy: Daemon, report) -> None:  # noqa: F811 - the fixture
    for number in range(TENANTS):
        busy.client.set_tenant(f"t{number}", {"time": 100, "memory": 1 << 30})
    with living(busy, GRANTS, TENANTS):
        text = busy.client.text("/metrics")
        before = cpu_ns(busy.process.pid)
        times(busy, "/metrics", CALLS)
        each = (cpu_ns(busy.process.pid) - before) / 1e6 / CALLS
        found: list[float] = []
        other = meanwhile(busy, lambda: found.extend(times(busy, "/metrics", CALLS)))
        samples = sum(not line.startswith("#") for line in text.splitlines())
        name = f"/metrics, {TENANTS} tenants, {GRANTS} grants, 8 devices"
        measured = spread(found, 1)
        holds = p99(found) <= BOUND_MS
        report(name, measured, f"another's empty call meanwhile: {other:.1f} ms at most", f"<= {BOUND_MS} ms", holds)
        size = f"{samples} samples, {len(text) >> 10} KiB"
        report("the daemon's processor time for it", f"{each:.1f} ms", size, "none", True)
        assert holds
