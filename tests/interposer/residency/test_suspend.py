"""Memory of a grant leaves the device and comes back, by hand: the program keeps its addresses and its bytes."""

import pytest
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose, Interposed

from gpushare._native import lib

MIB = 1 << 20
PROXY = 512


@pytest.fixture
def worker(lender: Lender, interpose: Interpose) -> Interposed:
    return interpose(lender)


def held(sim: Simulator, worker: Interposed) -> int:
    return sum(row["bytes"] for row in sim.books()["devices"][0]["processes"] if row["pid"] == worker.pid)


def filled(worker: Interposed, name: str, size: int, seed: int) -> None:
    """An allocation with bytes that are its own everywhere."""
    worker.do(f"""
        import random
        {name} = ok(d.cuMemAlloc({size}))
        {name}_bytes = random.Random({seed}).randbytes({size})
        ok(d.cuMemcpyHtoD({name}, {name}_bytes, {size}))
    """)


def same(worker: Interposed, name: str) -> bool:
    worker.do(f"""
        back = bytearray(len({name}_bytes))
        ok(d.cuMemcpyDtoH(back, {name}, len({name}_bytes)))
    """)
    return bool(worker.get(f"bytes(back) == {name}_bytes"))


def test_memory_leaves_the_device_and_comes_back(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    before = held(sim, worker)
    sizes = {"a": 3 * MIB + 7, "b": 64 * MIB, "c": 2 * MIB}
    for seed, (name, size) in enumerate(sizes.items()):
        filled(worker, name, size, seed)
    movable = sum(-(-size // (2 * MIB)) * 2 * MIB for size in sizes.values())
    assert held(sim, worker) == lender.charged(0) >= before + movable
    assert lender.slot().movable_bytes == movable
    assert lender.suspend() == lib.GS_MOVED
    assert lender.slot().hosted_bytes == movable
    assert held(sim, worker) == lender.charged(0) - movable  # the proxies stay
    assert sum(lender.segments) == movable
    assert lender.resume() == lib.GS_MOVED
    assert lender.slot().hosted_bytes == 0
    assert held(sim, worker) == lender.charged(0)
    assert lender.segments == []
    assert all(same(worker, name) for name in sizes)
    for name in sizes:
        worker.do(f"ok(d.cuMemFree({name}))")
    assert lender.slot().movable_bytes == 0
    assert lender.charged(0) == held(sim, worker)
