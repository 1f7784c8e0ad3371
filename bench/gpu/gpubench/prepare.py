"""What has to be there before anything is measured: gpushare and the benchmark's programs, built or given."""

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from gpubench import build, machine
from gpubench.build import BuildError
from gpubench.worker import say

WHEELS = machine.ROOT / "wheels"
"""Looked into where Python packages are missing and --wheels is not given."""


@dataclass(frozen=True)
class Prepared:
    """`lib`: gpushare's _lib directory, empty where `without` says why there is none. `paths`: what goes onto
    PYTHONPATH. `not_built`: programs, and why."""

    lib: str
    paths: list[Path]
    not_built: dict[str, str]
    without: str = ""


def prepare(args: argparse.Namespace, work: Path, deadline: build.Deadline) -> Prepared:
    """On a GPU, a gpushare that cannot be built costs what needs it; else raises BuildError, as for --build-only."""
    shell = build.Shell(work / "build.log", deadline)
    paths: list[Path] = []
    lib, without = None, ""
    try:
        lib = _gpushare(args, work, shell, paths)
    except BuildError as error:
        if args.simulated or args.build_only:
            raise
        without = " ".join(str(error).split())
        say(f"only what needs no gpushare is measured: {error}")
        sys.path.insert(0, str(machine.ROOT))
        paths.append(machine.ROOT)
    if args.build_only:
        return Prepared(str(lib), paths, {})
    say("building the benchmark's programs")
    libcuda = lib / "sim" / "libcuda.so.1" if lib is not None else _driver()
    not_built = build.programs(shell, work / "programs", libcuda, gpu=None if args.simulated else args.gpu)
    for reason in not_built.values():
        say(f"  {reason}")
    return Prepared(str(lib or ""), paths, not_built, without)


def _gpushare(args: argparse.Namespace, work: Path, shell: build.Shell, paths: list[Path]) -> Path:
    building = not args.installed and (args.prefix is None or args.build_only)
    site = _site(args, work, shell, building)
    if site is not None:
        paths.append(site)
    if lacking := build.missing(build=building):
        raise BuildError("this machine lacks: " + "; ".join(lacking))
    if args.installed:
        lib = Path(importlib.import_module("gpushare").__path__[0]) / "_lib"
    else:
        prefix = args.prefix.resolve() if args.prefix is not None else work / "stage"
        if building:
            say(f"building gpushare (log: {shell.log})")
            build.gpushare(shell, work / "build", prefix, site)
        sys.path.insert(0, str(prefix))
        paths.insert(0, prefix)
        lib = prefix / "gpushare" / "_lib"
    if not (lib / "libgpushare.so").is_file():
        raise BuildError(f"{lib} holds no build of gpushare")
    return lib


def _site(args: argparse.Namespace, work: Path, shell: build.Shell, building: bool) -> Path | None:
    wheels = args.wheels
    if wheels is None and any(WHEELS.glob("*.whl")) and build.missing(build=building):
        wheels = WHEELS
    if wheels is None:
        return None
    build.add_wheels(shell, wheels, work / "site")
    return work / "site"


def _driver() -> Path:
    """Raises BuildError."""
    from gpushare.node.nvml import driver_files

    found = [path for path in driver_files() if path.name == "libcuda.so.1"]
    if not found:
        raise BuildError("no libcuda.so.1: is it in the loader's cache, LD_LIBRARY_PATH or /usr/local/nvidia?")
    return found[0]
