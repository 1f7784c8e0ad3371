"""Virtual memory management: physical memory lives until its last handle and its last mapping are gone."""

from typing import Any

import pytest
from run.simworker import Worker, held, start

GRAIN = 2 << 20
INVALID = "CUDA_ERROR_INVALID_VALUE"
SHAREABLE = "d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"


@pytest.fixture
def worker(sim: Any) -> Worker:
    return start(sim)


def test_granularity_and_properties(worker: Worker) -> None:
    assert worker.get("ok(d.cuMemGetAllocationGranularity(on_device(), 0))") == GRAIN
    assert worker.get("ok(d.cuMemGetAllocationGranularity(on_device(), 1))") == GRAIN
    worker.do("h = ok(d.cuMemCreate(2 << 20, on_device(device=1), 0))")
    assert worker.get("int(ok(d.cuMemGetAllocationPropertiesFromHandle(h)).location.id)") == 1


def test_a_mapping_reads_and_writes_after_access_was_given(sim: Any, worker: Worker) -> None:
    worker.do("h = ok(d.cuMemCreate(4 << 20, on_device(), 0)); a = ok(d.cuMemAddressReserve(8 << 20, 0, 0, 0))")
    assert held(sim, worker) == 2 * GRAIN
    worker.do("""
        ok(d.cuMemMap(d.CUdeviceptr(int(a) + (2 << 20)), 4 << 20, 0, h, 0)); m = d.CUdeviceptr(int(a) + (2 << 20))
    """)
    assert worker.error("d.cuMemcpyHtoD(m, bytes(100), 100)") == INVALID
    worker.do("ok(d.cuMemSetAccess(m, 4 << 20, [access()], 1)); put(m, b'abc' * 1000)")
    assert worker.get("get(m, 3000) == b'abc' * 1000")
    assert worker.error("d.cuMemcpyHtoD(a, bytes(100), 100)") == INVALID
    assert held(sim, worker) == 2 * GRAIN


def test_a_retained_handle_keeps_the_memory(sim: Any, worker: Worker) -> None:
    worker.do("""
        h = ok(d.cuMemCreate(2 << 20, on_device(), 0)); a = ok(d.cuMemAddressReserve(2 << 20, 0, 0, 0))
        ok(d.cuMemMap(a, 2 << 20, 0, h, 0))
    """)
    worker.do("again = ok(d.cuMemRetainAllocationHandle(int(a)))")
    assert worker.get("int(again) == int(h)")
    worker.do("ok(d.cuMemRelease(h)); ok(d.cuMemUnmap(a, 2 << 20))")
    assert held(sim, worker) == GRAIN
    worker.do("ok(d.cuMemRelease(again))")
    assert held(sim, worker) == 0


def test_one_memory_at_two_addresses(worker: Worker) -> None:
    worker.do("""
        h = ok(d.cuMemCreate(2 << 20, on_device(), 0)); a = ok(d.cuMemAddressReserve(4 << 20, 0, 0, 0))
        b = d.CUdeviceptr(int(a) + (2 << 20))
        ok(d.cuMemMap(a, 2 << 20, 0, h, 0)); ok(d.cuMemMap(b, 2 << 20, 0, h, 0))
        ok(d.cuMemSetAccess(a, 4 << 20, [access()], 1))
        put(a, b'seen twice')
    """)
    assert worker.get("get(b, 10) == b'seen twice'")
    worker.do("ok(d.cuMemUnmap(a, 4 << 20)); ok(d.cuMemAddressFree(a, 4 << 20)); ok(d.cuMemRelease(h))")


@pytest.fixture
def neighbours(worker: Worker) -> Worker:
    """Three adjacent mappings of 2 MiB, then 2 MiB of reserved addresses: at(n) is an address in them."""
    worker.do("""
        size = 2 << 20; a = ok(d.cuMemAddressReserve(4 * size, 0, 0, 0)); at = lambda n: d.CUdeviceptr(int(a) + n)
        for i in range(3):
            h = ok(d.cuMemCreate(size, on_device(), 0)); ok(d.cuMemMap(at(i * size), size, 0, h, 0))
            ok(d.cuMemRelease(h))
        edge, last, stream = at(size - 8), at(3 * size - 8), ok(d.cuStreamCreate(1))
    """)
    return worker


