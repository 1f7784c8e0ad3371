"""A guard with a terminal in place of the driver, and processes in cgroups that ask it for memory (rmtenant.c)."""

import contextlib
import itertools
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from run import built
from run.waiting import until

from gpushare._native import lib
from gpushare.enforce import rm
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.enforce.guard import Books, Event, Guard, Kind
from gpushare.errors import FailedError

MIB = 1 << 20

# Numbers of terminal ioctls that accept any struct (rmtenant.c); the structs are the driver's.
ESCAPES = {
    rm.ALLOC: rm.Escape(lib.GS_ESCAPE_ALLOC, 28, 44, 40),
    0x2C: rm.Escape(lib.GS_ESCAPE_FREE, 12),
    0x2D: rm.Escape(lib.GS_ESCAPE_HEAP, 20),
    0x02: rm.Escape(lib.GS_ESCAPE_DUP, 24),
    0x03: rm.Escape(lib.GS_ESCAPE_XFER),
}


@dataclass
class Terminal:
    path: str
    nodes: rm.Nodes


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    node = os.fstat(theirs).st_rdev
    path = os.ttyname(theirs)
    os.close(theirs)
    yield Terminal(path, rm.Nodes(os.major(node), os.minor(node), os.minor(node)))
    os.close(ours)


@pytest.fixture(scope="module")
def guard(terminal) -> Iterator[Guard]:
    if os.geteuid() != 0 or Hierarchies.of().unified is None:
        pytest.skip("needs root and cgroup v2")
    with Guard(rm.Layout((terminal.nodes,), ESCAPES)) as made:
        yield made


_numbers = itertools.count()


class Held:
    """A cgroup that the guard charges."""

    def __init__(self, guard: Guard, terminal: Terminal, group: Cgroup) -> None:
        self.guard, self.terminal, self.group = guard, terminal, group
        self.number = 0
        self.tenants: list[Tenant] = []

    def limit(self, limit_bytes: int, number: int = 9) -> None:
        self.number = self.guard.limit(self.group.path, limit_bytes, number)

    def books(self) -> Books:
        return self.guard.books(self.number)

    def tenant(self, within: str = "") -> "Tenant":
        made = Tenant(self.terminal.path)
        self.tenants.append(made)
        path = self.group.path / within
        path.mkdir(exist_ok=True)
        Cgroup(path, v2=True).add(made.process.pid)
        return made

    def report(self, kind: Kind) -> Event:
        """Returns the next event of this kind for this cgroup, and discards all others."""
        found: list[Event] = []

        def look() -> bool:
            found.extend(one for one in self.guard.wait(0.05) if (one.kind, one.cgroup) == (kind, self.number))
            return bool(found)

        until(look, f"an event {kind.name}")
        return found[0]


class Tenant:
    def __init__(self, device: str) -> None:
        self.process = subprocess.Popen(
            [built.program("rmtenant"), device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def say(self, *words: object) -> int | None:
        """Returns the process's answer, usually an errno; None if the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self.process.stdout.readline()
        return int(answer) if answer else None

    def alloc(self, number: int, size: int, client: int = 1, status: int = 0) -> int | None:
        return self.say("alloc", client, number, size, status)

    def status(self) -> int:
        return self.process.wait(20)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def hold(guard, terminal) -> Iterator[Callable[..., Held]]:
    """Makes cgroups with limits."""
    made: list[Held] = []

    def start(limit_bytes: int = 64 * MIB, number: int = 9) -> Held:
        group = Cgroup(Hierarchies.of().unified / f"gst-guard-{os.getpid()}-{next(_numbers)}", v2=True)
        group.make()
        made.append(Held(guard, terminal, group))
        made[-1].limit(limit_bytes, number)
        return made[-1]

    yield start
    for one in made:
        one.group.kill()
        for tenant in one.tenants:
            tenant.end()
        with contextlib.suppress(FailedError):
            guard.forget(one.number)
        until(one.group.remove, "the cgroup goes")


@pytest.fixture
def held(hold) -> Held:
    return hold()
