"""A simulator and hand-made grants for the interposer's time half."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from handmade import Grant, Simulator, Tenant

from gpushare import paths

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "native" / "include"


@pytest.fixture(scope="session")
def tenant_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("tenant") / "tenant"
    driver = paths.SIM_LIB_DIR / "libcuda.so.1"
    subprocess.run(["gcc", "-O1", "-pthread", f"-I{INCLUDE}", HERE / "tenant.c", "-o", program, driver], check=True)
    return program


@pytest.fixture
def make_sim(tmp_path: Path) -> Iterator[Callable[..., Simulator]]:
    made: list[Simulator] = []

    def make(devices: str = "1x4GiB", *options: str) -> Simulator:
        made.append(Simulator(tmp_path / f"sim{len(made)}", devices, *options))
        return made[-1]

    yield make
    for sim in made:
        sim.stop()


@pytest.fixture
def sim(make_sim: Callable[..., Simulator]) -> Simulator:
    return make_sim()


@pytest.fixture
def make_grant(tmp_path: Path) -> Iterator[Callable[..., Grant]]:
    made: list[Grant] = []

    def make(sim: Simulator, **options: int) -> Grant:
        made.append(Grant(tmp_path / f"grant{len(made)}", sim, **options))
        return made[-1]

    yield make
    for grant in made:
        grant.close()


@pytest.fixture
def grant(make_grant: Callable[..., Grant], sim: Simulator) -> Grant:
    return make_grant(sim)


@pytest.fixture
def run_tenant(tenant_program: Path) -> Iterator[Callable[..., Tenant]]:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    made: list[Tenant] = []

    def run(grant: Grant | None, sim: Simulator, *arguments: object, env: dict[str, str] | None = None) -> Tenant:
        made.append(Tenant(tenant_program, grant, sim, *arguments, env=env or {}))
        return made[-1]

    yield run
    for tenant in made:
        tenant.kill()
