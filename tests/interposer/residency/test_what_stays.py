"""A process says what of its memory stays on the device, by what it is."""

import pytest
from memory.moving import MIB
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose, Interposed
from run.waiting import until

from gpushare.binding.page_words import Fixed

MAKE = {
    Fixed.SMALL: ("[ok(d.cuMemAlloc(MIB)) for _ in range(8)]", 8 * MIB),
    Fixed.DIRECT: ("[ok(d.cuMemAllocPitch(128 << 10, 64, 4))]", 8 * MIB),
    Fixed.POOLS: ("[ok(d.cuMemAllocAsync(32 * MIB, s))]", 32 * MIB),
    Fixed.ARRAYS: ("[ok(d.cuArrayCreate(flat))]", 16 * MIB),
    Fixed.MANAGED: ("[ok(d.cuMemAllocManaged(6 * MIB, 1))]", 6 * MIB),
    Fixed.MAPPED: ("[ok(d.cuMemCreate(10 * MIB, how, 0))]", 10 * MIB),
    Fixed.SYNCED: ("[synced(ok(d.cuMemAlloc(12 * MIB)))]", 12 * MIB),
}
"""What to allocate, and bytes of it."""

HELPERS = """
    MIB = 1 << 20
    s = ok(d.cuStreamCreate(1))
    flat = d.CUDA_ARRAY_DESCRIPTOR()
    flat.Width, flat.Height, flat.NumChannels = 2048, 2048, 1
    flat.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
    how = d.CUmemAllocationProp()
    how.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    how.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    def synced(address):
        ok(d.cuPointerSetAttribute(1, d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address))
        return address
"""


@pytest.fixture
def worker(lender: Lender, interpose: Interpose) -> Interposed:
    made = interpose(lender)
    made.do(HELPERS)
    return made


def said(lender: Lender) -> dict[Fixed, int]:
    words = lender.usage.slot[0].fixed_bytes
    return {kind: words[kind] for kind in Fixed if words[kind]}


@pytest.mark.parametrize("kind", MAKE)
def test_it_is_known_by_what_it_is(lender: Lender, worker: Interposed, kind: Fixed) -> None:
    before = said(lender).get(kind, 0)
    make, size = MAKE[kind]
    worker.do(f"made = {make}; moves = ok(d.cuMemAlloc(4 * MIB))")
    until(lambda: said(lender).get(kind, 0) >= before + size, f"{kind.name}: {said(lender)}")
    others = {other: held for other, held in said(lender).items() if other != kind}
    assert not others.keys() - {Fixed.SMALL}, "nothing else"
    assert lender.slot().movable_bytes == 4 * MIB
    rest = lender.charged(0) - 4 * MIB - sum(said(lender).values())
    assert rest >= 0, "what is said to stay is charged"


def test_it_is_gone_when_it_is_freed(sim: Simulator, lender: Lender, worker: Interposed) -> None:
    worker.do("made = [ok(d.cuMemAlloc(MIB)) for _ in range(4)]")
    until(lambda: said(lender).get(Fixed.SMALL, 0) >= 4 * MIB)
    worker.do("[ok(d.cuMemFree(each)) for each in made]")
    until(lambda: said(lender).get(Fixed.SMALL, 0) < MIB)
