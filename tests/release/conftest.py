"""A release, made twice from clones of the last commit, and the one before it."""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from machine import releases

BUILD = releases.ROOT / "build" / "release"
Say = Callable[[str], None]


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Prints a line per step on the terminal."""
    reporter, capture = map(pytestconfig.pluginmanager.getplugin, ("terminalreporter", "capturemanager"))
    began = time.monotonic()

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"[{time.monotonic() - began:4.0f} s] {text}")

    return line


@functools.cache
def commit() -> str:
    """The last commit when the tests begin."""
    command = ["git", "-C", releases.ROOT, "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def made(say: Say, into: Path, umask: int, **env: str) -> Path:
    """Runs `scripts/dist` in a clone, without ccache, so that everything is compiled; returns its folder."""
    tree = releases.copy_of_tree(into, commit())
    command = [sys.executable, tree / "scripts" / "dist"]
    settings = {
        name: value for name, value in releases.environment().items() if not name.startswith(("CCACHE", "CMAKE_"))
    }
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, umask=umask, env={**settings, **env}
    ) as dist:
        answer = []
        for line in dist.stdout:
            answer.append(line)
            if line.startswith("dist: "):
                say(line.strip())
    assert dist.returncode == 0, "".join(answer)
    return tree / "dist"


@pytest.fixture(scope="session")
def dist(say: Say) -> Path:
    """A release: that in GPUSHARE_DIST if it is set, else a new one."""
    if folder := os.environ.get("GPUSHARE_DIST"):
        return Path(folder)
    return made(say, BUILD / "one", 0o022, TZ="Asia/Tokyo", LC_ALL="C.UTF-8")


@pytest.fixture(scope="session")
def again(say: Say, dist: Path) -> Path:
    """The release made again: in a path of another length, with another umask, time zone and locale, and one thread for
    dpkg-deb's compression."""
    return made(say, BUILD / "made" / "again-elsewhere", 0o077, TZ="America/Lima", LC_ALL="C", DPKG_DEB_THREADS_MAX="1")


Before = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="session")
def before(say: Say) -> Before:
    """Gives a function that makes the wheel and the package of an earlier version. Its commit is GPUSHARE_BEFORE, else
    the newest tag before this version; without a tag it is this commit, under a lower version number."""
    earlier = os.environ.get("GPUSHARE_BEFORE") or newest_tag() or commit()

    @functools.cache
    def make(name: str, change: Callable[[Path], None] | None = None) -> tuple[Path, Path]:
        tree = releases.copy_of_tree(BUILD / name, earlier)
        if releases.project(tree)["version"] == releases.VERSION:
            releases.set_version(tree, releases.before(releases.VERSION))
        if change is not None:
            change(tree)
        version = releases.project(tree)["version"]
        say(f"{name}: {version}, of {earlier}")
        package = releases.package_of(tree)
        wheel = [*(tree / "build").glob("deb/*/gpushare*.whl")]
        if not wheel:  # an older scripts/deb kept no wheel
            pip = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation"]
            subprocess.run([*pip, "--wheel-dir", tree / "dist", tree], check=True)
            wheel = [*(tree / "dist").glob("gpushare*.whl")]
        return wheel[0], package

    return make


def newest_tag() -> str | None:
    command = ["git", "-C", releases.ROOT, "tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD"]
    tags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return next((tag for tag in tags if tag != f"v{releases.VERSION}"), None)
