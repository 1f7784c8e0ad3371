"""The interposer's threads and the program's threads in it, under ThreadSanitizer, with changing leases and daemons."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from pages.lending import Lender
from run import built
from run.driverclient import truth

from gpushare import paths
from gpushare._native import lib

HERE = Path(__file__).resolve().parent
INTERPOSER, INCLUDE = HERE.parents[2] / "native" / "interposer", HERE.parents[2] / "native"


@pytest.fixture(scope="module")
def race_client() -> Path:
    return built.program("race_client", "thread")


@pytest.mark.parametrize("seconds", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_no_races(
    race_client: Path,
    grant: Grant,
    sim: Simulator,
    environment: Callable[..., dict[str, str]],
    tmp_path: Path,
    seconds: int,
) -> None:
    env = environment(grant, "") | {"TSAN_OPTIONS": f"exitcode=66 suppressions={HERE / 'tsan.supp'}"}
    env["GPUSHARE_GRANT_DIR"] = str(grant.directory)
    with open(tmp_path / "errors", "w+") as errors:
        process = subprocess.Popen(
            [race_client, paths.SPIN_PTX, str(seconds)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end and process.poll() is None:
            turn += 1
            grant.revoke()
            time.sleep(0.003)
            grant.lease()
            time.sleep(0.01)
            if turn % 60 == 0:
                grant.daemon_dies()
                time.sleep(0.3)
                grant.daemon_returns()
        grant.lease()
        over = process.stdout.readline()
        held = grant.charged(pid=process.pid), truth(sim, process.pid)
        process.communicate(timeout=60)
        status = process.returncode
        errors.seek(0)
        assert status == 0, errors.read()[:20000]
    assert over == b"over\n"
    assert held == (0, 0), "what ended is out of both books"
    assert grant.slot().launches > 100
    assert sim.busy_ns(process.pid) > 0


def test_no_races_while_memory_moves(
    race_client: Path, sim: Simulator, environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    grant = Lender(tmp_path / "lender", sim)
    grant.lease()
    env = environment(grant, "") | {"TSAN_OPTIONS": f"exitcode=66 suppressions={HERE / 'tsan.supp'}"}
    moved = 0
    with open(tmp_path / "errors", "w+") as errors:
        process = subprocess.Popen(
            [race_client, paths.SPIN_PTX, "3"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        end = time.monotonic() + 3
        while time.monotonic() < end and process.poll() is None:
            if grant.limits.slots_high:
                moved += grant.suspend() == lib.GS_MOVED
                grant.resume(lib.GS_PREPARED if moved % 2 else lib.GS_RESIDENT)
            time.sleep(0.01)
        over = process.stdout.readline()
        held = grant.charged(pid=process.pid), truth(sim, process.pid)
        process.communicate(timeout=60)
        errors.seek(0)
        assert process.returncode == 0, errors.read()[:20000]
    assert over == b"over\n"
    assert held == (0, 0), "what ended is out of both books"
    assert moved > 2, "on a busy machine, a few times"
    grant.close()
