"""A daemon with a simulated device, the runtime told of its socket, and an image, for containers under real engines."""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Daemon

from gpushare.paths import INTERPOSER, LIB_DIR, RUNTIME_WRAPPER, SIM_LIB_DIR


@pytest.fixture
def short_path() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    directory.chmod(0o755)
    yield directory
    # An engine that did not end well leaves its own.
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
def wrapper(short_path, node) -> Path:
    """The installed runtime, told of this daemon's socket."""
    path = short_path / "gpushare-runtime"
    path.write_text(f'#!/bin/sh\nexec {RUNTIME_WRAPPER} --gpushare-socket={node.layout.socket} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory) -> Path:
    wanted = {"/bin/sh", "/bin/sleep", "/bin/mknod"}
    for path in (*wanted, LIB_DIR / "gpushare-spin", INTERPOSER, SIM_LIB_DIR / "libcuda.so.1"):
        text = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        wanted |= {word for word in text.split() if word.startswith("/") and "cuda" not in word}
    out = tmp_path_factory.mktemp("image") / "rootfs.tar"
    with tarfile.open(out, "w", dereference=True) as tar:
        for path in sorted(wanted):
            tar.add(path, arcname=path.lstrip("/"))
    return out
