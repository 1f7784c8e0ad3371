"""Unmodified frameworks on the simulated device: the results are the same bare and in a share, and the share is
enforced.

Run by `make test-frameworks`; GPUSHARE_FRAMEWORKS_PYTHON names a Python that has PyTorch.
"""

import contextlib
import json
import os
import random
import re
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from run import running
from run.waiting import until

from gpushare.errors import GpushareError, RefusedError

PROGRAMS, ALONE = (Path(__file__).with_name(name) for name in ("programs.py", "alone.py"))
LIMIT = 4 << 30
# Of device time, for a program that uses less than 50 ms of it: a few kernels are charged by a mean of samples.
ALLOWANCE_NS = 1_000_000
ALLOCATORS = {
    "expandable_segments": "expandable_segments:True",
    "malloc_async": "backend:cudaMallocAsync",
}
NAMES = [
    "caching_allocator",
    "expandable_segments",
    "malloc_async",
    "private_pools",
    "memory_fraction",
    "out_of_memory",
    "pinned_memory",
    "streams",
    "threads",
    "graphs",
    "compiled",
    "optimizers",
    "data_loaders",
    "shared_tensors",
    "two_ranks",
    "profiler",
    "snapshot",
    "nvml",
    "transformer",
    "generation",
    "numba_alone",
    "triton_alone",
]


