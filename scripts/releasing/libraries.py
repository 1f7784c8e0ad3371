"""The Python libraries that gpushare needs, as wheels of the versions that the tests run with."""

import email
import importlib.metadata
import shutil
import sys
import zipfile
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from releasing.common import ROOT, Arch, project, run

PYTHONS = ("3.11", "3.12", "3.13")
KEPT = ROOT / "build" / "libraries"


@dataclass(frozen=True)
class Library:
    name: str
    version: str
    wheels: tuple[Path, ...]
    """One wheel, or one for each of PYTHONS."""

    @cached_property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheels[0]) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return email.message_from_string(wheel.read(name).decode())

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Names of other libraries."""
        return tuple(sorted(asked(self.metadata.get_all("Requires-Dist") or [])))


def asked(requirements: list[str]) -> set[str]:
    """Names of the requirements that apply with any of PYTHONS."""
    environments = [{"python_version": version, "extra": ""} for version in PYTHONS]
    return {
        canonicalize_name(one.name)
        for one in map(Requirement, requirements)
        if one.marker is None or any(map(one.marker.evaluate, environments))
    }


def needed() -> dict[str, str]:
    """The libraries and what they need in turn, with the versions installed here."""
    found: dict[str, str] = {}
    waiting = asked(project()["dependencies"])
    while waiting:
        name = waiting.pop()
        distribution = importlib.metadata.distribution(name)
        found[name] = distribution.version
        waiting |= asked(distribution.requires or []) - found.keys()
    return dict(sorted(found.items()))


def fetched(arch: Arch) -> list[Library]:
    """The libraries with their wheels for a kind of machine, from the package index unless they are here already."""
    wanted = needed()
    kept = KEPT / arch.machine
    names = set(wanted.items())
    if {wheel_of(path) for path in kept.glob("*/*.whl")} != names:
        making = kept.with_suffix(".new")
        shutil.rmtree(making, ignore_errors=True)
        tags = [f"--platform={tag}_{arch.machine}" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
        for version in PYTHONS:
            run(
                sys.executable, "-m", "pip", "-q", "download", "--dest", making / version, "--python-version", version,
                *tags, "--only-binary=:all:", "--no-deps", *(f"{name}=={at}" for name, at in wanted.items()),
            )  # fmt: skip
        shutil.rmtree(kept, ignore_errors=True)
        making.rename(kept)
    wheels = {path.name: path for path in sorted(kept.glob("*/*.whl"))}.values()
    return [
        Library(name, version, tuple(sorted(path for path in wheels if wheel_of(path) == (name, version))))
        for name, version in wanted.items()
    ]


def wheel_of(path: Path) -> tuple[str, str]:
    name, version, *_ = parse_wheel_filename(path.name)
    return str(name), str(version)


def unpacked(libraries: list[Library], site: Path) -> None:
    """Unpacks the libraries into one directory, each once, with its compiled parts for all of PYTHONS."""
    for path in (path for library in libraries for path in library.wheels):
        with zipfile.ZipFile(path) as wheel:
            # Leaves out what a wheel puts outside site-packages: it is for manual installations.
            wheel.extractall(site, [name for name in wheel.namelist() if ".data/" not in name])
