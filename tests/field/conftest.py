"""Tests of failures seen in the field: a real daemon where the failure is about the whole, a hand-made grant where it
is about one moment."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driverclient import Client
from handmade import Grant, Simulator

from gpushare import paths

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parent / "interposer" / "client.c"
NATIVE = HERE.parents[1] / "native"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a test program once."""
    directory = tmp_path_factory.mktemp("programs")

    def make(source: Path) -> Path:
        program = directory / source.stem
        if not program.exists():
            include = [f"-I{NATIVE}", f"-I{NATIVE / 'sim'}"]
            driver = paths.SIM_LIB_DIR / "libcuda.so.1"
            subprocess.run(["gcc", "-O1", *include, source, "-o", program, driver, "-ldl", "-pthread"], check=True)
        return program

    return make


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    simulator = Simulator(tmp_path / "sim")
    yield simulator
    simulator.stop()


@pytest.fixture
def grant(tmp_path: Path, sim: Simulator) -> Iterator[Grant]:
    """2 GiB of the 4 GiB device, with a lease."""
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    made = Grant(tmp_path / "grant", sim)
    made.lease()
    yield made
    made.close()


@pytest.fixture
def start(build: Callable[..., Path], sim: Simulator) -> Iterator[Callable[..., Client]]:
    """A process that calls the driver on command; `grant` None: without gpushare, on the same device."""
    made: list[Client] = []

    def run(grant: Grant | None) -> Client:
        env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR)}
        if grant is None:
            env["GPUSHARE_SIM_DIR"] = str(sim.directory)
        else:
            env |= {"LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        made.append(Client(build(CLIENT), "proc", env))
        return made[-1]

    yield run
    for client in made:
        client.kill()
