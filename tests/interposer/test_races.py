"""The interposer's threads, and the program's in it, under ThreadSanitizer, with leases and daemons that change."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from driverclient import truth
from handmade import Grant, Simulator
from interposed import slot_bytes

from gpushare import paths

HERE = Path(__file__).resolve().parent
INTERPOSER, INCLUDE = HERE.parents[1] / "native" / "interposer", HERE.parents[1] / "native"
SECONDS = 5


@pytest.fixture(scope="module")
def race_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with the interposer's objects in it: a sanitizer's runtime cannot come with a preloaded library."""
    directory = tmp_path_factory.mktemp("race")
    types = [INCLUDE / "api" / name for name in ("gs_cuda_types.h", "gs_cuda.h")]
    subprocess.run([sys.executable, INTERPOSER / "hooks" / "gen_hooks.py", directory, *types], check=True)
    sources = [
        HERE / "race_client.c",
        *(file for file in sorted(INTERPOSER.rglob("*.c")) if file.parent.name != "nvml" and file.name != "name.c"),
        *INCLUDE.glob("[ip]*age/*.c"),
        directory / "hooks.c",
        directory / "forward.S",
    ]
    flags = ["-O1", "-g", "-D_GNU_SOURCE", "-fsanitize=thread", f"-I{INCLUDE}", f"-I{directory}"]
    program = directory / "race_client"
    subprocess.run(["gcc", *flags, *sources, "-o", program, "-pthread", "-ldl"], check=True)
    return program


def test_no_races(
    race_client: Path, grant: Grant, sim: Simulator, environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    env = environment(grant, "") | {"TSAN_OPTIONS": f"exitcode=66 suppressions={HERE / 'tsan.supp'}"}
    env["GPUSHARE_GRANT_DIR"] = str(grant.directory)
    with open(tmp_path / "errors", "w+") as errors:
        process = subprocess.Popen(
            [race_client, paths.SPIN_PTX, str(SECONDS)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        end, turn = time.monotonic() + SECONDS, 0
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
        held = slot_bytes(grant, process.pid), truth(sim, process.pid)
        process.communicate(timeout=60)
        status = process.returncode
        errors.seek(0)
        assert status == 0, errors.read()[:20000]
    assert over == b"over\n"
    assert held == (0, 0), "what ended is out of both books"
    assert grant.slot().launches > 100
    assert sim.busy_ns(process.pid) > 0
