"""Kernels of one function with different durations: what a wait, a mark or a query shows is charged, whatever the
estimate."""

import subprocess
import threading
import time
from collections.abc import Callable

import built
import pytest
from handmade import Grant, Simulator, Tenant

US = 1000
CASES = [(2, 20, 30_000), (50, 3, 1000), (100, 10, 2000), (20, 20, 500)]
"""Duration of the short kernels in us, their number, and the duration of the long one after them in us."""
KNOWN = ["stream", "context", "event", "query", "equery", "copy", "batch"]
"""Ways to wait in which the interposer sees the wait."""


@pytest.mark.parametrize("pattern", ["rare", "rarebatch", "rareturns", "rarebatchturns"])
@pytest.mark.parametrize(("short", "count", "long"), CASES)
def test_model_of_rare_long_kernels(short: int, count: int, long: int, pattern: str) -> None:
    """Each launch is waited for at once, or only the long ones; alone, or in turn with another tenant."""
    command = [built.program("meter_programs"), f"{pattern}:{count}:{long * US}", str(short * US), "5000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.05


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize(("us", "streams"), [(20, 1), (100, 1), (20, 3), (100, 3), (20, 6)])
def test_model_of_random_programs(seed: int, us: int, streams: int) -> None:
    """Five functions with heavy-tailed durations, waits and pauses in any order."""
    command = [built.program("meter_programs"), f"random:{streams}:{seed}", str(us * US), "2000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.02


@pytest.mark.parametrize("pattern", ["rareunseen", "rareunseenstarved", "rareunseendear"])
@pytest.mark.parametrize(("short", "count", "long"), CASES)
def test_model_of_rare_long_kernels_behind_our_back(short: int, count: int, long: int, pattern: str) -> None:
    """Each launch is waited for at once in a way that the meter does not see, and no other thread queries it; on a busy
    machine, the thread is preempted for milliseconds now and then."""
    command = [built.program("meter_programs"), f"{pattern}:{count}:{long * US}", str(short * US), "5000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.05


@pytest.mark.parametrize("pattern", ["watched", "watcheddear"])
@pytest.mark.parametrize("hits", [1, 3, 6, 20])
@pytest.mark.parametrize(("short", "long"), [(10, 40), (10, 60), (5, 80), (10, 200), (20, 400)])
def test_model_of_a_program_that_watches_the_samples(pattern: str, hits: int, short: int, long: int) -> None:
    """The program detects by the duration of its calls which launches were measured. It launches short kernels until
    `hits` of them were, then long ones until one was; the meter sees no wait. It is charged no less for that."""
    command = [built.program("meter_programs"), f"{pattern}:{hits}:{long * US}", str(short * US), "100000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert (-0.1 if pattern.endswith("dear") else -0.05) <= metered / truth - 1 <= 0.25


def test_model_of_a_program_in_step_with_the_samples() -> None:
    """Seven kernels of 30 us and one of 100 us, repeated; the meter sees no wait. Samples taken every 4 ms would never
    hit a long one. The long ones, too short to be noticed individually, are charged by the mean of the samples."""
    command = [built.program("meter_programs"), "rareunseen:7:100000", "30000", "20000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.12


@pytest.mark.parametrize("us", [5, 10, 20, 100])
def test_model_of_even_kernels_behind_our_back(us: int) -> None:
    """Each kernel is waited for unseen by the meter, and the thread is often preempted: that is not device time."""
    command = [built.program("meter_programs"), f"rareunseenstarved:20:{us * US}", str(us * US), "20000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.05


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize(("us", "streams"), [(20, 1), (20, 3), (100, 3)])
def test_model_of_random_programs_behind_our_back(seed: int, us: int, streams: int) -> None:
    """As test_model_of_random_programs, without any wait that the meter sees."""
    command = [built.program("meter_programs"), f"randomunseen:{streams}:{seed}", str(us * US), "4000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.05


@pytest.mark.parametrize("period", [50, 250, 1000, 5000])
@pytest.mark.parametrize("pattern", ["rarely", "rarelystarved"])
def test_model_of_pauses_that_are_what_they_seem(period: int, pattern: str) -> None:
    """A kernel of 20 us in each period, and nobody ever waits: the pauses are not charged."""
    command = [built.program("meter_programs"), f"{pattern}:{period * US}", str(20 * US), "5000"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    print(f"error {metered / truth - 1:+.2%}")
    assert abs(metered / truth - 1) <= 0.05


def met(ways: list[str]) -> list[tuple[str, int, int, int]]:
    """Each way with two of the cases, and each case with half of the ways."""
    return [(way, *CASES[number]) for at, way in enumerate(ways) for number in range(at % 2, len(CASES), 2)]


def measured(grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str, ms: int, *arguments: int) -> float:
    """Relative error of the metered time against the simulator's accounting."""
    grant.lease()
    grant.set_bound(50_000_000)
    tenant = run("uneven", grant, sim, way, ms, *arguments)
    tenant.line()
    time.sleep(0.01)
    truth, metered = -sim.busy_ns(tenant.pid), -grant.slot(0).busy_ns
    ended = threading.Thread(target=tenant.line)
    ended.start()
    ended.join()
    time.sleep(0.02)
    truth, metered = truth + sim.busy_ns(tenant.pid), metered + grant.slot(0).busy_ns
    tenant.end()
    print(f"{way} {arguments}: metered {metered / 1e6:.1f} of {truth / 1e6:.1f} ms, {metered / truth - 1:+.2%}")
    return metered / truth - 1


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize(("way", "short", "count", "long"), met(KNOWN))
def test_rare_long_kernels(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str, short: int, count: int, long: int
) -> None:
    assert abs(measured(grant, sim, run, way, 500, short * US, count, long * US)) <= 0.05


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize(("way", "short", "count", "long"), met(["free", "flag", "host"]))
def test_rare_long_kernels_behind_our_back(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str, short: int, count: int, long: int
) -> None:
    """The program learns that the kernels are done without a call that the interposer inspects. Only the first few of
    them are missed."""
    assert abs(measured(grant, sim, run, way, 1000, short * US, count, long * US)) <= 0.05


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("way", ["stream", "any"])
def test_a_heavy_tail(grant: Grant, sim: Simulator, run: Callable[..., Tenant], way: str) -> None:
    assert abs(measured(grant, sim, run, way, 1000, 30 * US, 0, 20_000 * US)) <= 0.05


@pytest.mark.timing
@pytest.mark.slow
def test_a_long_kernel_on_each_of_many_streams(grant: Grant, sim: Simulator, run: Callable[..., Tenant]) -> None:
    assert abs(measured(grant, sim, run, "any", 1000, 10 * US, 5, 3_000 * US, 0, 1)) <= 0.05


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("ms", [2, 4, 10])
def test_a_program_that_is_late_on_purpose(grant: Grant, sim: Simulator, run: Callable[..., Tenant], ms: int) -> None:
    """Marks show that its delays are not the device's, so its long kernels would be excused as such delays, too. The
    gate thread looks at what is overdue, and sees that they are not."""
    grant.lease()
    grant.set_bound(50_000_000)
    tenant = run("late", grant, sim, str(ms), ms, 8)
    tenant.line()
    time.sleep(0.02)  # of the 260 ms before the first long launch
    truth, metered = -sim.busy_ns(tenant.pid), -grant.slot(0).busy_ns
    launched = tenant.line()["truth_ns"]
    time.sleep(0.02)
    truth, metered = truth + sim.busy_ns(tenant.pid), metered + grant.slot(0).busy_ns
    assert truth == pytest.approx(launched, rel=0.01)
    print(f"{ms} ms: metered {metered / 1e6:.1f} of {truth / 1e6:.1f} ms, {metered / truth - 1:+.2%}")
    assert metered >= 0.8 * truth
