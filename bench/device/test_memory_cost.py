"""The cost of waits and allocations in a grant, by what the program holds: nanoseconds more than the same calls made
directly into the same driver, in turns, in one process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from timing.memorycost import Held, added

WAIT_NS, ALLOC_ASYNC_NS, ALLOC_PART = 100, 300, 0.05
WAITS = ("cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize", "cuEventSynchronize", "cuEventQuery")
HELD = {
    "one allocation": Held(),
    "1,000 allocations, 100 in pools": Held(allocations=1000, blocks=100),
    "20,000 allocations": Held(allocations=20_000),
    "100 pools, 100 streams": Held(pools=100, streams=100),
}


@pytest.fixture(scope="module")
def grant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grant]:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    directory: Path = tmp_path_factory.mktemp("cost")
    simulator = Simulator(directory / "sim")
    made = Grant(directory / "grant", simulator)
    made.set_limit(3900 << 20)
    made.lease()
    yield made
    made.close()
    simulator.stop()


@pytest.mark.parametrize("what", HELD)
def test_memory_cost(report, grant: Grant, what: str) -> None:
    cost = added(grant, "time", HELD[what])
    worst = max(WAITS, key=lambda call: cost[call][0])
    more, bare = cost[worst]
    report(f"waits and queries with {what}", f"+{more:.0f} ns ({worst}, the worst of 5)", f"bare: {bare:.0f} ns",
           f"<= {WAIT_NS} ns", more <= WAIT_NS)  # fmt: skip
    more, bare = cost["cuMemAllocAsync"]
    report(f"cuMemAllocAsync with {what}", f"+{more:.0f} ns", f"bare: {bare:.0f} ns", f"<= {ALLOC_ASYNC_NS} ns",
           more <= ALLOC_ASYNC_NS)  # fmt: skip
    part, call = max((cost[call][0] / cost[call][1], call) for call in ("cuMemAlloc", "cuMemFree"))
    report(f"cuMemAlloc and cuMemFree with {what}", f"{100 * part:+.1f} % ({call})", f"bare: {cost[call][1]:.0f} ns",
           f"<= {100 * ALLOC_PART:.0f} %", part <= ALLOC_PART)  # fmt: skip
