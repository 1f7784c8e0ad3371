"""What moving a grant's memory costs next to copying the same bytes: a modelled link, and calls that map memory as slow
as the link is (moving.py)."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from measures import quantile, spread
from moving import GIB, LINK_GBPS, MIB, Pool, Program, began, calls, ended, medians, moved, noting, program, simulated
from pages.handmade import Grant
from run.interposed import Interposed
from run.running import Daemon, daemon_apart, start
from run.simworker import Worker
from run.waiting import until

from gpushare._native import lib
from gpushare.errors import CannotMoveError

PREPARED_PART, CLEAN_MS, EXCHANGE_PART, STEP_PART, WAKE_MS = 0.9, 50, 1.15, 0.005, 50
QUICKER_GBPS = 0.25
"""Where an end of a copy that is late by what this machine takes for it is no part of what is measured."""
EQUAL = [16 * MIB] * 8
SIZES = {
    "8 allocations of 16 MiB": EQUAL,
    "256 MiB as PyTorch allocates": [64 * MIB] + [20 * MIB] * 9 + [2 * MIB] * 6,
    "32 allocations of 2 MiB": [2 * MIB] * 32,
}
MAPPING_BOUND = "32 allocations of 2 MiB"
"""A copy takes a sixth of the time that the driver's calls take: nothing that gpushare does reaches the link."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a grant directory is trusted only when root owns it")


@pytest.fixture
def report(report: Callable[..., None]) -> Callable[..., None]:
    return noting(report)


class Played:
    """Programs in grants of their own, on one device."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.programs: list[Interposed] = []
        self.grants: list[Grant] = []
        self.options: dict[str, Any] = {}
        self._sim: Any = None

    @property
    def sim(self) -> Any:
        self._sim = self._sim or simulated(self.directory / "sim", **self.options)
        return self._sim

    def grant(self, kind: type[Grant] = Pool) -> Any:
        made = kind(self.directory / f"grant{len(self.grants)}", self.sim)
        made.set_limit(18 * GIB)
        made.lease()
        self.grants.append(made)
        return made

    def __call__(self, sizes: list[int], *, copies: bool = True, kind: type[Grant] = Pool) -> Program:
        self.programs.append(Program(self.sim, self.grant(kind), sizes, copies=copies))
        return self.programs[-1]

    def bare(self) -> Interposed:
        self.programs.append(Interposed(self.sim, None, before="import time"))
        return self.programs[-1]

    def end(self) -> None:
        for one in self.programs:
            one.kill()
        for grant in self.grants:
            grant.close()
        if self._sim:
            self._sim.stop()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.end()


def leave(one: Program) -> float:
    """Not clean: milliseconds."""
    one.works()
    return moved(one.lender, lib.GS_HOSTED)


def arrive(one: Program) -> float:
    """Milliseconds. It keeps its host memory."""
    return moved(one.lender, lib.GS_PREPARED)


def warmed(one: Program) -> Program:
    leave(one)
    arrive(one)
    return one


@pytest.mark.parametrize("what", SIZES)
def test_prepared(report, played: Played, what: str) -> None:
    one = warmed(played(SIZES[what]))
    plain_out, left, came, plain_in = medians(
        5, lambda: one.plain(out=True), lambda: leave(one), lambda: arrive(one), lambda: one.plain(out=False)
    )
    for name, took, plain in (("demote", left, plain_out), ("resume", came, plain_in)):
        part, free = plain / took, what == MAPPING_BOUND
        report(
            f"{name}, prepared, {what}",
            f"{part:.3f} of a plain copy's rate (medians of 5; {took:.0f} ms)",
            f"the same bytes copied by the program: {plain:.0f} ms at {LINK_GBPS} GB/s",
            "none: bound by mapping" if free else f">= {PREPARED_PART}",
            free or part >= PREPARED_PART,
        )


def test_what_a_move_takes_beside_its_copies(report, played: Played) -> None:
    played.options = {"gbps": 54, "slowed": 1}
    one = warmed(played([2 * MIB], copies=False))
    found = [(leave(one), arrive(one)) for _ in range(50)]
    for name, took in zip(("demote", "resume"), zip(*found, strict=True), strict=True):
        report(f"{name} of 2 MiB, from the word to the answer", spread(took), "a copy of 38 us", "none", True)


UNMAPS = """
    def unmaps(size, count):
        handles = [ok(d.cuMemCreate(size, on_device(), 0)) for _ in range(count)]
        at = ok(d.cuMemAddressReserve(size * count, 0, 0, 0))
        for i, handle in enumerate(handles):
            ok(d.cuMemMap(int(at) + i * size, size, 0, handle, 0))
            ok(d.cuMemRelease(handle))
        ok(d.cuMemSetAccess(at, size * count, [access()], 1))
        ok(d.cuMemsetD8(at, 1, size * count))
        ok(d.cuCtxSynchronize())
        began = time.perf_counter_ns()
        for i in range(count):
            ok(d.cuMemUnmap(int(at) + i * size, size))
        took = (time.perf_counter_ns() - began) / 1e6
        ok(d.cuMemAddressFree(at, size * count))
        return took
