"""The cost of a launch while its grant holds the lease, in nanoseconds, and the error of the quick clock that makes it
so low. Absolute figures of one machine: they are measured here, on a quiet machine, and not in the tests."""

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pages.handmade import Grant
from pages.lending import Lender
from run import built

from gpushare import paths

LAUNCH_NS = 30
"""About one hundredth of a driver's launch of 2 to 5 us: the bound of `launch overhead`."""
FUNCTIONS, OTHER_NS = 60, 100
"""Number of functions that a program launches in turn, as PyTorch does, and the bound for these launches: a hundredth
of the 10 us between two."""
CLOCK_NS = 20_000
"""Bound on the clock's error: more would make a metering mark of 500 us wrong by over 4 %."""
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")


def launches(directory: Path, stream: str, functions: int = 1, kind: type[Grant] = Grant) -> dict[str, Any]:
    """Nanoseconds of a launch through the interposer, and directly into a driver whose calls take no time. The best of
    three medians over two million launches each, as the machine may be busy."""
    driver = built.program("fakedriver")
    library, beside = driver / "libcuda.so.1", directory / "beside.so"
    shutil.copy(library, beside)
    device = SimpleNamespace(uuids=[b"u" * 16], directory=directory)
    grant = kind(directory / "grant", device)  # type: ignore[arg-type]
    try:
        (grant.directory / "driver").unlink()
        (grant.directory / "driver").symlink_to(driver)
        grant.lease()
        grant.set_bound(50_000_000)
        env = {**os.environ, "LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        command = [built.program("launchcost"), beside, library, stream, str(functions)]
        found = [
            json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        ]
        assert grant.slot().launches > 2_000_000, "launches went through the interposer"
    finally:
        grant.close()
    return min(found, key=lambda one: one["ours_ns"] - one["bare_ns"])


@pytest.mark.parametrize("stream", ["own", "default"])
def test_launch_cost(report, tmp_path: Path, stream: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    best = launches(tmp_path, stream)
    added = best["ours_ns"] - best["bare_ns"]
    report(
        f"a launch while the lease is held, {stream} stream",
        f"+{added:.1f} ns (best of 3 medians)",
        f"a driver that does nothing: {best['bare_ns']:.1f} ns",
        f"<= {LAUNCH_NS} ns",
        added <= LAUNCH_NS,
    )


@pytest.mark.parametrize("stream", ["own", "default"])
def test_launch_cost_of_functions_in_turn(report, tmp_path: Path, stream: str) -> None:
    """No launch repeats the function of the one before it, so each is booked separately."""
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    best = launches(tmp_path, stream, FUNCTIONS)
    added = best["ours_ns"] - best["bare_ns"]
    report(
        f"the same of {FUNCTIONS} functions in turn, {stream} stream",
        f"+{added:.1f} ns (best of 3 medians)",
        f"a driver that does nothing: {best['bare_ns']:.1f} ns",
        f"<= {OTHER_NS} ns",
        added <= OTHER_NS,
    )


@pytest.mark.parametrize("stream", ["own", "default"])
def test_launch_cost_of_memory_that_may_move(report, tmp_path: Path, stream: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    added = {}
    for kind in (Grant, Lender):
        (tmp_path / kind.__name__).mkdir()
        best = launches(tmp_path / kind.__name__, stream, kind=kind)
        added[kind] = best["ours_ns"] - best["bare_ns"]
    report(
        f"the same in a grant that lends its memory, {stream} stream",
        f"+{added[Lender]:.1f} ns (best of 3 medians)",
        f"in a grant that keeps it: +{added[Grant]:.1f} ns",
        f"<= {LAUNCH_NS} ns",
        added[Lender] <= LAUNCH_NS,
    )


@pytest.mark.parametrize("machine", ["this processor", "Arm, emulated"])
def test_clock_and_lock(report, machine: str) -> None:
    """The program fails if the lock lets two threads in."""
    arm = machine != "this processor"
    if arm and (platform.machine() == "aarch64" or shutil.which(EMULATOR[0]) is None):
        pytest.skip("needs an emulator for Arm")
    command = [*EMULATOR, built.program("parts_unit", "arm")] if arm else [built.program("parts_unit")]
    done = subprocess.run([*command, "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    off, entries, quick = (
        int(re.search(pattern, done.stdout)[1])  # type: ignore[index]
        for pattern in (r"at most (\d+) ns", r"(\d+) entries", r"(\d+) without the latch")
    )
    report(
        f"the quick clock against the system's, {machine}",
        f"{off} ns more than 1 us off at most; {100 * quick / entries:.0f} % of lock entries need no atomic exchange",
        "CLOCK_MONOTONIC, read before and after",
        f"<= 1 us + {CLOCK_NS // 1000} us",
        off <= CLOCK_NS,
    )