COPIES = {
    "to the host and from it": "put(edge, data)",
    "asynchronous": "ok(d.cuMemcpyHtoDAsync(edge, ctypes.addressof(source), 16, stream))",
    "within the device": "put(far, data); ok(d.cuMemcpyDtoD(edge, far, 16))",
    "within the device, asynchronous": "put(far, data); ok(d.cuMemcpyDtoDAsync(edge, far, 16, stream))",
    "of unified addresses": "put(far, data); ok(d.cuMemcpy(edge, far, 16))",
    "of unified addresses, asynchronous": "put(far, data); ok(d.cuMemcpyAsync(edge, far, 16, stream))",
    "between devices": "put(far, data); ok(d.cuMemcpyPeer(edge, ctx, far, ctx, 16))",
    "rows": """ok(d.cuMemcpy2D(made(d.CUDA_MEMCPY2D, **host('src', ctypes.addressof(source)), srcPitch=4,
        **device('dst', edge), dstPitch=4, WidthInBytes=4, Height=4)))""",
    "layers": """ok(d.cuMemcpy3D(made(d.CUDA_MEMCPY3D, **host('src', ctypes.addressof(source)), srcPitch=4, srcHeight=2,
        **device('dst', edge), dstPitch=4, dstHeight=2, WidthInBytes=4, Height=2, Depth=2)))""",
}


@pytest.mark.parametrize("call", COPIES.values(), ids=COPIES)
def test_a_copy_may_span_neighbouring_mappings(neighbours: Worker, call: str) -> None:
    neighbours.do("""
        ok(d.cuMemSetAccess(a, 3 * size, [access()], 1)); data = bytes(range(16)); far = at(2 * size - 8)
        source = ctypes.create_string_buffer(data, 16)
    """)
    neighbours.do(call)
    neighbours.do("ok(d.cuStreamSynchronize(stream))")
    assert neighbours.get("get(edge, 16) == data")
    assert neighbours.error("d.cuMemcpyDtoD(last, a, 16)") == INVALID, "the addresses behind them are not mapped"


