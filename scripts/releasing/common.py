"""Paths, the machines that a release is for, and the time stamp of all its files."""

import functools
import os
import platform
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Arch:
    """A kind of machine that a release is for."""

    machine: str
    """The name in the kernel and in Python."""
    debian: str
    """The name in Debian."""

    @property
    def tools(self) -> str:
        """The prefix of its compiler's and binutils' names on this machine."""
        return "" if self.machine == platform.machine() else f"{self.machine}-linux-gnu-"


ARCHES = (Arch("x86_64", "amd64"), Arch("aarch64", "arm64"))


def arch_of(name: str) -> Arch:
    """The architecture with this name, of either kind."""
    return next(arch for arch in ARCHES if name in (arch.machine, arch.debian))


def this_machine() -> Arch:
    return arch_of(platform.machine())


def run(*command: object, **options: object) -> str:
    """Runs a command; returns its standard output. If it fails, the script ends with its output."""
    done = subprocess.run([*map(str, command)], check=False, text=True, capture_output=True, **options)
    if done.returncode:
        program = Path(sys.argv[0]).name
        sys.exit(f"{program}: {' '.join(map(str, command[:4]))} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def project(root: Path = ROOT) -> dict:
    with open(root / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def distribution() -> str:
    """The distribution's name, as it is in the names of its files."""
    return project()["name"].replace("-", "_")


@functools.cache
def epoch() -> int:
    """The time of everything in a release, in seconds since 1970: SOURCE_DATE_EPOCH, else the last commit's time."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def settle() -> None:
    """Fixes the environment and umask of this process and its children, so that the caller's cannot change what a
    script makes."""
    os.environ.update(SOURCE_DATE_EPOCH=str(epoch()), LC_ALL="C.UTF-8", TZ="UTC", PYTHONHASHSEED="0")
    os.umask(0o022)
