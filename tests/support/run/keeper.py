"""A grant that a test keeps alive without CUDA, and access to its pages as the daemon created them."""

import os
import subprocess
from pathlib import Path

from run.running import Daemon
from run.waiting import until

from gpushare._native import ffi
from gpushare.enforce import cgroup

SLOTS = "struct gs_slot[64]"


class Keeper:
    """Holds the grant through its first process, which does not use CUDA."""

    def __init__(self, node: Daemon, limit: int) -> None:
        self.node = node
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(node.run(str(limit), "50%", "cat"), stdin=pipe, stdout=pipe)
        self.environment: dict[str, str] = until(self.read_environment, "the grant's first process", 10)
        self.directory = Path(self.environment["GPUSHARE_GRANT_DIR"])
        self.grant = self.directory.parent.name
        self.cgroup = cgroup.of_process(self.process.pid)
        self.usage = (self.directory / "usage").open("rb", buffering=0)

    def read_environment(self) -> dict[str, str]:
        """The environment of the program that `gpushare run` executes; empty until the exec."""
        pairs = Path(f"/proc/{self.process.pid}/environ").read_bytes().split(b"\0")
        found = dict(os.fsdecode(one).split("=", 1) for one in pairs if b"=" in one)
        return found if "GPUSHARE_GRANT_DIR" in found else {}

    def start(self, program: Path) -> subprocess.Popen[str]:
        """Starts a process in the grant."""
        assert self.cgroup is not None
        join = ["sh", "-c", f'echo $$ > {self.cgroup.path}/cgroup.procs && exec "$0"', str(program)]
        pipe = subprocess.PIPE
        return subprocess.Popen(join, stdin=pipe, stdout=pipe, text=True, env=self.environment)

    def slots(self) -> dict[int, int]:
        """Bytes held, by pid. Asserts that no allocation is pending: no process may be allocating."""
        page = os.pread(self.usage.fileno(), ffi.sizeof(SLOTS), ffi.offsetof("struct gs_usage", "slot"))
        found: dict[int, int] = {}
        for slot in ffi.from_buffer(SLOTS, page):
            words = slot.device[0]
            assert words.memory_pending == 0
            if slot.state:
                assert slot.pid not in found, "a process has two slots"
                found[slot.pid] = words.memory_bytes
            else:
                assert words.memory_bytes == 0, "a free slot holds memory"
        return found

    def end(self) -> None:
        self.usage.close()
        self.process.kill()
        self.process.communicate()
        until(lambda: not self.node.client.grants(), "the grant ends", 10)
