"""What the two hooks alone add to a container's start by runc; test_engine_start.py measures whole starts."""

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from run.running import Daemon

from gpushare import paths


def bundle(directory: Path) -> Path:
    (directory / "rootfs" / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", directory / "rootfs" / "bin" / "true")
    subprocess.run(["runc", "spec"], cwd=directory, check=True)
    config = json.loads((directory / "config.json").read_text())
    config["process"]["args"] = ["/bin/true"]
    config["process"]["terminal"] = False
    config["process"].pop("rlimits", None)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _runc(command: list[str], bundle: Path) -> float:
    """Milliseconds of one whole container run."""
    at = time.perf_counter()
    subprocess.run([*command, "run", "--bundle", str(bundle), f"bench-{os.getpid()}"], check=True)
    return 1000 * (time.perf_counter() - at)


def _pair(number: int, one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Runs both, in alternating order: the second of two finds warmer caches."""
    if number % 2:
        second = other()
        return one(), second
    return one(), other()


def test_hook_cost(node: Daemon, report, tmp_path: Path) -> None:
    """The same container without and with the two hooks, in alternating pairs; its grant is created beforehand."""
    plain, hooked = bundle(tmp_path / "plain"), bundle(tmp_path / "hooked")
    config = json.loads((hooked / "config.json").read_text())
    pairs: list[tuple[float, float]] = []
    for number in range(42):
        grant = node.client.create(memory="1GiB", time=10, ttl_seconds=600)["id"]
        node.client.bind(grant, "container")
        config["hooks"] = {
            stage: [
                {"path": str(paths.HOOK), "args": ["hook", verb, "--grant", grant, "--socket", str(node.client.path)]}
            ]
            for stage, verb in (("createRuntime", "create-runtime"), ("poststop", "poststop"))
        }
        (hooked / "config.json").write_text(json.dumps(config))
        pairs.append(_pair(number, lambda: _runc(["runc"], plain), lambda: _runc(["runc"], hooked)))
    added = statistics.median(b - a for a, b in pairs)
    alone = statistics.median(a for a, _ in pairs)
    report("hooks in a runc run", f"+{added:.1f} ms", f"runc run: {alone:.1f} ms", "<= 5 ms", added <= 5)
