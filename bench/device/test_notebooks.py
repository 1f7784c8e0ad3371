"""Twenty users on one GPU: notebooks that compute 2 % of the time, each guaranteed a twentieth, and a trainer that
has only what they leave. The notebooks' own clocks measure what a cell waits, the simulator what the trainer did."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from measures import p99, spread
from run.running import Daemon, Tenant
from test_lending import bare

from gpushare import paths

USERS = 20
SECONDS = 20.0
LEASE_MS = 20  # a lease of another notebook
PROGRAM = Path(__file__).with_name("notebook.py")


@pytest.fixture(scope="module")
def users(node: Daemon) -> Daemon:
    for number in range(USERS):
        node.client.set_tenant(f"user-{number:02}", {"time": 50})
    node.client.set_tenant("trainer", {"time": 0, "weight": 0})
    return node


@contextmanager
def notebooks(node: Daemon, *, shared: bool) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of all notebooks, once they are ready. `shared`: in shares, else on the bare device."""
    with ExitStack() as opened:
        processes = []
        for number in range(USERS):
            program = [sys.executable, str(PROGRAM), str(paths.SPIN_PTX), str(SECONDS), str(number)]
            share = {"tenant": f"user-{number:02}", "class": "interactive"}
            command = node.run("512MiB", "50", *program, **share) if shared else [*bare(node)[:-1], *program]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(opened.enter_context(process))
            opened.callback(process.kill)
        for process in processes:
            assert json.loads(process.stdout.readline())["event"] == "ready"
        yield processes


def trainer(node: Daemon, *, shared: bool) -> Tenant:
    return node.spin("4GiB", "0", tenant="trainer") if shared else Tenant(bare(node))


def speed(node: Daemon, pid: int, seconds: float) -> float:
    """Part of the device's time that the process gets during `seconds`."""
    before, start = node.busy(pid)[0], node.books()["wall_ns"]
    time.sleep(seconds)
    return (node.busy(pid)[0] - before) / (node.books()["wall_ns"] - start)


def played(node: Daemon, kernel_ns: int, *, shared: bool) -> tuple[list[float], float]:
    """(ms that each cell's first kernel waited; part of the device's time that the trainer had)."""
    with notebooks(node, shared=shared) as processes:
        training = trainer(node, shared=shared)
        try:
            training.tell(f"run {kernel_ns}")
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
            part = speed(node, training.pid, SECONDS - 1)
            answers = [json.loads(process.stdout.readline()) for process in processes]
        finally:
            training.close()
        waits = [wait / 1e6 for answer in answers for wait in answer["waits_ns"]]
        return waits, part


def test_idle_notebooks_cost_nothing(users: Daemon, report) -> None:
    training = trainer(users, shared=True)
    try:
        training.tell("run 500000")
        time.sleep(1)
        alone = speed(users, training.pid, 5)
        with notebooks(users, shared=True):
            time.sleep(1)
            beside = speed(users, training.pid, 5)
    finally:
        training.close()
    report(
        "a trainer beside 20 idle notebooks",
        f"{100 * beside / alone:.1f} % of its speed alone",
        f"alone: {100 * alone:.1f} % of the device",
        ">= 99 %",
        beside / alone >= 0.99,
    )


@pytest.mark.parametrize("kernel_ms", [0.5, 4, 20])
def test_what_a_cell_waits(users: Daemon, report, kernel_ms: float) -> None:
    waits, part = played(users, int(kernel_ms * 1e6), shared=True)
    sliced, _ = played(users, int(kernel_ms * 1e6), shared=False)
    bound = kernel_ms + LEASE_MS
    report(
        f"20 notebooks of 2 % beside a trainer with {kernel_ms:g} ms kernels: a cell's wait",
        f"{spread(waits, 1)}; the trainer has {100 * part:.0f} % of the device",
        f"the device's own slicing: {spread(sliced, 1)}",
        f"p99 <= {bound:g} ms",
        p99(waits) <= bound,
    )
