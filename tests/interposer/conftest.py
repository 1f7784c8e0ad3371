"""Programs under the interposer with a simulator and hand-made grants."""

import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from pages.lending import Lender
from run import built
from run.driverclient import Client
from run.interposed import Faults, Interpose, Interposed
from run.viewer import Inside

from gpushare import paths


@pytest.fixture(scope="session")
def client_program() -> Path:
    return built.program("client")


@pytest.fixture(scope="session")
def memory_program() -> Path:
    return built.program("memory_client")


@pytest.fixture(scope="session")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the interposer in place of libcuda.so.1, as in a container."""
    directory = tmp_path_factory.mktemp("placed")
    shutil.copy(paths.INTERPOSER, directory / "libcuda.so.1")
    shutil.copy(paths.INTERPOSER_ML, directory / "libnvidia-ml.so.1")
    return directory


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    simulator = Simulator(tmp_path / "sim")
    yield simulator
    simulator.stop()


@pytest.fixture
def grant(tmp_path: Path, sim: Simulator) -> Iterator[Grant]:
    """2 GiB of the device, with the lease held."""
    made = Grant(tmp_path / "grant", sim)
    made.lease()
    yield made
    made.close()


@pytest.fixture
def lender(tmp_path: Path, sim: Simulator) -> Iterator[Lender]:
    """2 GiB of the device, with the lease held, and a host pool of 8 GiB."""
    made = Lender(tmp_path / "lender", sim)
    made.lease()
    yield made
    made.close()


@pytest.fixture
def environment() -> Callable[[Grant | None, str], dict[str, str]]:
    """The environment of a process in the grant, with the interposer preloaded."""
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")

    def make(grant: Grant | None, preload: str = f"{paths.INTERPOSER}:{paths.INTERPOSER_ML}") -> dict[str, str]:
        env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR)}
        env.pop("GPUSHARE_GRANT_DIR", None)
        if preload:
            env["LD_PRELOAD"] = preload
        if grant is not None:
            env["GPUSHARE_GRANT_DIR"] = str(grant.directory)
        return env

    return make


@pytest.fixture
def start(client_program: Path, environment: Callable[..., dict[str, str]]) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def run(grant: Grant | None, way: str = "linked", **more: str) -> Client:
        made.append(Client(client_program, way, {**environment(grant), **more}))
        return made[-1]

    yield run
    for client in made:
        client.kill()


@pytest.fixture
def inside(environment: Callable[..., dict[str, str]], sim: Simulator) -> Iterator[Callable[..., Inside]]:
    made: list[Inside] = []

    def make(grant: Grant | None) -> Inside:
        env = environment(grant)
        if grant is None:
            env |= {"GPUSHARE_SIM_DIR": str(sim.directory), "LD_PRELOAD": ""}
        made.append(Inside(env))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def second(tmp_path: Path, sim: Simulator) -> Iterator[Grant]:
    made = Grant(tmp_path / "second", sim)
    made.lease()
    yield made
    made.close()


@pytest.fixture
def memory(memory_program: Path, environment: Callable[..., dict[str, str]]) -> Iterator[Callable[..., Client]]:
    """Starts memory_client.c in the grant."""
    made: list[Client] = []

    def run(grant: Grant) -> Client:
        made.append(Client(memory_program, "linked", environment(grant)))
        return made[-1]

    yield run
    for client in made:
        client.kill()


@pytest.fixture
def interpose(request: pytest.FixtureRequest) -> Iterator[Interpose]:
    """interpose(grant, device, before): a worker in the grant, or without one; `on`: another simulator."""
    made: list[Interposed] = []

    def run(grant: Grant | None, device: int | None = 0, before: str = "", on: Simulator | None = None) -> Interposed:
        made.append(Interposed(on or request.getfixturevalue("sim"), grant, device, before))
        return made[-1]

    yield run
    for worker in made:
        worker.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Simulator]:
    """A simulator of two devices."""
    simulator = Simulator(tmp_path / "pair", "2x4GiB")
    yield simulator
    simulator.stop()


@pytest.fixture
def both(tmp_path: Path, pair: Simulator) -> Iterator[Grant]:
    """Both devices, with their leases held."""
    made = Grant(tmp_path / "both", pair)
    for device in (0, 1):
        made.lease(device)
    yield made
    made.close()


@pytest.fixture
def granted(tmp_path: Path, sim: Simulator) -> Iterator[Callable[..., Grant]]:
    """granted(0, 2): a grant of these devices."""
    made: list[Grant] = []

    def make(*devices: int) -> Grant:
        made.append(Grant(tmp_path / f"grant{len(made)}", sim, devices=devices))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for use as a grant's driver/. It contains the simulated driver under another name, found by the run
    path."""
    directory = tmp_path_factory.mktemp("faulty")
    shutil.copy(built.program("faulty") / "libcuda.so.1", directory)
    shutil.copy(paths.SIM_LIB_DIR / "libcuda.so.1", directory / "libsimcuda.so.1")
    return directory


@pytest.fixture
def faults(faulty: Path, grant: Grant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """faults(name=result, ...): sets the calls that fail from now on."""
    (grant.directory / "driver").unlink()
    (grant.directory / "driver").symlink_to(faulty)
    file = tmp_path / "faults"
    file.write_bytes(bytes(4096))
    monkeypatch.setenv("FAULTS", str(file))
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 4096) as words:

        def tell(**results: int) -> None:
            text = "".join(f" {name}={result}" for name, result in results.items())
            words[:] = text.encode().ljust(4096, b"\0")

        yield tell
