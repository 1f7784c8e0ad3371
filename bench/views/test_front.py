"""The cost of the views: of `gpushare top`, for itself and for the daemon that it asks, and of `gpushare ps`.

The node has a hundred grants on four devices. Some want their device all the time, so that their numbers differ at each
look; the others are served and idle.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from keptopen import Requests, create, release, request
from measures import percent_of_a_core
from run.running import GPUSHARE, Daemon, Tenant
from run.waiting import until
from terminals import in_terminal

from gpushare.cli.look.show import INTERVAL_SECONDS

GRANTS = 100
WORKING = 12
SECONDS = 20.0
OFTEN = 10
_SIZES = ((80, 24), (200, 50))


@pytest.fixture(scope="module")
def working() -> list[Tenant]:
    return []


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory, working: list[Tenant]) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("front") / "state", simulate="4x64GiB")
    try:
        daemon.start()
        for number in range(WORKING):
            working.append(daemon.spin("1GiB", "2%", gpu=str(number % 4)))
            working[-1].tell("run 1000000")
        with Requests(daemon.layout.socket, 8) as requests:
            grants = create(requests, GRANTS - WORKING, ttl_seconds=3600)
            binds = [request("POST", f"/v1/grants/{grant}/bind", {"kind": "container"}) for grant in grants]
            assert all(status == 200 for status, _ in requests.all(binds))
        yield daemon
        with Requests(daemon.layout.socket, 8) as requests:  # an earlier connection would be closed by now
            release(requests, grants)
    finally:
        for tenant in working:
            tenant.kill()
        daemon.stop()


def spent(daemon: Daemon, pid: int) -> tuple[float, float]:
    """Percent of a core that the process takes, and the daemon meanwhile."""
    assert daemon.process is not None
    own, its = percent_of_a_core(SECONDS, pid, daemon.process.pid)
    return own, its


def of(daemon: Daemon, columns: int, lines: int, *options: str) -> tuple[float, float, float]:
    """Runs `top` in a terminal; returns what `spent` does, and the bytes per second sent to the terminal."""
    with in_terminal(columns, lines, [*GPUSHARE, "top", *options], daemon.env) as top:
        until(lambda: b"GRANT" in top.printed, "the first picture")
        time.sleep(3)
        begin = len(top.printed)
        return *spent(daemon, top.pid), (len(top.printed) - begin) / SECONDS


@pytest.mark.timeout(300)
def test_top(report, hundred):
    found = {size: of(hundred, *size) for size in _SIZES}
    plain, _, _ = of(hundred, 80, 24, "--plain")
    for (columns, lines), (own, _, sent) in found.items():
        report(
            f"top at {GRANTS} grants, {columns}x{lines}, CPU",
            f"{own:.2f} % of a core over {SECONDS:g} s ({sent / 1000:.1f} kB/s to the terminal)",
            f"top --plain: {plain:.2f} %",
            "<= 1 %",
            own <= 1,
        )


@pytest.mark.timeout(300)
def test_what_top_asks(report, hundred, working):
    """Measured with all grants idle: the daemon's cost of working grants varies by more than `top` adds."""
    for tenant in working:
        tenant.tell("idle")
    time.sleep(3)
    _, alone = spent(hundred, os.getpid())
    _, often, _ = of(hundred, 80, 24, "--interval", str(INTERVAL_SECONDS / OFTEN))
    more = (often - alone) / OFTEN
    report(
        f"top at {GRANTS} grants, the daemon's CPU",
        f"+{more:.2f} % of a core (a {OFTEN}th of what {OFTEN} times as many looks take, over {SECONDS:g} s)",
        f"the daemon without it, all grants idle: {alone:.2f} %",
        "<= 1 %",
        more <= 1,
    )


def test_ps(report, hundred):
    def took(*command):
        subprocess.run([*command], env=hundred.env, check=True, capture_output=True)
        spans = []
        for _ in range(15):
            at = time.perf_counter()
            subprocess.run([*command], env=hundred.env, check=True, capture_output=True)
            spans.append(1000 * (time.perf_counter() - at))
        return statistics.median(spans)

    empty = took(sys.executable, "-c", "")
    found = took(*GPUSHARE, "ps")
    report(
        f"gpushare ps at {GRANTS} grants",
        f"{found:.0f} ms (median of 15, whole process)",
        f"an empty Python: {empty:.0f} ms",
        "<= 120 ms",
        found <= 120,
    )


def test_help(report) -> None:
    def once(command: tuple[str, ...]) -> float:
        at = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return 1000 * (time.perf_counter() - at)

    took, empty = (
        statistics.median(once(command) for _ in range(16))
        for command in ((*GPUSHARE, "--help"), (sys.executable, "-c", "pass"))
    )
    report("gpushare --help", f"{took:.0f} ms", f"an empty Python: {empty:.0f} ms", "<= 150 ms", took <= 150)
