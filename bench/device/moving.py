"""Memory that is moved out of the device and back while a benchmark has the clock: a hand-made grant that lends, a host
pool whose segments have their memory from the start, and a program that also copies the same bytes itself."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interposed
from timing import quiet

from gpushare import paths
from gpushare._native import lib

MIB, GIB = 1 << 20, 1 << 30

LINK_GBPS = 0.125
"""Of the modelled link: so slow that this machine moves bytes faster, also into new memory of the simulated device."""
REAL_GBPS = 54.7
"""What an H200's link was measured at: pinned copies to the device (bench/results/gpu)."""
CALLS_NS = (193_000, 1_450, 36_000, 25_600)
"""Creating, mapping, granting access and unmapping, each for one handle: kvcached's on an A100, with 2 MiB. Modelled,
and slowed as much as the link, so that they are the part of a copy that they are there."""


def noting(report: Callable[..., None]) -> Callable[..., None]:
    """A `report` that says next to the baseline where others had much of the machine since now."""
    before = quiet.Usage.now()

    def noted(name: str, measured: str, baseline: str, target: str, holds: bool) -> None:
        busy = quiet.why_not(*quiet.Usage.now().others(before))
        report(name, measured, f"{baseline}; {busy}" if busy else baseline, target, holds)

    return noted


def calls(slowed: float) -> str:
    """The simulator's option."""
    return ",".join(str(round(slowed * ns)) for ns in CALLS_NS)


def simulated(directory: Path, *, gbps: float = LINK_GBPS, slowed: float | None = None) -> Simulator:
    """A device of 40 GiB, whose calls that map memory take as long as there, `slowed` so many times."""
    factor = REAL_GBPS / gbps if slowed is None else slowed
    return Simulator(directory, "1x40GiB", "--copy-gbps", str(gbps), "--vmm-ns", calls(factor))


class Pool(Lender):
    """Its segments are filled when they are made, as the host pool's helper does."""

    def fill(self, file: int, size: int) -> None:
        os.posix_fallocate(file, 0, size)


def began(lender: Lender, residency: int) -> tuple[int, int]:
    """The word that was written, and when."""
    if residency == lib.GS_HOSTED:
        lender.revoke()
    at = time.perf_counter_ns()
    return lender.want(residency), at


def ended(lender: Lender, word: int, began_ns: int) -> float:
    """Milliseconds from `began_ns` until the process has carried the word out."""
    while lender.slot().residency != word:
        time.sleep(0.0001)
    took = (time.perf_counter_ns() - began_ns) / 1e6
    assert lender.slot().move == lib.GS_MOVED, lender.slot().move
    if word & ((1 << lib.GS_RESIDENCY_SHIFT) - 1) != lib.GS_HOSTED:
        lender.lease()
    return took


def moved(lender: Lender, residency: int) -> float:
    """Milliseconds that it takes."""
    return ended(lender, *began(lender, residency))


PROGRAM = """
    import time
    sizes = {sizes!r}
    blocks = [ok(d.cuMemAlloc(size)) for size in sizes]
    stream = ok(d.cuStreamCreate(1))
    module = ok(d.cuModuleLoadData(open({ptx!r}, "rb").read()))
    spin = ok(d.cuModuleGetFunction(module, b"spin_ns"))
    def launch():
        ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ((1000,), (ctypes.c_uint64,)), 0))
        ok(d.cuStreamSynchronize(stream))
    def launch_time():
        began = time.perf_counter_ns()
        launch()
        return (time.perf_counter_ns() - began) / 1e6
    def plain(out):
        at, began = int(pinned), time.perf_counter_ns()
        for block, size in zip(blocks, sizes):
            if out:
                ok(d.cuMemcpyDtoHAsync(at, block, size, stream))
            else:
                ok(d.cuMemcpyHtoDAsync(block, at, size, stream))
            at += size
        ok(d.cuStreamSynchronize(stream))
        return (time.perf_counter_ns() - began) / 1e6
"""


def program(sizes: Sequence[int]) -> str:
    """What a worker does that has these allocations."""
    return PROGRAM.format(sizes=list(sizes), ptx=str(paths.SPIN_PTX))


class Program(Interposed):
    """Has allocations of these sizes, and, if it is to copy them itself, as much pinned memory."""

    def __init__(self, sim: Simulator, lender: Lender, sizes: Sequence[int], *, copies: bool = True) -> None:
        super().__init__(sim, lender)
        self.lender, self.size = lender, sum(sizes)
        self.do(program(sizes))
        if copies:
            self.do(f"pinned = ok(d.cuMemHostAlloc({self.size}, 0))")
            for out in (True, False):
                self.plain(out=out)

    def plain(self, *, out: bool) -> float:
        """Milliseconds of copying everything, one allocation after the other, in one stream."""
        self.works()
        return float(self.get(f"plain({out})"))

    def works(self) -> None:
        """It is not idle now, and what was copied ahead is void."""
        self.do("launch()")

    def is_clean(self) -> bool:
        return self.lender.slot().clean_bytes == self.lender.slot().movable_bytes == self.size


def medians(count: int, *turns: Callable[[], float]) -> list[float]:
    """The median of each, in turns."""
    found = [[turn() for turn in turns] for _ in range(count)]
    return [statistics.median(one) for one in zip(*found, strict=True)]
