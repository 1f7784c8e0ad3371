"""libFuzzer on everything that reads bytes of the other side. A crashing input goes into corpus/<target>."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare import paths

HERE = Path(__file__).resolve().parent
NATIVE, HOOKS = HERE.parents[1] / "native", HERE.parents[1] / "hooks"
SANITIZERS = "address,undefined"
NORMAL_SECONDS, LONG_SECONDS = 3, 20


@dataclass(frozen=True)
class Target:
    sources: tuple[Path, ...]
    generated: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    interposer: bool = False  # linked with all of it
    longest: int = 4096  # bytes of input


def files(directory: Path, *names: str) -> tuple[Path, ...]:
    """By name or pattern."""
    found = [sorted(directory.glob(name)) for name in names]
    assert all(found), f"{directory} does not have all of {names}"
    return tuple(file for some in found for file in some)


TARGETS = {
    "json": Target(files(HOOKS, "json.c")),
    "hook": Target(files(HOOKS, "json.c", "edit.c"), longest=32768),
    "image": Target(files(NATIVE, "sim/program/image.c", "image/image.c"), longest=16384),
    "engine": Target(files(NATIVE / "sim" / "engine", "serve.c", "books.c", "runlist.c")),
    "pages": Target(
        files(NATIVE, "page/page.c", "interposer/os/guest.c", "interposer/os/grant.c", "interposer/nvml/*.c"),
        ("ml_names.c", "ml_forward.S"),
        tuple(f"-Wl,--wrap={name}" for name in ("clock_gettime", "gs_private_map", "gs_ml_view")),
    ),
    "arbiter": Target(files(NATIVE / "arbiter", "*.c"), longest=16384),
    "gangs": Target(files(NATIVE / "arbiter", "*.c"), longest=16384),
    "join": Target((), interposer=True),
    "names": Target((), interposer=True),
}
INCLUDE = [f"-I{one}" for one in (HERE, NATIVE, NATIVE / "arbiter")]
INCLUDE += [f"-I{HOOKS}"]
COMMON = ["-g", "-O1", "-D_GNU_SOURCE", "-std=gnu11", "-pthread", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="session")
def clang() -> str:
    found = [name for name in ("clang", *(f"clang-{version}" for version in range(30, 12, -1))) if shutil.which(name)]
    assert found, "clang is missing: scripts/setup test installs it"
    return found[0]


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build makes of the tables: names and forwarders of interposer and NVML view, the simulator's API."""
    directory = tmp_path_factory.mktemp("generated")
    types = [NATIVE / "api" / name for name in ("gs_cuda_types.h", "gs_cuda.h")]
    for generator in ("interposer/hooks/gen_hooks.py", "interposer/nvml/gen_ml.py", "sim/api/gen_stubs.py"):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (NATIVE / generator).parents[:2]))}
        subprocess.run([sys.executable, NATIVE / generator, directory, *types], check=True, env=env)
    return directory


@pytest.fixture(scope="session")
def interposer(clang: str, generated: Path) -> Path:
    """All of the interposer as an archive: a target takes what it does not bring itself."""
    sources = [
        *(
            source
            for source in sorted((NATIVE / "interposer").rglob("*.c"))
            if source.parent.name != "nvml" and source.name != "name.c"
        ),
        NATIVE / "page/page.c",
        NATIVE / "image/image.c",
        generated / "hooks.c",
        generated / "forward.S",
    ]
    flags = [*COMMON, f"-fsanitize=fuzzer-no-link,{SANITIZERS}", *INCLUDE, f"-I{generated}"]
    made = {source: generated / f"{source.parent.name}_{source.stem}.o" for source in sources}
    for source, made_of_it in made.items():
        subprocess.run([clang, *flags, "-c", source, "-o", made_of_it], check=True)
    archive = generated / "interposer.a"
    subprocess.run(["ar", "rcs", archive, *made.values()], check=True)
    return archive


Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def build(
    clang: str, generated: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Build:
    def make(name: str) -> Path:
        target, program = TARGETS[name], tmp_path_factory.mktemp(name) / name
        libraries = [request.getfixturevalue("interposer")] if target.interposer else []
        flags = [*COMMON, f"-fsanitize=fuzzer,{SANITIZERS}", *target.options, *INCLUDE, f"-I{generated}"]
        sources = [HERE / f"{name}.c", *target.sources, *(generated / one for one in target.generated)]
        command = [clang, *flags, *sources, *libraries, "-o", program, "-ldl"]
        subprocess.run(command, check=True)
        return program

    return make


def fuzz(program: Path, name: str, seconds: int, directory: Path) -> int:
    """Replays the corpus, then makes up inputs; gives how many ran."""
    corpus, found = HERE / "corpus" / name, directory / "found"
    found.mkdir()
    env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "ASAN_OPTIONS": "detect_leaks=1"}
    env.pop("LD_PRELOAD", None)
    options = [f"-max_total_time={seconds}", f"-max_len={TARGETS[name].longest}", "-timeout=10", "-rss_limit_mb=4096"]
    options += ["-print_final_stats=1", "-seed=1", f"-artifact_prefix={directory}/"]
    run = subprocess.run([program, *options, found, corpus], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{name}: {run.stderr[-6000:]}"
    [units] = re.findall(r"stat::number_of_executed_units: (\d+)", run.stderr)
    return int(units)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_hostile_bytes(build: Build, name: str, tmp_path: Path) -> None:
    assert fuzz(build(name), name, NORMAL_SECONDS, tmp_path) > 500


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_hostile_bytes_for_longer(build: Build, name: str, tmp_path: Path) -> None:
    assert fuzz(build(name), name, LONG_SECONDS, tmp_path) > 5000
