"""Where things are, for which machines a release is, and which moment all its files are of."""

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
    """As the kernel and Python name it."""
    debian: str
    """As Debian names it."""

    @property
    def tools(self) -> str:
        """What the names of its compiler and binutils begin with, on this machine."""
        return "" if self.machine == platform.machine() else f"{self.machine}-linux-gnu-"


ARCHES = (Arch("x86_64", "amd64"), Arch("aarch64", "arm64"))


def arch_of(name: str) -> Arch:
    """By either of its names."""
    return next(arch for arch in ARCHES if name in (arch.machine, arch.debian))


def this_machine() -> Arch:
    return arch_of(platform.machine())


def run(*command: object, **options: object) -> str:
    """What it printed. The script ends where the command fails, with what that said."""
    done = subprocess.run([*map(str, command)], check=False, text=True, capture_output=True, **options)
    if done.returncode:
        program = Path(sys.argv[0]).name
        sys.exit(f"{program}: {' '.join(map(str, command[:4]))} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def project(root: Path = ROOT) -> dict:
    with open(root / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


@functools.cache
def epoch() -> int:
    """Seconds since 1970: the time of everything in a release. SOURCE_DATE_EPOCH, else that of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def settle() -> None:
    """Of this process and those that it starts: nothing of whoever calls a script changes a byte of what it makes."""
    os.environ.update(SOURCE_DATE_EPOCH=str(epoch()), LC_ALL="C.UTF-8", TZ="UTC", PYTHONHASHSEED="0")
    os.umask(0o022)
