"""The driver's own memory limits, which drivers from r615 on have: they stop a program that bypasses the interposer.
The simulator's books are the judge."""

import json
import os
import subprocess
import sys

import pytest
from run import built
from run.built import SUPPORT
from run.running import GPUSHARE, copied_driver, start
from run.waiting import until

from gpushare import paths
from gpushare.enforce import cgroup
from gpushare.enforce.cgroup import Hierarchies

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(Hierarchies.of().unified is None, reason="needs cgroup v2"),
]

ATTACK = SUPPORT / "hostile" / "attack.py"
LIBRARY = paths.SIM_LIB_DIR / "libcuda.so.1"
MIB = 1 << 20


def with_driver(make_daemon, tmp_path, release: str):
    config = tmp_path / "gpushare.toml"
    config.write_text('[audit]\nevader = "tell"\n')  # only the wall may stop evaders
    daemon = make_daemon("--simulate", "2x16GiB", "--config", str(config))
    daemon.env["GPUSHARE_SIM_DRIVER"] = release
    return daemon.start()


@pytest.fixture
def daemon(make_daemon, tmp_path):
    return with_driver(make_daemon, tmp_path, "615")


def why(walls, name="memory") -> str:
    return next(wall["why"] for wall in walls if wall["name"] == name)


class Evader:
    """A program in a grant that clears its environment and loads a copy of the driver."""

    def __init__(self, daemon, trick, *sizes, memory="512MiB", hold=True) -> None:
        words = trick, copied_driver(daemon.state_dir), *sizes
        bare = ["env", "-i", f"GPUSHARE_SIM_DIR={daemon.sim_dir}", *(["ATTACK_HOLD=1"] if hold else [])]
        self.process = subprocess.Popen(
            daemon.run(memory, "10%", *bare, sys.executable, str(ATTACK), *map(str, words), gpu="0"),
            env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.report = json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.process.communicate("\n", timeout=30)


@pytest.mark.promise("memory-wall")
def test_an_evader_stays_within_its_grant(daemon):
    assert why(daemon.client.node()["walls"]) == ""
    with Evader(daemon, "driver", 4096) as evader:
        [grant] = daemon.client.grants()
        assert why(grant["walls"]) == ""
        assert evader.report["last"] == 2, "CUDA_ERROR_OUT_OF_MEMORY"
        books = daemon.books()
        assert 448 * MIB <= books["bytes"] <= 512 * MIB
        assert books["peak_bytes"] <= 512 * MIB


def test_so_does_a_crowd_of_them(daemon):
    with Evader(daemon, "crowd", 6, 1024, hold=False) as evader:
        assert 0 < evader.report["mib"] <= 512
        assert daemon.books()["peak_bytes"] <= 512 * MIB


def test_it_follows_a_resize(daemon):
    with Evader(daemon, "driver", 4096) as evader:
        [grant] = daemon.client.grants()
        assert evader.report["last"] == 2
        daemon.client.resize(grant["id"], memory="1GiB")
        assert why(daemon.client.grant(grant["id"])["walls"]) == ""
        more = subprocess.run(
            ["env", "-i", f"GPUSHARE_SIM_DIR={daemon.sim_dir}", sys.executable, str(ATTACK), "driver", LIBRARY, "4096"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: daemon.cgroup(grant["id"]).add(os.getpid()),
        )  # fmt: skip
        assert json.loads(more.stdout)["last"] == 2
        assert 960 * MIB <= daemon.books()["peak_bytes"] <= 1024 * MIB


def test_a_daemon_that_was_killed_leaves_it(daemon):
    with Evader(daemon, "driver", 4096):
        daemon.kill()
        daemon.start()
        [grant] = daemon.client.grants()
        assert why(grant["walls"]) == ""
        assert max(row["peak_bytes"] for row in daemon.books()["processes"]) <= 512 * MIB


def test_an_older_driver_has_none_and_the_node_reports_it(make_daemon, tmp_path):
    """The evader then gets all it asks for, which is what the wall prevents."""
    daemon = with_driver(make_daemon, tmp_path, "595")
    assert "driver 595 has no limits per cgroup" in why(daemon.client.node()["walls"])
    with Evader(daemon, "driver", 1024) as evader:
        [grant] = daemon.client.grants()
        assert why(grant["walls"]) == why(daemon.client.node()["walls"])
        assert evader.report["mib"] == 1024
    until(lambda: daemon.books()["bytes"] == 0, "the memory comes back")


NVML = """
import pathlib, sys
from types import SimpleNamespace
from gpushare.errors import FailedError
from gpushare.node import limits
from gpushare.node.nvml import load
nvml, group = load(), pathlib.Path(sys.argv[1])
handle = nvml.nvmlDeviceGetHandleByIndex(0)
print(nvml.nvmlSystemGetDriverVersion())
try:
    limits.limit(nvml, handle, group, 1 << 28)
    got = nvml.c_nvmlGetMemoryLimits_v1_t()
    got.nameSpace = str(group).encode()
    nvml.nvmlDeviceGetMemoryLimits_v1(handle, got)
    print(got.hardLimit, got.softLimit, limits.used(nvml, handle, group))
    limits.limit(nvml, handle, group, None)
    nvml.nvmlDeviceGetMemoryLimits_v1(handle, got)
    print(got.hardLimit == limits.MAX)
    limits.limit(nvml, handle, pathlib.Path("/tmp"), 1 << 28)
except FailedError as error:
    print(error)
"""


@pytest.mark.parametrize("release", ["615", "595"])
def test_the_calls_of_nvml(make_daemon, tmp_path, release):
    """The calls made for real devices, tested against the simulated NVML."""
    daemon = with_driver(make_daemon, tmp_path, release)
    group = cgroup.Cgroup(Hierarchies.of().unified / f"gst-limits-{os.getpid()}", v2=True)
    group.make()
    env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "GPUSHARE_SIM_DIR": daemon.sim_dir}
    try:
        done = subprocess.run(
            [sys.executable, "-c", NVML, str(group.path)], env=env, capture_output=True, text=True, check=True
        )
    finally:
        group.remove()
    answer = done.stdout.splitlines()
    assert answer[0] == f"{release}.0"
    if release == "615":
        assert answer[1:3] == [f"{1 << 28} 0 0", "True"]
    assert "the driver has no limits per cgroup here" in answer[-1]


def test_workloads_of_one_grant_that_hold_too_much_together_are_found(make_daemon):
    """Each workload has its own cgroup, which the driver allows all of the grant's memory. The audit finds the sum even
    if the driver does not list the memory of each process."""
    daemon = make_daemon("--simulate", "1x16GiB").patch(
        "from dataclasses import replace",
        "from gpushare.node.simulated import SimulatedBackend as Backend",
        "said = Backend.processes",
        "Backend.processes = lambda *of: [replace(row, memory_bytes=None) for row in said(*of)]",
    )
    daemon.env["GPUSHARE_SIM_DRIVER"] = "615"
    daemon.start()
    assert why(daemon.client.node()["walls"]) == ""
    grant = daemon.client.create(memory="512MiB", time="10%", keep=True)["id"]
    command = [*GPUSHARE, "run", "--socket", str(daemon.layout.socket), "--grant", grant, "--"]
    command += [str(built.program("newlinkmap")), str(copied_driver(daemon.state_dir)), "joined"]
    # Each process may hold SLACK_BYTES (gpushare.policy.audit.audit) beyond its share, as code that the driver loaded.
    all_of_them = [start(command, daemon.env, stderr=False) for _ in range(4)]
    try:
        for one in all_of_them:
            assert json.loads(one.stdout.readline()) == {"joined": 0, "init": 0}
            one.stdin.write("take 448\n")
            one.stdin.flush()
            assert json.loads(one.stdout.readline()) == {"mib": 448, "last": 0}, "it is within its cgroup's limit"
        [found] = until(lambda: daemon.findings(kind="excess"), "it is found")
        assert (found["grant"], found["act"]) == (grant, "frozen")
        assert found["memory_bytes"] >= 4 * 448 * MIB
    finally:
        daemon.client.release(grant)
        for one in all_of_them:
            one.kill()
            one.communicate()
