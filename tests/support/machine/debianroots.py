"""Roots of Debian releases for tests to copy, made once in build/debian."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

KEPT = Path(__file__).parents[3] / "build" / "debian"


@contextlib.contextmanager
def made(release: str, packages: str = "", *, name: str = "") -> Iterator[Callable[[], Path]]:
    """Makes the root while the body runs. Yields a function that waits for it and returns its path; it skips the test
    if no mirror is reachable. `packages`: besides the essential ones, separated by commas. `name`: of the root, if the
    same release is also made with other packages."""
    kept = KEPT / (name or release)
    making = None
    if not kept.is_dir():
        new = kept.with_name(f"{kept.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        script = 'mmdebstrap --quiet --variant=apt --include="$0" "$1" "$2" && mv "$2" "$3"'
        making = subprocess.Popen(["sh", "-c", script, packages, release, new, kept], stderr=subprocess.PIPE, text=True)

    def wait() -> Path:
        if making is not None:
            _, answer = making.communicate(timeout=300)
            if making.returncode:
                pytest.skip(f"no clean root can be made here (no mirror?): {answer[-300:]}")
        return kept

    try:
        yield wait
    finally:
        if making is not None and making.poll() is None:
            making.terminate()
            making.communicate()
