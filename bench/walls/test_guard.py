"""The cost of the tracepoint tier: of a system call and of an ioctl, with and without it in turns; the time until a
process that takes too much has ended; and the cost of a look at all descriptors. A terminal stands in for the driver
(tests/guard). And the cost of the devices walls for an open. Processor time, except for the second."""

import contextlib
import errno
import os
import pty
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from measures import p99, spread
from run import built
from run.waiting import until

from gpushare._native import lib
from gpushare.enforce import devices, exclusive, rm
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.enforce.guard import Guard

MIB = 1 << 20
ROUNDS, CALLS, OPEN_CALLS, KILLS = 41, 10_000, 2_000, 100
WHAT = {
    0: ("getppid", 200),
    1: ("another ioctl of the device", 300),
    2: ("an allocation that is refused", 1000),
    3: ("an allocation", 2000),
}
"""What the tenant times, by number, and how many ns longer it may take."""


class Tenant:
    def __init__(self, path: str, group: Cgroup) -> None:
        self.process = subprocess.Popen(
            [built.program("rmtenant"), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        group.add(self.process.pid)

    def ask(self, *words: object) -> str:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        return self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@contextlib.contextmanager
def world() -> Iterator[tuple[Guard, Cgroup, str]]:
    with contextlib.ExitStack() as ends:
        ours, theirs = pty.openpty()
        ends.callback(os.close, ours)
        ends.callback(os.close, theirs)
        node = os.fstat(theirs).st_rdev
        nodes = rm.Nodes(os.major(node), os.minor(node), os.minor(node))
        escapes = {rm.ALLOC: rm.Escape(lib.GS_ESCAPE_ALLOC, 28, 44, 40)}
        guard = ends.enter_context(Guard(rm.Layout((nodes,), escapes)))
        group = Cgroup(Hierarchies.of().unified / f"gst-guard-bench-{os.getpid()}", v2=True)
        group.make()
        ends.callback(until, group.remove, "the cgroup goes")
        yield guard, group, os.ttyname(theirs)


def test_cost_of_a_call(report) -> None:
    with world() as (guard, group, path), contextlib.ExitStack() as ends:
        tenant = Tenant(path, group)
        ends.callback(tenant.end)
        found: dict[tuple[int, bool], list[int]] = {}
        for _ in range(ROUNDS):
            for attached in (False, True):
                number = guard.limit(group.path, 1 << 50) if attached else 0
                for what in WHAT:
                    found.setdefault((what, attached), []).append(int(tenant.ask("time", CALLS, what)))
                if attached:
                    guard.forget(number)
        for what, (name, bound) in WHAT.items():
            bare, more = (statistics.median(found[what, attached]) for attached in (False, True))
            pairs = [new - old for old, new in zip(found[what, False], found[what, True], strict=True)]
            low, _, high = statistics.quantiles(pairs)
            measured = (
                f"+{statistics.median(pairs):.0f} ns (median of {ROUNDS} pairs, half of them +{low:.0f} to +{high:.0f})"
            )
            report(
                f"tracepoint tier: {name}", measured, f"without: {bare:.0f} ns", f"<= {bound} ns", more - bare <= bound
            )


def test_until_a_process_has_ended(report) -> None:
    """Measures from just before the request to the process's end as seen by its parent."""
    with world() as (guard, group, path):
        guard.limit(group.path, 64 * MIB)
        took = []
        for _ in range(KILLS):
            tenant = Tenant(path, group)
            began = time.perf_counter_ns()
            assert tenant.ask("alloc", 1, 10, 128 * MIB, 0) == ""
            assert tenant.process.wait() == -9
            took.append((time.perf_counter_ns() - began) / 1e6)
            tenant.end()
            guard.events()
        name = "tracepoint tier: from the call to the end of the process"
        report(name, spread(took), f"{KILLS} processes", "p99 <= 150 ms", p99(took) <= 150)


def test_a_look_at_all_descriptors(report) -> None:
    with world() as (guard, group, _), contextlib.ExitStack() as opened:
        guard.limit(group.path, 64 * MIB)

        def look() -> float:
            began = time.thread_time_ns()
            guard.settle()
            return (time.thread_time_ns() - began) / 1e6

        before = min(look() for _ in range(15))
        count = 10_000
        for _ in range(count):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        after = min(look() for _ in range(15))
        each = (after - before) * 1e6 / count
        report(
            "tracepoint tier: a look at who has descriptors",
            f"{each:.0f} ns a descriptor",
            f"{before:.2f} ms for those of this machine, {after:.2f} ms with {count} more",
            "<= 1000 ns",
            each <= 1000,
        )


@dataclass(frozen=True)
class Wall:
    """`put_up`: restricts a cgroup's opens of the guarded majors to the granted devices. It also gets the parent
    cgroup, which only the benchmark uses, for walls that have a part there. `bounds`: ns that an open may take longer,
    in the order of OPENS."""

    v2: bool
    put_up: Callable[[Cgroup, Cgroup, devices.Guarded, set[devices.Number]], None]
    bounds: tuple[int, int, int]


def shut(above: Cgroup, group: Cgroup, guarded: devices.Guarded, granted: set[devices.Number]) -> None:
    """Attaches a grant's device program, and above it the exclusive program, which lets the grant pass."""
    devices.Program().hold(group.path, guarded, granted)
    program = exclusive.Exclusive([(major, 0, (1 << 20) - 1) for major in guarded], "gpushare_bench")
    program.passes.add(exclusive.user(0xFFFF))
    program.passes.add(exclusive.group(group.path))
    program.attach(above.path)
    program.close()


WALLS = {
    "device program": Wall(
        True, lambda _, group, majors, granted: devices.Program().hold(group.path, majors, granted), (300, 300, 300)
    ),
    "device program and exclusive": Wall(True, shut, (600, 300, 300)),
    # The kernel checks its rules, one for each of 256 minors, one after another.
    "v1 devices controller": Wall(
        False,
        lambda _, group, majors, granted: devices.Controller().hold(group.path, majors, granted),
        (6000, 6000, 300),
    ),
}
NULL, ZERO = ("/dev/null", (1, 3)), ("/dev/zero", (1, 5))
OPENS = {
    "a granted device": ("held", NULL[0], 0),
    "a device that is not guarded": ("apart", NULL[0], 0),
    "a denied open": ("held", ZERO[0], errno.EPERM),
}
"""(cgroup, path, expected errno)."""
GRANTED = {NULL[1], (250, 0), (250, 255), (251, 0)}
"""As many devices as a grant of one GPU has, with NVIDIA's control nodes."""


@contextlib.contextmanager
def walled(wall: Wall) -> Iterator[dict[str, Cgroup]]:
    """Cgroups: one without the wall, one behind it, and one behind a wall that guards majors other than the one
    opened."""
    with contextlib.ExitStack() as ends:
        here = Hierarchies.of()
        if (root := here.unified if wall.v2 else here.devices) is None:
            pytest.skip("this machine has no such cgroups")
        groups = {}
        for name, majors in {"bare": (), "held": (1, 250, 251), "apart": (249, 250, 251)}.items():
            above = Cgroup(root / f"gst-walls-{os.getpid()}-{name}", wall.v2)
            above.make()
            ends.callback(until, above.remove, "the cgroups go")
            groups[name] = Cgroup(above.path / "in", wall.v2)
            groups[name].make()
            if majors:
                wall.put_up(above, groups[name], dict.fromkeys(majors, ()), GRANTED)
        yield groups


@pytest.mark.parametrize("name", WALLS)
def test_cost_of_an_open(report, name: str) -> None:
    wall = WALLS[name]
    with walled(wall) as groups, contextlib.ExitStack() as ends:
        tenant = Tenant(NULL[0], groups["bare"])
        ends.callback(tenant.end)

        def took(where: str, path: str, wanted: int) -> int:
            groups[where].add(tenant.process.pid)
            found = int(tenant.ask("opens", OPEN_CALLS, wanted, path))
            assert found > 0, f"{path} in {where}: not errno {wanted}"
            return found

        found: dict[str, list[tuple[int, int]]] = {what: [] for what in OPENS}
        for _ in range(ROUNDS):
            for what, (where, path, wanted) in OPENS.items():
                found[what].append((took("bare", path, 0), took(where, path, wanted)))
        for (what, pairs), bound in zip(found.items(), wall.bounds, strict=True):
            more = [new - old for old, new in pairs]
            low, middle, high = statistics.quantiles(more)
            measured = f"{middle:+.0f} ns (median of {ROUNDS} pairs, half of them {low:+.0f} to {high:+.0f})"
            bare = statistics.median(old for old, _ in pairs)
            report(f"open, {name}: {what}", measured, f"without: {bare:.0f} ns", f"<= {bound} ns", middle <= bound)
