"""The meter's arithmetic against a model, and the whole of it in a process against the simulator's books."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import INCLUDE, ROOT, SOURCES, Grant, Simulator, Tenant

PATTERNS = ("b2b", "host", "sync", "mix", "mixhost", "two", "burst")


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("meter") / "meter_unit"
    room = ROOT / "native" / "interposer"
    flags = ["-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run(
        ["gcc", *flags, f"-I{room}", f"-I{INCLUDE}", SOURCES / "meter_unit.c", room / "meter.c", "-o", program], check=True
    )
    return program


def test_books_of_the_meter(unit: Path) -> None:
    subprocess.run([unit, "self"], check=True)


@pytest.mark.parametrize("kernel_us", [5, 20, 100])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_model(unit: Path, pattern: str, kernel_us: int) -> None:
    out = subprocess.run([unit, pattern, str(kernel_us * 1000)], check=True, capture_output=True, text=True).stdout
    truth, metered, wall, bare = map(int, out.split())
    assert abs(metered / truth - 1) <= 0.005
    assert wall / bare - 1 <= 0.0125


@pytest.mark.parametrize("pattern", ("b2b", "host", "sync", "burst"))
def test_model_of_very_short_kernels(unit: Path, pattern: str) -> None:
    """A 2 us kernel is shorter than recording an event: when starved its estimate is what the events around it took."""
    out = subprocess.run([unit, pattern, "2000"], check=True, capture_output=True, text=True).stdout
    truth, metered, _, _ = map(int, out.split())
    assert -0.05 <= metered / truth - 1 <= 0.35


# Launches per pattern and kernel length: about a third of a second each.
def launches(pattern: str, ns: int) -> int:
    each = {"mix": 5 * ns, "mixhost": 5 * ns, "host": 24_000 + ns, "sync": 60_000 + ns}.get(pattern, ns + 3000)
    return min(20_000, max(400, 300_000_000 // each))


@pytest.mark.parametrize("kernel_us", [5, 20, 100])
@pytest.mark.parametrize("pattern", [*PATTERNS, "event"])
def test_metered_against_the_books(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant], pattern: str, kernel_us: int
) -> None:
    grant.lease()
    grant.set_bound(50_000_000)
    ns = kernel_us * 1000
    tenant = run_tenant(grant, sim, "pattern", pattern, launches(pattern, ns), ns)
    result = tenant.line()
    busy, metered = sim.busy_ns(tenant.pid), grant.slot().busy_ns
    error = metered / busy - 1
    print(f"{pattern} {kernel_us} us: error {error:+.2%}, busy {busy / 1e6:.1f} ms of {result['wall_ns'] / 1e6:.1f} ms")
    assert busy == pytest.approx(result["truth_ns"], rel=0.01)
    tenant.end()
    # Where the queue never runs dry the device's own clock decides; elsewhere the host's view does, and the host is busy.
    assert abs(error) <= (0.02 if pattern in ("b2b", "mix", "two") else 0.10)


def test_copies_over_the_link_are_not_device_time(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]
) -> None:
    grant.lease()
    grant.set_bound(50_000_000)
    tenant = run_tenant(grant, sim, "copies", 40, 8 << 20, 1_000_000)
    result = tenant.line()
    metered = grant.slot().busy_ns
    print(f"kernels {result['truth_ns'] / 1e6:.1f} ms, metered {metered / 1e6:.1f} ms")
    assert metered == pytest.approx(result["truth_ns"], rel=0.05)
    tenant.end()


def test_a_profiled_process_is_charged_its_residency(
    grant: Grant, sim: Simulator, run_tenant: Callable[..., Tenant]
) -> None:
    grant.lease()
    profiler = {"CUDA_INJECTION64_PATH": "/nonexistent/libprofiler.so"}
    tenant = run_tenant(grant, sim, "pattern", "sync", 2000, 20_000, env=profiler)
    result = tenant.line()
    assert grant.slot().inflight == 0
    assert result["truth_ns"] <= grant.slot().busy_ns <= result["wall_ns"]
    tenant.end()
