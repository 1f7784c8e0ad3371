"""What the tracepoint tier costs: of a system call and of an ioctl, with it and without in turns; until a process that
takes too much has ended; and of a look at all descriptors. Of processor time but for the second. A terminal stands in
for the driver (tests/guard)."""

import contextlib
import os
import pty
import statistics
import subprocess
import time
from collections.abc import Iterator

import built
from waiting import until

from gpushare._native import lib
from gpushare.enforce import rm
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.enforce.guard import Guard

MIB = 1 << 20
ROUNDS, CALLS, KILLS = 41, 10_000, 100
WHAT = {
    0: ("getppid", 200),
    1: ("another ioctl of the device", 300),
    2: ("an allocation that is refused", 1000),
    3: ("an allocation", 2000),
}
"""What the tenant is told to time, and how many ns it may take longer."""


class Tenant:
    def __init__(self, path: str, group: Cgroup) -> None:
        self.process = subprocess.Popen(
            [built.program("rmtenant"), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        group.add(self.process.pid)

    def say(self, *words: object) -> str:
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
                    found.setdefault((what, attached), []).append(int(tenant.say("time", CALLS, what)))
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
    """From before it asks to its end as its parent sees it."""
    with world() as (guard, group, path):
        guard.limit(group.path, 64 * MIB)
        took = []
        for _ in range(KILLS):
            tenant = Tenant(path, group)
            began = time.perf_counter_ns()
            assert tenant.say("alloc", 1, 10, 128 * MIB, 0) == ""
            assert tenant.process.wait() == -9
            took.append((time.perf_counter_ns() - began) / 1e6)
            tenant.end()
            guard.events()
        took.sort()
        measured = f"p50 {statistics.median(took):.2f} ms, p99 {took[-2]:.2f} ms, max {took[-1]:.2f} ms"
        report(
            "tracepoint tier: from the call to the end of the process",
            measured,
            f"{KILLS} processes",
            "p99 <= 150 ms",
            took[-2] <= 150,
        )


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
