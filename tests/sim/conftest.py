"""A simulator per test, and C programs built against its driver."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated import Sim

from gpushare.paths import SIM_LIB_DIR

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[Sim]:
    """Not started yet."""
    sim = Sim(tmp_path / "sim")
    try:
        yield sim
    finally:
        sim.stop()


@pytest.fixture
def sim(simulator: Sim) -> Sim:
    """Two devices of 16 GiB, everything else as by default."""
    return simulator.start()


@pytest.fixture(scope="session")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the generated sim_api.h."""
    out = tmp_path_factory.mktemp("headers")
    types = [NATIVE / "api" / "gs_cuda_types.h", NATIVE / "api" / "gs_cuda.h"]
    generator = NATIVE / "sim" / "api" / "gen_stubs.py"
    subprocess.run([sys.executable, str(generator), str(out), *map(str, types)], check=True)
    return out


@pytest.fixture(scope="session")
def compiled(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """compiled("x.c") -> an executable linked with the simulated driver as a CUDA program is."""
    out = tmp_path_factory.mktemp("programs")
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = out / Path(name).stem
            include = [f"-I{path}" for path in (headers, NATIVE / "sim", NATIVE, HERE)]
            options = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
            command = ["gcc", *options, *include, str(HERE / name), "-o", str(made[name]), f"-L{SIM_LIB_DIR}"]
            subprocess.run([*command, "-l:libcuda.so.1"], check=True)
        return made[name]

    return build
