"""The cost of a plan next to 200 grants: how many the daemon answers in a second, and how long one takes, while the
devices are idle and while programs use them in full, so that the plan includes which grants would lose what they
borrow."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from keptopen import Requests, create, release, request
from run.running import Daemon

GRANTS = 200
TENANTS = 20
RUNNING = 16
"""Number of programs that run, two on each of eight devices."""
CALLS = 3000


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    state = tmp_path_factory.mktemp("plan") / "state"
    state.mkdir()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        (state / "cdi").symlink_to(memory)
        daemon = Daemon(state, simulate="8x192GiB")
        try:
            yield daemon.start()
        finally:
            daemon.stop()


@contextmanager
def served(daemon: Daemon, count: int) -> Iterator[None]:
    """Grants of all tenants, bound to containers that never start."""
    with Requests(daemon.layout.socket) as requests:
        grants = []
        for number in range(TENANTS):
            part = count * (number + 1) // TENANTS - count * number // TENANTS
            grants += create(requests, part, tenant=f"t{number}", ttl_seconds=3600)
        for status, answer in requests.all(
            request("POST", f"/v1/grants/{grant}/bind", {"kind": "container"}) for grant in grants
        ):
            assert status == 200, answer
        try:
            yield
        finally:
            release(requests, grants)


@contextmanager
def running(daemon: Daemon) -> Iterator[None]:
    """Programs that borrow all that nobody else uses."""
    with ExitStack() as ends:
        for number in range(RUNNING):
            program = daemon.spin("1GiB", "0", tenant="default", gpu=str(number % 8))
            ends.callback(program.kill)
            program.tell("run 5000000")
        time.sleep(3)  # usage figures cover the last second
        yield


def bodies(count: int) -> Iterator[bytes]:
    for number in range(count):
        asked = {"memory": "1GiB", "time": 20 + number % 80, "tenant": f"t{number % TENANTS}"}
        yield request("POST", "/v1/plan", asked)


def ask(daemon: Daemon, report, what: str, *, victims: bool) -> None:
    times = []
    with Requests(daemon.layout.socket, 1) as requests:
        for body in bodies(CALLS):
            at = time.perf_counter()
            ((status, answer),) = requests.all([body])
            times.append(1000 * (time.perf_counter() - at))
            assert status == 200, answer
            assert b'"fits":true' in answer
            assert (b'"victims":[]' not in answer) == victims, answer
    with Requests(daemon.layout.socket) as requests:
        at = time.perf_counter()
        for _ in requests.all(request("GET", "/v1/version") for _ in range(CALLS)):
            pass
        empty = CALLS / (time.perf_counter() - at)
        at = time.perf_counter()
        for status, _ in requests.all(bodies(CALLS)):
            assert status == 200
        rate = CALLS / (time.perf_counter() - at)
    p99 = sorted(times)[int(0.99 * (CALLS - 1))]
    measured = f"p99 {p99:.2f} ms, p50 {statistics.median(times):.2f} ms, longest {max(times):.1f} ms"
    report(f"a plan, {what}", measured, f"of {CALLS} calls, one after the other", "p99 <= 5 ms", p99 <= 5)
    report(f"plans per second, {what}", f"{rate:.0f}/s", f"{empty:.0f} empty calls/s", ">= 1000/s", rate >= 1000)
    assert p99 <= 5
    assert rate >= 700  # a busy machine misses the target


def test_plan(busy: Daemon, report) -> None:
    for number in range(TENANTS):
        busy.client.set_tenant(f"t{number}", {"time": "40%"})
    with served(busy, GRANTS):
        ask(busy, report, f"{GRANTS} grants served, none runs", victims=False)
    with running(busy), served(busy, GRANTS - RUNNING):
        ask(busy, report, f"{GRANTS} grants served, {RUNNING} fill the devices", victims=True)
        body = {"grants": [{"memory": "1GiB", "time": 10, "tenant": f"t{number % TENANTS}"} for number in range(100)]}
        times = []
        for _ in range(50):
            at = time.perf_counter()
            busy.client.call("POST", "/v1/plan", body)
            times.append(1000 * (time.perf_counter() - at))
        turn = busy.client.node()["loop_latency_max_ns"] / 1e6
        report(
            "a plan of 100 requests",
            f"{statistics.median(times):.1f} ms in the median, longest {max(times):.1f} ms",
            f"longest turn of the daemon's loop in all this: {turn:.1f} ms",
            "none",
            True,
        )
