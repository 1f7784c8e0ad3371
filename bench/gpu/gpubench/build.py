"""gpushare and the benchmark's own programs, built from the checkout."""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gpubench import machine
from gpubench.process import end_group, reap, tied

ROOT = machine.ROOT
NATIVE = ROOT / "bench" / "gpu" / "native"
C_PROGRAMS = {
    "load": ("load.c", "work.c", "calibrate.c", "series.c", "common.c"),
    "stalls": ("stalls.c", "common.c"),
    "steps": ("steps.c", "common.c"),
    "client": ("client.c", "common.c"),
    "evader": ("evader.c", "common.c"),
}
_STEP_SECONDS = 400


class BuildError(Exception):
    """What is missing or failed, worded for the user of the command."""


def run(log: Path, *command: str) -> None:
    """A command that writes to `log`; all of it ends with this call. Raises BuildError with the end of the log."""
    with open(log, "ab") as out:
        out.write((" ".join(command) + "\n").encode())
        out.flush()
        try:
            process = subprocess.Popen(
                command,
                # The generators among the build's own scripts import what lies next to them.
                env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=tied(),
            )
        except OSError as error:
            raise BuildError(f"{command[0]}: {error}") from None
    try:
        status = process.wait(_STEP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BuildError(str(error)) from None
    finally:
        end_group(process.pid)
        reap(process)
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise BuildError(f"{' '.join(command[:3])} ... failed with status {status}, see {log}:\n{tail}")


def gpushare(args: argparse.Namespace, work: Path) -> list[Path]:
    """What goes on PYTHONPATH so that this checkout's gpushare is imported: nothing with --installed, else a directory
    that pip installed it into. Raises BuildError."""
    paths: list[Path] = []
    if not args.installed:
        wheels = args.wheels or (ROOT / "wheels" if (ROOT / "wheels").is_dir() else None)
        source = "gpushare-node" if wheels and any(wheels.glob("gpushare_node-*.whl")) else str(ROOT)
        packages = ["--no-index", f"--find-links={wheels}"] if wheels else ["--no-deps", "--no-build-isolation"]
        settings = [f"build-dir={work / 'build'}", "cmake.define.GPUSHARE_WERROR=OFF"]
        options = [*packages, *(f"--config-settings={setting}" for setting in settings)]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={work / 'site'}"]
        run(work / "build.log", *pip, *options, source)
        paths.append(work / "site")
        sys.path.insert(0, str(paths[0]))
        importlib.invalidate_caches()
    if importlib.util.find_spec("gpushare") is None:
        raise BuildError(f"{sys.executable} imports no gpushare: leave --installed away")
    return paths


def _why(error: BuildError) -> str:
    """The compiler's first complaint, in a line."""
    lines = str(error).splitlines()
    return next((line for line in lines[1:] if re.search(r"\berror\b", line)), lines[0]).strip()[:200]


def programs(log: Path, into: Path, *, gpu: int | None) -> dict[str, str]:
    """The C programs link against the simulated driver, which has the real one's name and symbols: at run time the
    loader takes the driver that is there. With a GPU, nvcc builds the kernels and the runtime clients for it. What
    could not be built, and why."""
    from gpushare import paths

    into.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}

    def make(name: str, *command: str) -> None:
        try:
            run(log, command[0], "-o", str(into / name), *command[1:])
        except BuildError as error:
            failed[name] = f"{name} could not be built: {_why(error)}"

    # Warnings are errors where the compiler is one that this is developed with.
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", *(["-Werror"] if gpu is None else []), f"-I{ROOT / 'native'}"]
    for name, sources in C_PROGRAMS.items():
        files = [str(NATIVE / source) for source in sources]
        make(name, shutil.which("cc") or "gcc", *flags, *files, str(paths.SIM_LIB_DIR / "libcuda.so.1"))
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
