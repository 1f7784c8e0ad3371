"""Files of releases as scripts/releasing makes them, of this tree and of earlier versions."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from releasing import wheels  # noqa: E402 - the scripts are not a package
from releasing.common import distribution, project, this_machine  # noqa: E402

VERSION = project()["version"]
# Files that state a tree's version.
SAID = ("pyproject.toml", "gpushare/__init__.py", "CHANGELOG.md")
TOOLS = ("dh", "dpkg-buildpackage", "lintian", "mmdebstrap")


def before(version: str) -> str:
    """A version that pip and apt sort before `version`."""
    major, minor, patch = map(int, version.split("."))
    if patch:
        return f"{major}.{minor}.{patch - 1}"
    return f"{major}.{minor - 1}.999" if minor else f"{major - 1}.999.0"


@functools.cache
def wheel() -> Path:
    """The wheel of this tree for this machine. Tests that use it belong to the xdist group `package`, so that one
    process compiles it."""
    return wheels.wheel_of_tree(this_machine(), ROOT / "build" / "tested")


def metadata(version: str = VERSION) -> str:
    """The folder of the metadata in the wheel of a version."""
    return f"{distribution()}-{version}.dist-info"


def earlier(wheel: Path, into: Path, version: str) -> Path:
    """The same wheel under another version."""
    files = wheels.contents(wheel)
    ours, theirs = (f"{distribution()}-{one}." for one in (VERSION, version))
    renamed = {name.replace(ours, theirs): data for name, data in files.items()}
    info = metadata(version)
    for name, answer in ((f"{info}/METADATA", "Version: {}"), ("gpushare/__init__.py", '__version__ = "{}"')):
        text = renamed[name].decode()
        assert answer.format(VERSION) in text
        renamed[name] = text.replace(answer.format(VERSION), answer.format(version)).encode()
    tag = wheel.stem.split("-", 2)[2]
    renamed[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    made = into / f"{distribution()}-{version}-{tag}.whl"
    programs = {name for name in renamed if re.search(r"/_lib/gpushare-[a-z]+$|\.py$", name)}
    wheels.pack(made, renamed, programs, f"{info}/RECORD")
    return made


def debian_package(*options: object) -> Path:
    """Runs scripts/deb on this tree; returns the package's path. Skips the test if a tool is missing."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    return package_of(ROOT, *options)


def package_of(tree: Path, *options: object) -> Path:
    """Runs scripts/deb of a tree; returns the package's path."""
    command = [sys.executable, tree / "scripts/deb", *map(str, options)]
    made = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


def environment() -> dict[str, str]:
    """The environment without PYTHONSAFEPATH, which the tests set: a script imports modules next to it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


def copy_of_tree(into: Path, commit: str = "HEAD") -> Path:
    """A clone of this repository at a commit."""
    into.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(into, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", "--no-checkout", ROOT, into], check=True)
    subprocess.run(["git", "-C", into, "checkout", "-q", "--detach", commit], check=True)
    return into


def set_version(tree: Path, version: str) -> None:
    now = project(tree)["version"]
    for name in SAID:
        path = tree / name
        path.write_text(path.read_text().replace(f'"{now}"', f'"{version}"').replace(f"## {now}\n", f"## {version}\n"))
    assert project(tree)["version"] == version


def only(folder: Path, pattern: str) -> Path:
    """The only file in a folder that matches the pattern."""
    [found] = folder.glob(pattern)
    return found
