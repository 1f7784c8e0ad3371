"""The tenant programs alone, on a bare simulated device: no daemon, no grant, no interposer."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.paths import LIB_DIR, SIM_BINARY, SIM_LIB_DIR, SPIN_PTX, WORDS_PTX

MIB = 1 << 20


@pytest.fixture(scope="module")
def device() -> Iterator[dict[str, str]]:
    """The environment of a process on a simulated device with 1 GiB."""
    directory = Path(tempfile.mkdtemp(prefix="gss-"))
    command = [SIM_BINARY, "--socket", directory / "sim.sock", "--devices", "1x1GiB"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as simulator:
        until((directory / "sim.sock").exists, "the simulator listens", 10)
        yield {**os.environ, "GPUSHARE_SIM_DIR": str(directory), "LD_LIBRARY_PATH": str(SIM_LIB_DIR)}
        simulator.kill()
    shutil.rmtree(directory)


PROGRAMS = {"c": [str(LIB_DIR / "gpushare-spin")], "python": [sys.executable, str(LIB_DIR / "spin.py")]}


@pytest.fixture(params=sorted(PROGRAMS))
def spin(request, device):
    if request.param == "python":
        pytest.importorskip("cuda.bindings")

    def run(*arguments: str, commands: str = "") -> tuple[int, list[dict]]:
        result = subprocess.run(
            [*PROGRAMS[request.param], *arguments],
            input=commands,
            env=device,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_runs_for_a_while(spin):
    status, (ready, alloc, idle) = spin("--alloc", "64MiB", "--kernel-ns", "100000", "--seconds", "0.4")
    assert status == 0
    assert (ready["event"], ready["device"]) == ("ready", "gpushare simulated GPU")
    assert (alloc["ok"], alloc["held_bytes"]) == (True, 64 * MIB)
    # At most 0.4 s of device time, plus the work in flight at the end.
    assert 0 < idle["kernels"] < 6000


def test_commands(spin):
    commands = "alloc 1MiB\nmemory\nfill 8M 2M\nrun 1000\nidle\nfree\nnonsense\nalloc\nquit\nalloc 1\n"
    status, answers = spin(commands=commands)
    assert status == 0
    assert [answer["event"] for answer in answers] == [
        "ready", "alloc", "memory", "alloc", "run", "idle", "free", "unknown", "unknown",
    ]  # fmt: skip
    assert answers[2]["total_bytes"] == 1 << 30
    assert answers[2]["free_bytes"] <= (1 << 30) - MIB
    assert answers[3]["held_bytes"] == 9 * MIB
    assert answers[6]["held_bytes"] == 0


def test_out_of_memory_is_an_answer(spin):
    _, (_, whole, pieces, after) = spin(commands="alloc 2GiB\nfill 2GiB 64MiB\nfree\n")
    assert (whole["ok"], whole["error"], whole["held_bytes"]) == (False, 2, 0)
    assert (pieces["ok"], pieces["name"]) == (False, "CUDA_ERROR_OUT_OF_MEMORY")
    # All but the context, to the last piece that fits.
    assert (1 << 30) - 128 * MIB < pieces["held_bytes"] < 1 << 30
    assert after["held_bytes"] == 0


def test_ends_with_its_stdin(spin):
    assert spin(commands="run 1000\n")[0] == 0


def test_device_that_is_not_there(spin):
    status, answers = spin("--device", "7")
    assert status == 1
    assert answers[-1]["event"] == "error"


def test_without_any_device(spin, device, tmp_path):
    device = {**device, "GPUSHARE_SIM_DIR": str(tmp_path)}
    result = subprocess.run(
        [LIB_DIR / "gpushare-spin"], env=device, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 1
    assert json.loads(result.stdout)["call"] == "cuInit"


@pytest.mark.parametrize("arguments", [["--alloc", "12 GiBs"], ["--alloc"], ["--colour", "red"], ["--alloc", "-3"]])
def test_usage(device, arguments):
    result = subprocess.run([LIB_DIR / "gpushare-spin", *arguments], env=device, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("usage: ")


def test_duty(device):
    command = [LIB_DIR / "gpushare-spin", "--kernel-ns", "100000", "--seconds", "0.6"]
    kernels = []
    for duty in ("100", "25"):
        result = subprocess.run([*command, "--duty", duty], env=device, capture_output=True, text=True, check=True)
        kernels.append(json.loads(result.stdout.splitlines()[-1])["kernels"])
    assert kernels[1] < 0.75 * kernels[0]


def test_ptx_compiles_for_real_devices(tmp_path):
    ptxas = shutil.which("ptxas", path="/usr/local/cuda-13.0/bin:/usr/local/cuda/bin:" + os.environ["PATH"])
    if ptxas is None:
        pytest.skip("no ptxas on this machine")
    for architecture in ("sm_75", "sm_90"):
        for text in (SPIN_PTX, WORDS_PTX):
            command = [ptxas, "-arch", architecture, text, "-o", tmp_path / "compiled.cubin"]
            subprocess.run(command, check=True, capture_output=True)


def test_links_against_the_real_name_only():
    text = subprocess.run(
        ["readelf", "-d", LIB_DIR / "gpushare-spin"], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "NEEDED" in line]
    assert sorted(needed) == ["libc.so.6", "libcuda.so.1"]
    assert "RUNPATH" not in text and "RPATH" not in text
