"""A simulator and hand-made grants for tests of device time."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator, Tenant
from run import built

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "native"


@pytest.fixture(scope="session")
def program() -> Callable[[str], Path]:
    """The path of a program of this directory, by the name of its source file."""
    return built.program


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
def run(program: Callable[[str], Path]) -> Iterator[Callable[..., Tenant]]:
    """run(name, grant, sim, mode, arguments...): a test program, with a grant or without."""
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    made: list[Tenant] = []

    def start(
        name: str, grant: Grant | None, sim: Simulator, *arguments: object, env: dict[str, str] | None = None
    ) -> Tenant:
        made.append(Tenant(program(name), grant, sim, *arguments, env=env or {}))
        return made[-1]

    yield start
    for tenant in made:
        tenant.kill()


@pytest.fixture
def run_tenant(run: Callable[..., Tenant]) -> Callable[..., Tenant]:
    return partial(run, "tenant")
