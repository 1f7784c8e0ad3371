"""The same library for 64-bit Arm: built with a cross compiler, run under emulation against a simulator and a grant of
this machine. The host kernel provides shared pages, sockets and futexes, so both sides are real."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run import built
from run.driverclient import CONTEXT, LIMIT, OUT_OF_MEMORY, WAYS, Client, truth
from run.waiting import until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SYSTEM = "/usr/aarch64-linux-gnu"
EMULATOR = ("qemu-aarch64-static", "-L", SYSTEM)

pytestmark = pytest.mark.skipif(platform.machine() == "aarch64", reason="what every other test runs is this build")


@pytest.fixture(scope="module")
def build() -> Path:
    return built.file("native", "arm").parent


@pytest.fixture(scope="module")
def driver(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("driver")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(build / "native" / "sim" / name, directory)
    return directory


@pytest.fixture(scope="module")
def program() -> Path:
    return built.program("client", "arm")


@pytest.fixture
def arm_grant(grant: Grant, driver: Path) -> Grant:
    (grant.directory / "driver").unlink()
    (grant.directory / "driver").symlink_to(driver)
    return grant


@pytest.fixture
def start(program: Path, driver: Path) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def run(grant: Grant, way: str, **more: str) -> Client:
        env = {**os.environ, "GPUSHARE_GRANT_DIR": str(grant.directory), "LD_LIBRARY_PATH": str(driver), **more}
        made.append(Client(program, way, env, *EMULATOR))
        return made[-1]

    yield run
    for client in made:
        client.kill()


def test_old_symbols_only(build: Path) -> None:
    for name in ("libgpushare.so", "libgpushare-ml.so"):
        library = build / "native" / "interposer" / name
        table = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
        # 2.17 is the first glibc version for this architecture
        assert set(re.findall(r"GLIBC_([0-9.]+)", table)) == {"2.17"}


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_charged_and_capped(
    build: Path, arm_grant: Grant, sim: Simulator, start: Callable[..., Client], way: str
) -> None:
    client = start(arm_grant, way, QEMU_SET_ENV=f"LD_PRELOAD={build / 'native' / 'interposer' / 'libgpushare.so'}")
    client.ok("init", "retain 0", "alloc 1000000")
    assert arm_grant.charged() == truth(sim, client.pid) == CONTEXT + 1_000_448
    assert client("total 0").one == LIMIT
    assert client(f"alloc {LIMIT}").result == OUT_OF_MEMORY
    client.ok("free 0", "release 0")
    assert arm_grant.charged() == truth(sim, client.pid) == 0


def test_lock_and_clock() -> None:
    """The CPU counter against the clock, and the biased lock, which its owner thread takes without an atomic
    exchange."""
    subprocess.run([*EMULATOR, built.program("parts_unit", "arm"), "1"], check=True, timeout=60)


@pytest.mark.xdist_group("timing")
def test_work_waits_for_the_lease_and_is_metered(
    build: Path, arm_grant: Grant, sim: Simulator, driver: Path, program: Path
) -> None:
    arm_grant.revoke()
    env = {
        **os.environ,
        "GPUSHARE_GRANT_DIR": str(arm_grant.directory),
        "LD_LIBRARY_PATH": str(driver),
        "QEMU_SET_ENV": f"LD_PRELOAD={build / 'native' / 'interposer' / 'libgpushare.so'}",
    }
    spin = build / "native" / "clients" / "gpushare-spin"
    command = [*EMULATOR, spin, "--kernel-ns", "200000", "--seconds", "0.3"]
    tenant = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        until(lambda: arm_grant.slot().waiting == 1, "it waits for the lease")
        assert sim.busy_ns(tenant.pid) == 0
        arm_grant.lease()
        assert tenant.wait(30) == 0
        busy, metered = sim.busy_ns(tenant.pid), arm_grant.slot().busy_ns
        assert busy > 0
        # An emulated program learns late that a kernel has ended.
        assert metered == pytest.approx(busy, rel=0.3)
    finally:
        tenant.kill()
        tenant.communicate()
