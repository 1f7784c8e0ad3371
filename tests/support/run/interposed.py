"""Worker processes (worker.py) under the interposer, and their memory according to the grant's page and to the
simulator."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages.handmade import Grant, Simulator
from run import zygote
from run.simworker import Worker

from gpushare import paths

CHUNK = 2 << 20  # allocation granularity of code, local memory and buffers


@dataclass(frozen=True)
class Spawner:
    """Starts programs in a grant, or under the interposer without a grant."""

    sim: Simulator
    grant: Grant | None

    def environment(self, env: dict[str, str] | None = None) -> dict[str, str]:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), **(env or {})}
        if self.grant is None:
            environment["GPUSHARE_SIM_DIR"] = str(self.sim.directory)
        else:
            environment |= {"LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(self.grant.directory)}
        return environment

    def spawn(self, *command: Any, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment(env),
            text=True,
        )

    def fork(self, env: dict[str, str] | None = None) -> zygote.Forked:
        return zygote.fork(self.environment(env))


TAKING_FROM_POOLS = """
    from memory import holds
    def current(function):
        def run():
            ok(d.cuCtxSetCurrent(ctx))
            return function()
        return run
    s = [ok(d.cuStreamCreate(1)) for _ in range(2)]
    def take(bytes, stream=0):
        return d.cuMemAllocAsync(bytes, s[stream])
"""
"""For a worker: two streams, allocations in them, and threads in its context."""


class Interposed(Worker):
    """A worker in a grant. By default, the primary context of a device is current. `before`: what it does first."""

    def __init__(self, sim: Simulator, grant: Grant | None, device: int | None = 0, before: str = "") -> None:
        super().__init__(Spawner(sim, grant))
        self.sim, self.grant = sim, grant
        self.do(before)
        self.do("ok(d.cuInit(0))")
        if device is not None:
            self.do(f"ctx = context({device})")

    def truth(self, device: int = 0) -> int:
        return sum(row["bytes"] for row in self.sim.books()["devices"][device]["processes"] if row["pid"] == self.pid)

    def charged(self, device: int = 0) -> int:
        """The bytes the process has charged to its grant. Asserts that the simulator reports the same."""
        assert self.grant is not None
        held = self.grant.charged(device, self.pid)
        assert held == self.truth(device), f"charged {held}, the simulator says {self.truth(device)}"
        return held

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


Interpose = Callable[..., Interposed]
"""interpose(grant, device, before): a worker that ends with the test."""

Faults = Callable[..., None]
"""faults(name=result, ...): which calls fail from now on, in a grant with the driver of faults/faulty.c."""


def chunks(count: int) -> int:
    """Bytes rounded up to whole chunks."""
    return -(-count // CHUNK) * CHUNK


def ptx(path: Path, *kernels: tuple[str, int], variables: str = "") -> Path:
    """A program with kernels that use this much local memory per thread."""
    text = f".version 7.0\n.target sm_52\n.address_size 64\n{variables}\n"
    for name, local in kernels:
        frame = f"\t.local .align 16 .b8 \t__local_depot0[{local}];\n" if local else ""
        text += f".visible .entry {name}()\n{{\n{frame}\tret;\n}}\n"
    path.write_text(text)
    return path
