"""What a tenant notices of its neighbours: latency of requests next to training, what programs lose that leave the
device idle, and what the bound on work in flight costs and gains."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from measures import p99, spread
from run.running import SPIN, Daemon, Tenant, daemon_apart
from test_lending import bare

from gpushare import paths

PROGRAM = Path(__file__).with_name("notebook.py")
SECONDS = 8
BOUND_MS, SPARE_MS = 2, 1
"""Work in flight, and what a switch may take."""
SHORT, LONG = ("10", "2", "1000000"), ("60", "20", "1000000")
"""Requests: a period in ms, so many kernels, each of so many ns."""
ALONE = -1.0


def latencies(
    node: Daemon, work: Sequence[str], beside_ms: float = ALONE, *, shared: bool
) -> tuple[list[float], float]:
    """(ms of each request; part of the device's time that is used). `beside_ms`: the kernels of a trainer."""
    program = [sys.executable, str(PROGRAM), str(paths.SPIN_PTX), str(SECONDS), "1", *work]
    command = node.run("1GiB", "400", *program, **{"class": "interactive"}) if shared else [*bare(node)[:-1], *program]
    with ExitStack() as ends:
        process = ends.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        ends.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        if beside_ms != ALONE:
            trainer = node.spin("1GiB", "60%") if shared else Tenant(bare(node))
            ends.callback(trainer.close)
            trainer.tell(f"run {int(beside_ms * 1e6)}")
            time.sleep(0.5)
        before = node.books()
        process.stdin.write("go\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        after = node.books()
    used = (after["busy_ns"] - before["busy_ns"]) / (after["wall_ns"] - before["wall_ns"])
    return [ns / 1e6 for ns in answer["cells_ns"]], used


@pytest.mark.parametrize("kernel_ms", [0.1, 4, 20])
def test_requests_next_to_training(node: Daemon, report, kernel_ms: float) -> None:
    alone, _ = latencies(node, SHORT, shared=True)
    sliced, _ = latencies(node, SHORT, kernel_ms, shared=False)
    found, used = latencies(node, SHORT, kernel_ms, shared=True)
    bound = p99(alone) + BOUND_MS + kernel_ms + SPARE_MS
    report(
        f"100 requests a second of 2 x 1 ms next to training with {kernel_ms:g} ms kernels",
        f"{spread(found)}; the device works {100 * used:.1f} % of the time",
        f"alone {spread(alone)}; the device's own slicing {spread(sliced)}",
        f"p99 <= {bound:.2f} ms",
        p99(found) <= bound,
    )


def test_long_requests_next_to_training(node: Daemon, report) -> None:
    alone, _ = latencies(node, LONG, shared=True)
    found, _ = latencies(node, LONG, 0.1, shared=True)
    bound = 1.1 * p99(alone)
    name = "16 requests a second of 20 ms next to training with 0.1 ms kernels"
    report(name, spread(found), f"alone {spread(alone)}", f"p99 <= {bound:.2f} ms", p99(found) <= bound)


@pytest.mark.parametrize("bound_ms", [0.1, 0.25, 0.5, 1, 2, 4])
def test_what_the_bound_costs(report, bound_ms: float) -> None:
    with daemon_apart(config=f"[arbiter]\nbound_ms = {bound_ms}\n") as node:
        found, used = latencies(node, SHORT, 0.1, shared=True)
    report(f"{bound_ms:g} ms in flight: 100 requests a second of 2 x 1 ms next to 0.1 ms kernels", spread(found),
           f"the device works {100 * used:.1f} % of the time", "none", True)  # fmt: skip


def test_programs_that_leave_the_device_idle(node: Daemon, report) -> None:
    """Two programs that compute on the CPU for 0.7 ms between kernels of 0.3 ms: kernels of both."""

    def kernels(command: list[str]) -> int:
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        return sum(json.loads(process.communicate()[0].splitlines()[-1])["kernels"] for process in both)

    work = ("--kernel-ns", "300000", "--gap-ns", "700000", "--seconds", "3")
    pairs = [(kernels(bare(node, *work)), kernels(node.run("1GiB", "500", SPIN, *work))) for _ in range(3)]
    kept = statistics.median(shared / alone for alone, shared in pairs)
    report("two programs that use 30 % of the device each: what they keep", f"{100 * kept:.1f} %",
           "the same two on the bare device", ">= 98 %", kept >= 0.98)  # fmt: skip
