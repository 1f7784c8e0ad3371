"""A daemon with a simulated device, our runtime configured with its socket, and an image, for real engines."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.installed import make_rootfs, root_of
from run.running import Daemon

from gpushare.paths import RUNTIME_WRAPPER


@pytest.fixture
def short_path() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    directory.chmod(0o755)
    yield directory
    # An engine that did not end cleanly leaves its mounts.
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in mounts:
        if path.startswith(f"{directory}/"):
            subprocess.run(["umount", "--lazy", path], check=False)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def node(short_path) -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    daemon = Daemon(short_path / "node")
    try:
        yield daemon.start()
        daemon.nothing_left()
    finally:
        daemon.stop()


@pytest.fixture
def wrapper(request, short_path, node) -> Path:
    """The installed runtime, configured with this daemon's socket."""
    return make_wrapper(short_path, node.layout.socket, request)


@pytest.fixture
def alone(request, short_path) -> Path:
    """The installed runtime, without a daemon."""
    return make_wrapper(short_path, short_path / "none", request)


def make_wrapper(directory: Path, socket: Path, request: pytest.FixtureRequest) -> Path:
    """Writes a runtime wrapper. It starts the runc unpacked with the test's engine, if there is one: Docker 29 needs a
    newer one than Debian 12's."""
    program = request.node.callspec.params.get("program") if hasattr(request.node, "callspec") else None
    runc = root_of(program) / "usr/bin/runc" if program else Path("/")
    own = f"--gpushare-runtime={runc}" if runc.is_file() and root_of(program) != Path("/") else ""
    path = directory / "gpushare-runtime"
    path.write_text(f'#!/bin/sh\nexec {RUNTIME_WRAPPER} --gpushare-socket={socket} {own} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory) -> Path:
    return make_rootfs(tmp_path_factory.mktemp("image") / "rootfs.tar", "/bin/mknod")
