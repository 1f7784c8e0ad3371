"""A loop of launches in one thread, in wall and in processor time, bare and under a grant.

A bare driver queues about a thousand launches, so that a loop of long kernels returns before its work is done. In a
grant that shares its device at most 2 ms of work are in flight: the same time passes in the launches instead of in the
wait after them. So the wall time up to the last launch may be 1.5 times as long, with the same processor time and the
same time until the work is done."""

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages.handmade import Grant, Simulator
from run import built

from gpushare import paths

ROUNDS = 5
Loop = Callable[[bool, int, int], dict[str, Any]]


@pytest.fixture
def loop(tmp_path: Path) -> Any:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    simulator = Simulator(tmp_path / "sim")
    grant = Grant(tmp_path / "grant", simulator)  # 2 ms in flight
    grant.lease()

    def run(shared: bool, launches: int, kernel_ns: int) -> dict[str, Any]:
        env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "GPUSHARE_SIM_DIR": str(simulator.directory)}
        if shared:
            del env["GPUSHARE_SIM_DIR"]
            env |= {"LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        command = [built.program("launchwall"), paths.SPIN_PTX, str(launches), str(kernel_ns)]
        return dict(json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout))

    yield run
    grant.close()
    simulator.stop()


def ratios(loop: Loop, launches: int, kernel_ns: int) -> dict[str, float]:
    """Ratios of what the loop takes under a grant to what it takes bare: the median of pairs."""
    pairs = [(loop(True, launches, kernel_ns), loop(False, launches, kernel_ns)) for _ in range(ROUNDS)]
    return {
        what: statistics.median(ours[what] / bare[what] for ours, bare in pairs) for what in ("launched", "done", "ran")
    }


@pytest.mark.parametrize(("launches", "kernel_ns"), [(200_000, 1000), (3000, 100_000)])
def test_launch_loop(report, loop: Loop, launches: int, kernel_ns: int) -> None:
    ratio = ratios(loop, launches, kernel_ns)
    report(
        f"a loop of {launches:,} launches of {kernel_ns // 1000} us, until all is done",
        f"{ratio['done']:.3f} times the clock (until the last launch {ratio['launched']:.2f}, on the processor "
        f"{ratio['ran']:.2f})",
        "the same loop on the bare simulated driver",
        "<= 1.03 times",
        ratio["done"] <= 1.03,
    )
