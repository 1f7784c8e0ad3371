"""Files of releases, as scripts/releasing makes them: of this tree, and of versions before it."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from releasing import wheels  # noqa: E402 - the scripts are no package
from releasing.common import project, this_machine  # noqa: E402

VERSION = project()["version"]
# Where a tree says its version.
SAID = ("pyproject.toml", "gpushare/__init__.py", "CHANGELOG.md")
TOOLS = ("dh", "dpkg-buildpackage", "lintian", "mmdebstrap")


def before(version: str) -> str:
    """A version that pip and apt take for an earlier one."""
    major, minor, patch = map(int, version.split("."))
    if patch:
        return f"{major}.{minor}.{patch - 1}"
    return f"{major}.{minor - 1}.999" if minor else f"{major - 1}.999.0"


@functools.cache
def wheel() -> Path:
    """Of this tree and this machine. Tests that ask for it are of the group `package`: they compile in one place."""
    return wheels.wheel_of_tree(this_machine(), ROOT / "build" / "tested")


def earlier(wheel: Path, into: Path, version: str) -> Path:
    """The same wheel under another version."""
    files = wheels.contents(wheel)
    renamed = {name.replace(f"gpushare-{VERSION}.", f"gpushare-{version}."): data for name, data in files.items()}
    info = f"gpushare-{version}.dist-info"
    for name, said in ((f"{info}/METADATA", "Version: {}"), ("gpushare/__init__.py", '__version__ = "{}"')):
        text = renamed[name].decode()
        assert said.format(VERSION) in text
        renamed[name] = text.replace(said.format(VERSION), said.format(version)).encode()
    tag = wheel.stem.split("-", 2)[2]
    renamed[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    made = into / f"gpushare-{version}-{tag}.whl"
    programs = {name for name in renamed if re.search(r"/_lib/gpushare-[a-z]+$|\.py$", name)}
    wheels.pack(made, renamed, programs, f"{info}/RECORD")
    return made


def debian_package(*options: object) -> Path:
    """scripts/deb of this tree."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    return package_of(ROOT, *options)


def package_of(tree: Path, *options: object) -> Path:
    """The same of another tree."""
    command = [sys.executable, tree / "scripts/deb", *map(str, options)]
    made = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


def environment() -> dict[str, str]:
    """Without what the tests set: a script finds its own modules beside it."""
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
    """The file there that is named so."""
    [found] = folder.glob(pattern)
    return found