"""
"""Milliseconds that the driver takes to unmap memory that has been used."""


@pytest.mark.parametrize("each", [32 * MIB, 128 * MIB])
def test_clean(report, played: Played, each: int) -> None:
    """Given up without a copy, up to 8 GiB. What takes time is to unmap them; the simulator gives their pages back to
    the kernel."""
    count = 64
    played.options = {"gbps": 54, "slowed": 1}
    one = played([each] * count, copies=False)
    moved(one.lender, lib.GS_PREPARED)
    found, plain = [], []
    bare = played.bare()
    bare.do(UNMAPS)
    for _ in range(3):
        until(one.is_clean, "all is copied ahead", 120)
        found.append(moved(one.lender, lib.GS_HOSTED))
        plain.append(float(bare.get(f"unmaps({each}, {count})")))
        arrive(one)
    beyond = statistics.median(took - driver for took, driver in zip(found, plain, strict=True))
    report(
        f"an idle, already copied program with {count} allocations of {each // MIB} MiB gives them up,"
        " beyond the driver's unmapping",
        f"{beyond:.0f} ms (median of 3; {statistics.median(found):.0f} ms)",
        f"{count} times cuMemUnmap of as much used memory: {statistics.median(plain):.0f} ms",
        f"<= {CLEAN_MS} ms",
        beyond <= CLEAN_MS,
    )


def test_exchange(report, played: Played) -> None:
    """One program's memory leaves while another's comes in. Neither is idle for so long that it is copied ahead."""
    played.options = {"gbps": QUICKER_GBPS}
    out, back = (warmed(played(EQUAL, copies=False)) for _ in range(2))
    leave(back)

    def exchange() -> float:
        nonlocal out, back
        out.works()
        words = [(one.lender, *began(one.lender, to)) for one, to in ((out, lib.GS_HOSTED), (back, lib.GS_PREPARED))]
        both = max(ended(*word) for word in words)
        out, back = back, out
        return both

    def one_way() -> float:
        took = []
        for move in (arrive, leave):
            out.works()
            took.append(move(back))
        return max(took)

    together, alone = medians(5, exchange, one_way)
    report(
        "128 MiB out while 128 MiB come in",
        f"{together / alone:.3f} of one way (medians of 5; {together:.0f} ms)",
        f"the slower way alone: {alone:.0f} ms",
        f"<= {EXCHANGE_PART}",
        together / alone <= EXCHANGE_PART,
    )


STEP = """
    host = ok(d.cuMemHostAlloc(1 << 20, 0))
    arguments = ((20_000,), (ctypes.c_uint64,))
    def step():
        began = time.perf_counter_ns()
        ok(d.cuMemcpyHtoDAsync(blocks[0], host, 1 << 20, stream))
        for i in range(100):
            ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0))
            if i % 10 == 0:
                ok(d.cuMemsetD8Async(blocks[1], i, 1 << 20, stream))
        ok(d.cuMemcpyDtoHAsync(host, blocks[0], 4096, stream))
        ok(d.cuStreamSynchronize(stream))
        return (time.perf_counter_ns() - began) / 1e6
    def pairs(size, count):
        found = []
        for _ in range(count):
            began = time.perf_counter_ns()
            ok(d.cuMemFree(ok(d.cuMemAlloc(size))))
            found.append(time.perf_counter_ns() - began)
        return sorted(found)[count // 2] / 1e3
"""
"""A step of 2 ms, and the median of allocations and frees in us."""


@pytest.fixture
def two(played: Played) -> list[Program]:
    """The same program in a grant that lends and in one that keeps."""
    played.options = {"gbps": 25, "slowed": 0}
    found = [played([4 * MIB] * 2, copies=False, kind=kind) for kind in (Pool, Grant)]
    for one in found:
        one.do(STEP)
    assert [one.lender.slot().movable_bytes for one in found] == [8 * MIB, 0]
    return found


def test_training_step(report, two: list[Program]) -> None:
    for one in two:
        one.do("for _ in range(100): step()")
    found = [[float(one.get("step()")) for one in (two if i % 2 else two[::-1])] for i in range(1000)]
    lends, keeps = zip(*(pair if i % 2 else pair[::-1] for i, pair in enumerate(found)), strict=True)
    more = statistics.median(lends) / statistics.median(keeps) - 1
    report(
        "a step of 100 launches, 10 fills and 2 copies in a grant that lends",
        f"{100 * more:+.2f} % (medians of {len(found)} pairs)",
        f"in one that keeps: {statistics.median(keeps):.3f} ms",
        f"<= {100 * STEP_PART} %",
        more <= STEP_PART,
    )


@pytest.mark.parametrize("size", [2 * MIB, 64 * MIB, GIB])
def test_allocation(report, two: list[Program], size: int) -> None:
    """Without what a driver's calls take: what gpushare and the simulator do."""
    lends, keeps = medians(15, *(lambda one=one: float(one.get(f"pairs({size}, 50)")) for one in two))
    report(
        f"cuMemAlloc and cuMemFree of {size // MIB} MiB in a grant that lends",
        f"{lends:.0f} us (medians; {lends / keeps:.2f} times)",
        f"in one that keeps: {keeps:.0f} us",
        "none",
        True,
    )


# With a real daemon.


class Tenant(Worker):
    """A worker of `gpushare run` in a grant that lends."""

    def __init__(self, daemon: Daemon, sizes: list[int]) -> None:
        self.daemon, self.size = daemon, sum(sizes)
        super().__init__(self)
        self.do("ok(d.cuInit(0)); ctx = context(0)")
        self.do(program(sizes))
        [grant] = daemon.client.grants()
        self.id = grant["id"]

    def spawn(self, *command: Any, env: object = None) -> Any:
        return start(self.daemon.run("8GiB", "50%", *command, idle_memory="lend"), self.daemon.env)

    def end(self) -> None:
        super().end()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def _asked(self) -> bool:
        """False: a call has just brought its memory back, which stays for a moment."""
        try:
            self.daemon.client.suspend(self.id)
        except CannotMoveError:
            return False
        return True

    def suspend(self) -> float:
        """Seconds, from when it may be suspended."""
        at = time.perf_counter()
        while not self._asked():
            time.sleep(0.01)
            at = time.perf_counter()
        until(lambda: self.daemon.client.grant(self.id)["residency"]["where"] == "suspended", "suspended", 60)
        return time.perf_counter() - at


@pytest.fixture
def hosting() -> Iterator[Callable[..., Daemon]]:
    stack = []

    def make(gbps: float) -> Daemon:
        env = {"GPUSHARE_SIM_COPY_GBPS": str(gbps), "GPUSHARE_SIM_VMM_NS": calls(1)}
        stack.append(daemon_apart(env=env, config='[memory]\nhost_pool = "6GiB"\nmove_seconds = 60\n'))
        return stack[-1].__enter__()

    yield make
    for one in stack:
        one.__exit__(None, None, None)


@pytest.mark.parametrize("size", [64 * MIB, 256 * MIB])
def test_wake(report, hosting: Callable[..., Daemon], size: int) -> None:
    """From a call of a suspended program to its return."""
    tenant = Tenant(hosting(QUICKER_GBPS), [4 * MIB] * (size // (4 * MIB)))
    copy = size / QUICKER_GBPS / 1e6
    found = []
    for _ in range(30):
        tenant.suspend()
        found.append(float(tenant.get("launch_time()")))
    tenant.end()
    beyond = sorted(one - copy for one in found)
    report(
        f"a launch of a suspended program with {size // MIB} MiB, beyond the copy's {copy:.0f} ms",
        f"{quantile(beyond, 0.5):.0f} ms (p50), {quantile(beyond, 0.99):.0f} ms (p99 of {len(found)})",
        f"{size // MIB} MiB at {QUICKER_GBPS} GB/s",
        f"<= {WAKE_MS} ms (p50)",
        quantile(beyond, 0.5) <= WAKE_MS,
    )


def filled(size: int) -> float:
    """GB/s at which this machine's kernel gives memory to a file."""
    file = os.memfd_create("plain")
    at = time.perf_counter()
    os.posix_fallocate(file, 0, size)
    took = time.perf_counter() - at
    os.close(file)
    return size / took / 1e9


def test_unprepared(report, hosting: Callable[..., Daemon]) -> None:
    """With everything that happens at a first suspend: host memory is made, passed on and pinned."""
    size = 2 * GIB
    tenant = Tenant(hosting(54), [64 * MIB] * (size // (64 * MIB)))
    rates, plain = [], []
    for _ in range(5):
        plain.append(filled(size))
        rates.append(size / tenant.suspend() / 1e9)
        tenant.get("launch_time()")
    tenant.end()
    report(
        f"a suspend of {size // GIB} GiB for which host memory has to be made",
        f"{statistics.median(rates):.2f} GB/s (median of 5)",
        f"the kernel fills a file at {statistics.median(plain):.2f} GB/s",
        "none",
        True,
    )
