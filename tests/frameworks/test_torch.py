"""Unmodified PyTorch on the simulated device: the same comes out bare and in a share, and the share is held.

Run by `make test-frameworks`, with the Python that has PyTorch in GPUSHARE_FRAMEWORKS_PYTHON.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import running
from waiting import until

PROGRAMS = Path(__file__).with_name("programs.py")
LIMIT = 4 << 30
# Of device time, where a program has less than 50 ms of it: what a few kernels are charged is a mean of samples.
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
]


class Framework:
    """Two nodes: one that programs use bare, one that gives shares, so that each device's books are of one kind."""

    def __init__(self, directory: Path, python: str) -> None:
        self.python = python
        self.bare = running.Daemon(directory / "bare").start()
        self.shares = running.Daemon(directory / "shares").start()
        self._home = directory / "home"  # compilers keep what they made there
        self._home.mkdir()

    def stop(self) -> None:
        self.bare.stop()
        self.shares.stop()

    def start(self, command: list[str], name: str, **more: str) -> "subprocess.Popen[str]":
        env = {**os.environ, "HOME": str(self._home), "HOLD": "1", **more}
        env["TRITON_CACHE_DIR"] = env["TORCHINDUCTOR_CACHE_DIR"] = str(self._home / f"cache-{name}")
        if name in ALLOCATORS:
            env["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATORS[name]
        words = [*command, self.python, str(PROGRAMS), name]
        return subprocess.Popen(
            words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def outcome(self, command: list[str], name: str, look=lambda: None):
        """What a program prints, and what `look` sees while it still lives."""
        with self.start(command, name) as child:
            line = child.stdout.readline()
            seen = look()
            _, said = child.communicate(timeout=120)
        assert line and child.returncode == 0, f"{command[:3]}: {child.returncode}\n{said[-4000:]}"
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
    """Device time since the start: what the grants' processes say, and the simulator."""
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


@pytest.mark.timeout(300)
def test_two_training_loops(framework):
    """At 75 and 25 %, by the simulator's books; killed, nothing is left."""
    node = framework.shares
    loops = [framework.start(node.run("2GiB", share), "forever") for share in ("75%", "25%")]
    assert [loop.stdout.readline() for loop in loops] == ["begun\n"] * 2
    pids = [loop.pid for loop in loops]
    until(lambda: min(node.busy(*pids)) > 0, "both run", 60)
    shares = node.shares(10, *pids)
    for loop in loops:
        os.kill(loop.pid, signal.SIGKILL)
        loop.communicate()
    assert shares == pytest.approx([750, 250], abs=20)
    node.nothing_left()
