"""Programs on the stand-in for the runtime: some written by hand as nvcc would generate them, some compiled by nvcc if
it is present."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from run import built

from gpushare.paths import SIM_LIB_DIR

HERE = Path(__file__).parent
RUNTIME = SIM_LIB_DIR / "libcudart.so.13"
NVCC = shutil.which("nvcc")


def test_a_program_with_nvccs_calls(sim: Any, tmp_path: Path) -> None:
    program = built.program("cudart")
    assert sim.run(program) == "2\n"


def test_without_a_driver_there_is_no_device(tmp_path: Path, sim: Any) -> None:
    program, alone = built.program("cudart_none"), tmp_path / "alone"
    alone.mkdir()
    shutil.copy(RUNTIME, alone)
    assert sim.run(program, env={"LD_LIBRARY_PATH": str(alone)}) == "0 0 35\n"


def test_only_runtime_names_are_exported_under_the_runtimes_version() -> None:
    done = subprocess.run(["readelf", "--dyn-syms", "-W", RUNTIME], capture_output=True, text=True, check=True)
    defined = [line.split()[7] for line in done.stdout.splitlines() if " GLOBAL " in line and " UND " not in line]
    functions = [name for name in defined if name != "libcudart.so.13"]
    assert functions
    for name in functions:
        assert name.startswith(("cuda", "__cuda"))
        assert name.endswith("@@libcudart.so.13")


@pytest.mark.skipif(NVCC is None, reason="no nvcc here")
@pytest.mark.parametrize(
    "options", [["-cudart", "none", "-Xlinker", str(RUNTIME)], ["-cudart", "shared"]], ids=["none", "shared"]
)
def test_a_program_that_nvcc_made(sim: Any, tmp_path: Path, options: list[str]) -> None:
    assert NVCC is not None
    release = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    if "release 13." not in release:
        pytest.skip("the stand-in is for programs of CUDA 13")
    program = tmp_path / "program"
    subprocess.run([NVCC, *options, "-o", program, HERE / "runtime.cu"], check=True)
    assert sim.run(program) == "ok\n"