@pytest.mark.parametrize("element", [1, 2, 4])
@pytest.mark.parametrize("form", ["", "Async", "2D", "2DAsync"])
def test_a_fill_may_span_neighbouring_mappings(neighbours: Worker, element: int, form: str) -> None:
    name = f"d.cuMemset{'D2' if '2D' in form else ''}D{8 * element}{'Async' if 'Async' in form else ''}"
    amount = f"8, 7, {8 // element}, 2" if "2D" in form else f"7, {16 // element}"
    fill = f"{name}({{}}, {amount}{', stream' if 'Async' in form else ''})"
    assert neighbours.error(fill.format("edge")) == INVALID, "access has not been given"
    neighbours.do("ok(d.cuMemSetAccess(a, 3 * size, [access()], 1)); put(at(size - 16), bytes(32))")
    neighbours.do(f"ok({fill.format('edge')}); ok(d.cuCtxSynchronize())")
    want = (bytes([7]) + bytes(element - 1)) * (16 // element)
    assert neighbours.get("list(get(at(size - 16), 32))") == list(bytes(8) + want + bytes(8))
    assert neighbours.error(fill.format("last")) == INVALID, "the addresses behind them are not mapped"


def test_one_call_gives_access_to_several_mappings_and_one_removes_them(sim: Any, neighbours: Worker) -> None:
    assert neighbours.error("d.cuMemSetAccess(a, 4 * size, [access()], 1)") == INVALID
    assert neighbours.error("d.cuMemSetAccess(a, size + (1 << 20), [access()], 1)") == INVALID
    neighbours.do("ok(d.cuMemSetAccess(at(size), 2 * size, [access()], 1))")
    assert neighbours.error("d.cuMemsetD8(at(0), 0, 1)") == INVALID, "this one was left out"
    assert neighbours.error("d.cuMemsetD8(at(size), 0, 2 * size)") == "CUDA_SUCCESS"
    assert neighbours.error("d.cuMemUnmap(at(size), size + (1 << 20))") == INVALID
    assert neighbours.error("d.cuMemUnmap(a, 4 * size)") == INVALID
    assert held(sim, neighbours) == 3 * GRAIN, "a call that is refused has unmapped nothing"
    neighbours.do("ok(d.cuMemUnmap(at(size), 2 * size))")
    assert held(sim, neighbours) == GRAIN
    neighbours.do("ok(d.cuMemUnmap(a, size)); ok(d.cuMemAddressFree(a, 4 * size))")
    assert held(sim, neighbours) == 0


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("d.cuMemCreate(1000, on_device(), 0)", INVALID),
        ("d.cuMemCreate(0, on_device(), 0)", INVALID),
        ("d.cuMemCreate(1 << 63, on_device(), 0)", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("d.cuMemCreate(16 << 30, on_device(), 0)", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("d.cuMemCreate(2 << 20, on_device(device=7), 0)", "CUDA_ERROR_INVALID_DEVICE"),
        ("d.cuMemAddressReserve(1000, 0, 0, 0)", INVALID),
        ("d.cuMemMap(d.CUdeviceptr(int(a) + (2 << 20)), 4 << 20, 0, h, 0)", INVALID),
        ("d.cuMemMap(a, 2 << 20, 2 << 20, h, 0)", INVALID),
        ("d.cuMemUnmap(a, 2 << 20)", INVALID),
        ("d.cuMemAddressFree(a, 2 << 20)", INVALID),
        ("d.cuMemFree(a)", INVALID),
        ("d.cuMemExportToShareableHandle(h, " + SHAREABLE + ", 0)", INVALID),
    ],
)
def test_refusals(worker: Worker, sim: Any, call: str, result: str) -> None:
    worker.do("h = ok(d.cuMemCreate(2 << 20, on_device(), 0)); a = ok(d.cuMemAddressReserve(4 << 20, 0, 0, 0))")
    assert worker.error(call) == result
    assert held(sim, worker) == GRAIN


def test_an_exported_handle_shows_another_process_the_same_bytes(sim: Any) -> None:
    one, two = start(sim), start(sim, env={"CUDA_VISIBLE_DEVICES": "1,0"}, device=1)
    one.do(f"""
        h = ok(d.cuMemCreate(2 << 20, on_device({SHAREABLE}), 0))
        a = ok(d.cuMemAddressReserve(2 << 20, 0, 0, 0)); ok(d.cuMemMap(a, 2 << 20, 0, h, 0))
        ok(d.cuMemSetAccess(a, 2 << 20, [access()], 1))
        put(a, b'from one')
        fd = int(ok(d.cuMemExportToShareableHandle(h, {SHAREABLE}, 0)))
    """)
    two.do(f"""
        import os; fd = os.open("/proc/{one.pid}/fd/{one.get("fd")}", os.O_RDWR)
        h = ok(d.cuMemImportFromShareableHandle(fd, {SHAREABLE}))
        a = ok(d.cuMemAddressReserve(2 << 20, 0, 0, 0)); ok(d.cuMemMap(a, 2 << 20, 0, h, 0))
        ok(d.cuMemSetAccess(a, 2 << 20, [access(1)], 1))
    """)
    assert two.get("get(a, 8) == b'from one'")
    assert two.get("int(ok(d.cuMemGetAllocationPropertiesFromHandle(h)).location.id)") == 1
    two.do("put(a, b'from two')")
    assert one.get("get(a, 8) == b'from two'")
    assert (held(sim, one), held(sim, two)) == (GRAIN, 0)


def test_only_an_exported_file_can_be_imported(worker: Worker) -> None:
    worker.do("import os; fd = os.memfd_create('x'); os.ftruncate(fd, 5 << 20)")
    assert worker.error(f"d.cuMemImportFromShareableHandle(fd, {SHAREABLE})") == INVALID
    assert worker.error(f"d.cuMemImportFromShareableHandle(12345, {SHAREABLE})") == INVALID


def test_multicast_objects(sim: Any) -> None:
    """Of one device and of two: made, bound, mapped and unmapped. They have no memory of their own."""
    worker = start(sim)
    worker.do("""
        GRAIN, VALUES = 2 << 20, d.CUmulticastGranularity_flags
        def memory(device):
            location = made(d.CUmemLocation, type=d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, id=device)
            kind = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            return ok(d.cuMemCreate(GRAIN, made(d.CUmemAllocationProp, type=kind, location=location), 0))
        def use(devices):
            how = made(d.CUmulticastObjectProp, numDevices=devices, size=2 * GRAIN)
            for kind in (VALUES.CU_MULTICAST_GRANULARITY_MINIMUM, VALUES.CU_MULTICAST_GRANULARITY_RECOMMENDED):
                assert ok(d.cuMulticastGetGranularity(how, kind)) == GRAIN
            handle, memories = ok(d.cuMulticastCreate(how)), [memory(device) for device in range(devices)]
            at = ok(d.cuMemAddressReserve(2 * GRAIN, 0, 0, 0))
            assert d.cuMemMap(at, 2 * GRAIN, 0, handle, 0)[0].name == "CUDA_ERROR_INVALID_VALUE", "of no device yet"
            for device in range(devices):
                ok(d.cuMulticastAddDevice(handle, device))
            for device, one in enumerate(memories):
                ok(d.cuMulticastBindMem(handle, GRAIN, one, 0, GRAIN, 0))
            ok(d.cuMemMap(at, 2 * GRAIN, 0, handle, 0))
            access = made(d.CUmemAccessDesc, flags=d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            access.location = made(d.CUmemLocation, type=d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, id=0)
            ok(d.cuMemSetAccess(at, 2 * GRAIN, [access], 1))
            ok(d.cuMemRelease(handle)); ok(d.cuMemUnmap(at, 2 * GRAIN)); ok(d.cuMemAddressFree(at, 2 * GRAIN))
            [ok(d.cuMemRelease(one)) for one in memories]
    """)
    before = held(sim, worker)
    worker.do("use(1); use(2); use(1)")
    assert held(sim, worker) == before
