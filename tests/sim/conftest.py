"""A simulator per test, and C programs built against its driver."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run import built
from run.simulated import Sim


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[Sim]:
    """A simulator that has not been started."""
    sim = Sim(tmp_path / "sim")
    try:
        yield sim
    finally:
        sim.stop()


@pytest.fixture
def sim(simulator: Sim) -> Sim:
    """Two devices of 16 GiB, otherwise the defaults."""
    return simulator.start()


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], Path]:
    """Gives compiled("x.c"), which returns an executable linked with the simulated driver as CUDA programs are."""
    return lambda source: built.program(Path(source).stem)
