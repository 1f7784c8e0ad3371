"""gpushare and the benchmark's own programs, built from the checkout without a network."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpubench import machine, process
from gpubench.deadline import Deadline

ROOT = machine.ROOT
NATIVE = ROOT / "bench" / "gpu" / "native"
C_PROGRAMS = {
    "load": ("load.c", "work.c", "calibrate.c", "series.c", "gate.c", "common.c"),
    "token": ("token.c", "gate.c", "common.c"),
    "stalls": ("stalls.c", "common.c"),
    "steps": ("steps.c", "common.c"),
    "client": ("client.c", "common.c"),
}
_TO_BUILD = ("cffi", "pycparser")
_TO_RUN = ("cffi", "msgspec", "aiohttp", "tomlkit", "pynvml")
_PACKAGE = {"pynvml": "nvidia-ml-py"}
_STEP_SECONDS = 400


class BuildError(Exception):
    """What is missing or failed, for the person who started this."""


@dataclass(frozen=True)
class Shell:
    """Runs commands into one log, no longer than there is time."""

    log: Path
    deadline: Deadline

    def run(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        """Raises BuildError."""
        with open(self.log, "ab") as out:
            out.write((" ".join(command) + "\n").encode())
        try:
            status = process.status(command, self.log, self.deadline.least(_STEP_SECONDS), env, ROOT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{command[0]}: {error}") from None
        if status != 0:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise BuildError(f"{' '.join(command[:3])} ... failed with status {status}, see {self.log}:\n{tail}")


def add_wheels(shell: Shell, wheels: Path, site: Path) -> None:
    """Unpacks packages that this machine's Python lacks, from files."""
    files = sorted(map(str, wheels.glob("*.whl")))
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--upgrade",
        "--target",
        str(site),
    ]
    shell.run([sys.executable, "-m", "pip", "install", *options, *files])
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()


def missing(*, build: bool) -> list[str]:
    """What this machine lacks, each with what to do."""
    found = []
    modules = dict.fromkeys((*_TO_BUILD, *_TO_RUN) if build else _TO_RUN)
    absent = [_PACKAGE.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        found.append(
            f"Python packages {', '.join(absent)} for {sys.executable}: put wheels into wheels/ of the checkout, or "
            "name their directory with --wheels"
        )
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        found.append("a C compiler (gcc)")
    if not build:
        return found
    if shutil.which("cmake") is None:
        found.append("cmake 3.25 or newer")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        found.append(f"Python.h of {sys.executable}: build elsewhere (--build-only) and give the result with --prefix")
    return found


def gpushare(shell: Shell, build: Path, prefix: Path, site: Path | None) -> None:
    """CMake's build installed into `prefix`, with the Python sources beside it: PYTHONPATH=prefix is gpushare."""
    found = [str(site) if site else "", os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found))}
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(ROOT), "-B", str(build), *generator, f"-DPython3_EXECUTABLE={sys.executable}"]
    shell.run([*configure, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DGPUSHARE_WERROR=OFF"], env)
    shell.run(["cmake", "--build", str(build), "--parallel", str(os.cpu_count() or 2)], env)
    shutil.rmtree(prefix, ignore_errors=True)
    ignored = shutil.ignore_patterns("_lib", "_native*.so", "__pycache__")
    shutil.copytree(ROOT / "gpushare", prefix / "gpushare", ignore=ignored)
    shell.run(["cmake", "--install", str(build), "--prefix", str(prefix)], env)


def _why(error: BuildError) -> str:
    """The compiler's first complaint, in a line."""
    lines = str(error).splitlines()
    return next((line for line in lines[1:] if re.search(r"\berror\b", line)), lines[0]).strip()[:200]


def programs(shell: Shell, into: Path, libcuda: Path, *, gpu: int | None) -> dict[str, str]:
    """The C programs link against `libcuda`: the simulated one has the real one's name and symbols, and at run time the
    loader takes the driver that is there. With a GPU, nvcc builds the kernels and the runtime clients for it. What
    could not be built, and why."""
    into.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}

    def make(name: str, *command: str) -> None:
        try:
            shell.run([*command[:1], "-o", str(into / name), *command[1:]])
        except BuildError as error:
            failed[name] = f"{name} could not be built: {_why(error)}"

    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    # Warnings are errors where the compiler is one that this is developed with.
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", *(["-Werror"] if gpu is None else [])]
    flags += [f"-I{NATIVE}", f"-I{ROOT / 'native'}"]
    for name, sources in C_PROGRAMS.items():
        files = [str(NATIVE / source) for source in sources]
        make(name, compiler, *flags, *files, str(libcuda))
    make("iolog.so", compiler, *flags, "-shared", "-fPIC", str(NATIVE / "iolog.c"))
    if gpu is not None:
        _cuda_programs(make, gpu)
    return failed


def _cuda_programs(make: Callable[..., None], gpu: int) -> None:
    nvcc = machine.nvcc() or "nvcc"
    arch = f"-arch=sm_{machine.compute_capability(gpu).replace('.', '')}"
    for name in ("kernels", "big_stack"):
        make(f"{name}.cubin", nvcc, "-cubin", arch, str(NATIVE / f"{name}.cu"))
    make("runtime-static", nvcc, "-cudart", "static", arch, str(NATIVE / "runtime.cu"))
    # The toolkit's runtime library need not be where the loader looks.
    root = Path(nvcc).resolve().parents[1]
    paths = [f"-Xlinker=-rpath={root / name}" for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
    make("runtime-shared", nvcc, "-cudart", "shared", arch, *paths, str(NATIVE / "runtime.cu"))
