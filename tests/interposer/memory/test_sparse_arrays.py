"""Memory that is mapped into a sparse array stays charged when its handle is released."""

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import Interpose, Interposed

LIMIT = 2 << 30
OUT = "CUDA_ERROR_OUT_OF_MEMORY"
SIZE = 64 * MIB

HELPERS = """
    def memory(size):
        how = d.CUmemAllocationProp()
        how.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        how.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        how.allocFlags.usage = 1
        return d.cuMemCreate(size, how, 0)
    def sparse(side=8192):
        shape = d.CUDA_ARRAY3D_DESCRIPTOR()
        shape.Width = shape.Height = side
        shape.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
        shape.NumChannels = 1
        shape.Flags = 0x40
        return ok(d.cuArray3DCreate(shape))
    def map(array, handle, tile, stream=s, tiles=1024):
        one = d.CUarrayMapInfo()
        one.resourceType = d.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        one.resource.array = array
        one.memOperationType = d.CUmemOperationType(1 if handle else 2)
        one.memHandle.memHandle = handle
        level = one.subresource.sparseLevel
        level.offsetY = tile * 128 * tiles // 64
        level.extentWidth, level.extentHeight, level.extentDepth = 8192, 128 * tiles // 64, 1
        one.deviceBitMask = 1
        return d.cuMemMapArrayAsync([one], 1, stream)
"""


@pytest.fixture
def worker(grant: Grant, interpose: Interpose) -> Interposed:
    made = interpose(grant)
    made.do("s = ok(d.cuStreamCreate(1))")
    made.do(HELPERS)
    return made


def test_tiles_keep_memory(worker: Interposed) -> None:
    worker.do(f"a = sparse(); h = ok(memory({SIZE})); ok(map(a, h, 0)); ok(d.cuStreamSynchronize(s))")
    worker.do("ok(d.cuMemRelease(h))")
    assert worker.charged() == CONTEXT + SIZE
    worker.do(f"g = ok(memory({SIZE})); b = sparse(); ok(map(a, g, 1)); ok(map(b, g, 0)); ok(d.cuMemRelease(g))")
    worker.do("ok(d.cuCtxSynchronize()); ok(d.cuArrayDestroy(a))")
    assert worker.charged() == CONTEXT + SIZE, "b has it"
    worker.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert worker.charged() == 0


def test_an_array_ends_with_its_context_and_not_with_another(worker: Interposed) -> None:
    worker.do("other = ok(d.cuCtxCreate(None, 0, 0)); a = sparse(); ok(d.cuCtxSetCurrent(ctx))")
    worker.do(f"h = ok(memory({SIZE})); ok(map(a, h, 0)); ok(d.cuStreamSynchronize(s)); ok(d.cuMemRelease(h))")
    worker.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert worker.charged() == CONTEXT + SIZE
    worker.do("ok(d.cuCtxDestroy(other))")
    assert worker.charged() == 0


def test_never_over_the_limit(worker: Interposed, grant: Grant, sim: Simulator) -> None:
    """Mapped, released, unmapped behind a blocked stream: the charge is never below what the device holds."""
    worker.do("""
        import ctypes
        flag = ok(d.cuMemHostAlloc(4, 2)); at = ok(d.cuMemHostGetDevicePointer(flag, 0))
        ctypes.c_uint32.from_address(int(flag)).value = 0
        a = sparse(16384)
        ok(d.cuStreamWaitValue32(s, at, 1, 1))
    """)
    worker.do(f"""
        n = 0
        while True:
            answer = memory({SIZE})
            if answer[0] != d.CUresult.CUDA_SUCCESS:
                assert answer[0].name == {OUT!r}
                break
            ok(map(a, answer[1], n % 4)); ok(map(a, 0, n % 4)); ok(d.cuMemRelease(answer[1]))
            n += 1
        assert n == {(LIMIT - CONTEXT) // SIZE}
    """)
    assert worker.charged() <= LIMIT
    assert sim.books()["devices"][0]["peak_bytes"] <= LIMIT
    worker.do("ctypes.c_uint32.from_address(int(flag)).value = 1; ok(d.cuStreamSynchronize(s))")
    assert grant.charged(0, worker.pid) >= worker.truth()
    worker.do("ok(d.cuArrayDestroy(a))")
    assert worker.charged() == CONTEXT