class Framework:
    """Two nodes, one for bare programs and one for shares, so that each device's books are of one kind."""

    def __init__(self, directory: Path, python: str) -> None:
        self.python = python
        self.bare = running.Daemon(directory / "bare").start()
        self.shares = running.Daemon(directory / "shares").start()
        self._home = directory / "home"  # compilers' caches
        self._home.mkdir()

    def stop(self) -> None:
        self.bare.stop()
        self.shares.stop()

    def start(self, command: list[str], name: str, **more: str) -> "subprocess.Popen[str]":
        env = {**os.environ, "HOME": str(self._home), "HOLD": "1", **more}
        env["TRITON_CACHE_DIR"] = env["TORCHINDUCTOR_CACHE_DIR"] = str(self._home / f"cache-{name}")
        if name in ALLOCATORS:
            env["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATORS[name]
        words = [*command, self.python, str(ALONE if name.endswith("_alone") else PROGRAMS), name]
        return subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def outcome(self, command: list[str], name: str, look=lambda: None, **more: str):
        """Returns what the program prints, and the result of `look`, which is called while the program still lives."""
        with self.start(command, name, **more) as child:
            line = child.stdout.readline()
            seen = look()
            _, answer = child.communicate(timeout=120)
        assert line and child.returncode == 0, f"{command[:3]}: {child.returncode}\n{answer[-4000:]}"
        return json.loads(line), seen

    def bare_command(self) -> list[str]:
        return [*running.GPUSHARE, "sim", "exec", "--socket", str(self.bare.client.path), "--"]


@pytest.fixture(scope="module")
def framework(tmp_path_factory):
    python = os.environ.get("GPUSHARE_FRAMEWORKS_PYTHON")
    assert python, "run `make test-frameworks`"
    made = Framework(tmp_path_factory.mktemp("frameworks"), python)
    yield made
    made.stop()


def metered(node) -> tuple[int, int]:
    """Returns the device time since the start, by the grants' processes and by the simulator."""
    return sum(grant["devices"][0]["busy_ns"] for grant in node.client.grants()), node.books()["busy_ns"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bare_and_in_a_share(framework, name):
    bare, _ = framework.outcome(framework.bare_command(), name)
    node = framework.shares
    before = node.books()["busy_ns"]
    shared, (ours, truth) = framework.outcome(node.run("4GiB", "50%"), name, lambda: metered(node))
    assert shared == bare
    assert node.books()["peak_bytes"] <= LIMIT
    assert ours == pytest.approx(truth - before, rel=0.02, abs=ALLOWANCE_NS)
    node.nothing_left()


class Suspender(threading.Thread):
    """Suspends whatever runs in the grants of a node at random instants, until it is stopped. `moved`: most bytes that
    were in host memory at once. `refusals`: why memory stayed on the device."""

    def __init__(self, node, seed: int) -> None:
        super().__init__()
        self._node, self._random, self._stop_now = node, random.Random(seed), threading.Event()
        self.suspended, self.moved, self.refusals = 0, 0, Counter()

    def run(self) -> None:
        while not self._stop_now.wait(self._random.uniform(0, 0.03)):
            for grant in self._node.client.grants():
                with contextlib.suppress(GpushareError):
                    self._suspend(grant["id"])

    def _suspend(self, grant: str) -> None:
        try:
            self._node.client.suspend(grant)
            self.suspended += 1
        except RefusedError as refusal:
            self.refusals[str(refusal).partition(": ")[2]] += 1
            return
        deadline = time.monotonic() + self._random.uniform(0, 0.1)
        while time.monotonic() < deadline:
            shown = self._node.client.grant(grant)["devices"][0]
            self.moved = max(self.moved, shown.get("memory_hosted_bytes", 0))
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


MOVES = [name for name in NAMES if name not in ("expandable_segments", "malloc_async", "two_ranks", "shared_tensors")]
"""Programs of cudaMalloc: other memory is fixed, and shared memory is refused in a grant that lends it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MOVES)
def test_the_same_when_it_is_suspended_at_random_instants(framework, name):
    seed = random.randrange(1 << 32)
    bare, _ = framework.outcome(framework.bare_command(), name)
    node = framework.shares
    suspender = Suspender(node, seed)
    suspender.start()
    try:
        command = node.run("4GiB", "50%", idle_memory="lend")
        moved, _ = framework.outcome(command, name, GPUSHARE_SIM_KERNEL_NS="3000000")
    finally:
        suspender.stop()
    assert moved == bare, f"seed {seed}"
    print(f"{name}: {suspender.suspended} times, at most {suspender.moved >> 20} MiB, not: {dict(suspender.refusals)}")
    node.nothing_left()


@pytest.mark.timeout(300)
def test_a_longer_cache_takes_longer(framework):
    """By the simulator's books: the kernels of attention grow with what they read."""
    times = []
    for length in ("256", "1024", "4096"):
        before = framework.bare.books()["busy_ns"]
        framework.outcome(framework.bare_command(), "one_token", CACHED=length)
        times.append(framework.bare.books()["busy_ns"] - before)
    assert times == sorted(set(times))


@pytest.mark.timeout(300)
def test_two_training_loops(framework):
    """They get 75 and 25 % by the simulator's books; once killed, nothing of them is left."""
    node = framework.shares
    loops = [framework.start(node.run("2GiB", share), "forever") for share in ("75%", "25%")]
    pids = [loop.pid for loop in loops]
    try:
        assert [loop.stdout.readline() for loop in loops] == ["begun\n"] * 2
        until(lambda: min(node.busy(*pids)) > 0, "both run", 60)
        shares = node.shares(10, *pids)
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()
    assert shares == pytest.approx([750, 250], abs=20)
    node.nothing_left()


@pytest.mark.timeout(300)
def test_the_examples_side_by_side(framework):
    """examples/side_by_side.sh, unchanged: both work at once, training uses what inference leaves, and both end."""
    node = framework.shares
    path = f"{Path(running.GPUSHARE[0]).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": framework.python, "GPUSHARE_SOCKET": str(node.layout.socket)}
    script = Path(__file__).parents[2] / "examples" / "side_by_side.sh"
    done = subprocess.run([script, "--requests", "50"], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^infer: 50 requests: p50 .*\ntrain: step \d+: ", done.stdout, re.MULTILINE), done.stdout
    ids = {
        grant["class"]: grant["id"]
        for grant in sorted(node.client.grants(ended=True), key=lambda one: one["created_ns"])
    }
    used = {row["grant"]: row for row in node.client.usage(by="grant")["rows"]}
    assert used[ids["interactive"]]["busy_ns"] > 0
    assert used[ids["training"]]["borrowed_ns"] > used[ids["training"]]["guaranteed_ns"] > 0
    node.nothing_left()


def began(node, child) -> bool:
    """Whether a process of the child's group has device memory, or the child has printed its results."""
    for row in node.books()["processes"]:
        with contextlib.suppress(ProcessLookupError):
            if row["bytes"] and os.getpgid(row["pid"]) == child.pid:
                return True
    return bool(select.select([child.stdout], [], [], 0)[0])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [0, 0.3, 1, 3], ids=str)
def test_killed_at_any_moment(framework, seconds):
    """Programs with children and shared memory: nothing of them is left."""
    node = framework.shares
    names = ["two_ranks", "data_loaders", "shared_tensors", "malloc_async"]
    crew = [framework.start(node.run("2GiB", "20%"), name) for name in names]
    for child in crew:
        until(lambda child=child: began(node, child), "it uses the device", 100)
        time.sleep(seconds / len(crew))
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    node.nothing_left()
