"""Containers as an engine with CDI makes them, from the runtime alone; support/cdi_apply.py applies the specs."""

import json
import os
import subprocess
from pathlib import Path

from engines import cdi_apply
from machine import cgroups
from run.running import Daemon

from gpushare.demo import bundle
from gpushare.inject.edits import CDI_KIND
from gpushare.paths import CONTAINER_LIB

SPIN = f"{CONTAINER_LIB}/gpushare-spin"
ALLOC = [SPIN, "--alloc", "512MiB", "--seconds", "0"]
SHARE = {"memory": "1GiB", "time": "30%"}


class Runtime:
    """Makes containers as an engine with CDI does."""

    def __init__(self, directory: Path, node: Daemon) -> None:
        self.directory, self.node = directory, node
        self.names: list[str] = []

    def make(
        self,
        *program: str,
        devices=("any",),
        annotations=SHARE,
        change=lambda config, root: None,
        after=lambda config: None,
    ) -> Path:
        """`change`: edits the configuration before the devices are put into it, `after`: afterwards."""
        name = f"gst-any-{os.getpid()}-{len(self.names)}"
        self.names.append(name)
        where = self.directory / name
        wanted = {f"gpushare.dev/{key}": value for key, value in annotations.items()}
        bundle.make(where, wanted, list(program), f"/{cgroups.NAME}/{name}")
        config = json.loads((where / "config.json").read_text())
        cdi_apply.own_usr(config, where)
        change(config, where / "rootfs")
        cdi_apply.apply(config, self.node.layout.cdi, *(f"{CDI_KIND}={device}" for device in devices))
        after(config)
        (where / "config.json").write_text(json.dumps(config))
        return where

    def command(self, *program: str, runtime=("runc",), **options) -> list[str]:
        where = self.make(*program, **options)
        return [*runtime, "--root", str(self.directory / "state"), "run", "--bundle", str(where), where.name]

    def run(self, *program: str, **options) -> subprocess.CompletedProcess:
        command = self.command(*program, **options)
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def start(self, *program: str, **options) -> subprocess.Popen:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(*program, **options), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def end(self) -> None:
        for name in self.names:
            command = ["runc", "--root", str(self.directory / "state"), "delete", "--force", name]
            subprocess.run(command, capture_output=True)


def allocated(result: subprocess.CompletedProcess) -> dict:
    """What gpushare-spin says of its allocation."""
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    found = [event for event in events if event.get("event") == "alloc"]
    assert found, result.stderr
    return found[0]
