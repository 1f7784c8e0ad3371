"""What a launch costs while its grant holds the lease, in nanoseconds, and how far the clock that this cost rests on is
off. Absolute figures of one machine: they are measured here, on a quiet one, and not in the tests."""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handmade import Grant

from gpushare import paths

ROOT = Path(__file__).resolve().parent.parent
TIMING = ROOT / "tests" / "interposer" / "timing"
FLAGS = ("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'native'}")
LAUNCH_NS = 30
"""About one hundredth of a driver's launch of 2 to 5 us: the bound of `launch overhead`."""
CLOCK_NS = 20_000
"""More would make a metering mark of 500 us wrong by over 4 %."""
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-gcc", ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")


def launches(directory: Path, stream: str) -> dict[str, Any]:
    """Nanoseconds of a launch through the interposer and straight into a driver whose calls take no time. The machine
    may be busy: the best of three medians over two million launches each."""
    driver, program, beside = directory / "driver", directory / "launchcost", directory / "beside.so"
    driver.mkdir()
    library = driver / "libcuda.so.1"
    shared = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    subprocess.run(["gcc", *FLAGS, *shared, TIMING / "fakedriver.c", "-o", library], check=True)
    shutil.copy(library, beside)
    subprocess.run(["gcc", *FLAGS, TIMING / "launchcost.c", "-o", program, library, "-ldl"], check=True)
    device = SimpleNamespace(uuids=[b"u" * 16], directory=directory)
    grant = Grant(directory / "grant", device)  # type: ignore[arg-type]
    try:
        (grant.directory / "driver").unlink()
        (grant.directory / "driver").symlink_to(driver)
        grant.lease()
        grant.set_bound(50_000_000)
        env = {**os.environ, "LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        command = [program, beside, library, stream]
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


def _clock(compiler: str, emulator: Sequence[str], directory: Path) -> tuple[int, int]:
    """How many nanoseconds the quick clock is off at most beyond 1 us, and percent of lock entries without the latch.
    The program fails where the lock lets two threads in."""
    room, program = ROOT / "native" / "interposer", directory / "parts_unit"
    sources = [next(room.rglob(name)) for name in ("latch.c", "ticks.c", "guest.c")]
    subprocess.run([compiler, *FLAGS, TIMING / "parts_unit.c", *sources, "-o", program], check=True)
    done = subprocess.run([*emulator, program, "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    off, entries, quick = (
        int(re.search(pattern, done.stdout)[1])  # type: ignore[index]
        for pattern in (r"at most (\d+) ns", r"(\d+) entries", r"(\d+) without the latch")
    )
    return off, round(100 * quick / entries)


@pytest.mark.parametrize("machine", ["this processor", "Arm, emulated"])
def test_clock_and_lock(report, tmp_path: Path, machine: str) -> None:
    if machine == "this processor":
        compiler, emulator = "gcc", ()
    elif platform.machine() == "aarch64" or not all(map(shutil.which, (ARM_COMPILER, ARM_EMULATOR[0]))):
        pytest.skip("needs a cross compiler and an emulator for Arm")
    else:
        compiler, emulator = ARM_COMPILER, ARM_EMULATOR
    off, quick = _clock(compiler, emulator, tmp_path)
    report(
        f"the quick clock against the system's, {machine}",
        f"{off} ns more than 1 us off at most; {quick} % of lock entries need no atomic exchange",
        "CLOCK_MONOTONIC, read before and after",
        f"<= 1 us + {CLOCK_NS // 1000} us",
        off <= CLOCK_NS,
    )
