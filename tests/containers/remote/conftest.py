"""Containers under runc, as an engine with CDI makes them, of an image with its own libraries."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import cdi_apply
from engines.installed import make_rootfs
from machine import cgroups

from gpushare.demo import bundle
from gpushare.paths import LIB_DIR

SPIN = str(LIB_DIR / "gpushare-spin")


@pytest.fixture(scope="session")
def image(tmp_path_factory) -> Path:
    return make_rootfs(tmp_path_factory.mktemp("image") / "rootfs.tar", "/bin/bash", "/usr/bin/sha256sum", SPIN)


class Runc:
    """`cdi`: where specs are looked for."""

    def __init__(self, directory: Path, image: Path) -> None:
        self._directory, self._image = directory, image
        self.cdi = directory / "cdi"
        self._names: list[str] = []

    def command(
        self, device: str, *program: str, change: Callable[[dict, Path], object] = lambda *_: None
    ) -> list[str]:
        name = f"gst-remote-{os.getpid()}-{len(self._names)}"
        self._names.append(name)
        where = self._directory / name
        bundle.make(where, {}, list(program), f"/{cgroups.NAME}/{name}")
        config = json.loads((where / "config.json").read_text())
        config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "bind"]
        shutil.rmtree(where / "rootfs")
        shutil.unpack_archive(self._image, where / "rootfs", filter="tar")
        for point in ("proc", "dev", "tmp"):
            (where / "rootfs" / point).mkdir(exist_ok=True)
        change(config, where / "rootfs")
        cdi_apply.apply(config, self.cdi, device)
        (where / "config.json").write_text(json.dumps(config))
        return ["runc", "--root", str(self._directory / "state"), "run", "--bundle", str(where), name]

    def start(self, device: str, *program: str, **options) -> subprocess.Popen:
        pipe = subprocess.PIPE
        command = self.command(device, *program, **options)
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, device: str, *program: str, **options) -> subprocess.CompletedProcess:
        command = self.command(device, *program, **options)
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def pid(self, process: subprocess.Popen) -> int:
        """Of the container's first process."""
        state = ["runc", "--root", str(self._directory / "state"), "state", process.args[-1]]
        return json.loads(subprocess.run(state, capture_output=True, text=True, check=True).stdout)["pid"]

    def end(self) -> None:
        for name in self._names:
            command = ["runc", "--root", str(self._directory / "state"), "delete", "--force", name]
            subprocess.run(command, capture_output=True)
        cgroups.remove()


@pytest.fixture
def runc(tmp_path, image) -> Iterator[Runc]:
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("containers need root and runc")
    made = Runc(tmp_path, image)
    yield made
    made.end()
