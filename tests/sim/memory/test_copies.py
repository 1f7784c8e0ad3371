"""Copies and fills move real bytes, in stream order, at the modelled speed."""

from typing import Any

import pytest
from run.simworker import Worker, start

INVALID = "CUDA_ERROR_INVALID_VALUE"
SPIN = (
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n  ret;\n}\n"
)


@pytest.fixture
def worker(sim: Any) -> Worker:
    made = start(sim)
    made.do(f"""
        import random
        s = ok(d.cuStreamCreate(1)); p = ok(d.cuMemAlloc(1 << 20)); q = ok(d.cuMemAlloc(1 << 20))
        data = random.Random(1).randbytes(1 << 20)
        function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData({SPIN.encode()!r} + bytes(1))), b'spin_ns'))
    """)
    made.do("""
        def spin(ms, stream):
            value = ctypes.c_uint64(int(ms * 1e6)); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
            ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(arguments), 0))
        at = lambda pointer, offset: d.CUdeviceptr(int(pointer) + offset)
    """)
    return made


def test_copies_at_any_offset(worker: Worker) -> None:
    """tests/interposer/rows has every copy and every fill of whole buffers."""
    worker.do("put(p, data); ok(d.cuMemcpyDtoD(at(q, 100), at(p, 5), 1000)); ok(d.cuMemcpy(at(p, 7), at(q, 101), 999))")
    assert worker.get("get(at(q, 100), 1000) == data[5:1005] and get(at(p, 7), 999) == data[6:1005]")


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("d.cuMemcpyHtoD(at(p, (1 << 20) - 5), bytes(6), 6)", INVALID),
        ("d.cuMemcpyHtoD(at(p, (1 << 20) - 5), bytes(5), 5)", "CUDA_SUCCESS"),
        ("d.cuMemcpyDtoD(p, q, (1 << 20) + 1)", INVALID),
        ("d.cuMemcpyDtoD(p, d.CUdeviceptr(4096), 10)", INVALID),
        ("d.cuMemcpyHtoD(d.CUdeviceptr(4096), b'', 0)", "CUDA_SUCCESS"),
        ("d.cuMemsetD8(at(p, 1), 0, 1 << 20)", INVALID),
        ("d.cuMemsetD32(at(p, 2), 0, 1)", INVALID),
        ("d.cuMemsetD32(p, 0, (1 << 62) + 1)", INVALID),
        ("d.cuMemsetD2D8(p, 10, 0, 11, 2)", INVALID),
    ],
)
def test_bounds(worker: Worker, call: str, result: str) -> None:
    assert worker.error(call) == result


def test_a_copy_happens_when_the_stream_gets_there_and_not_before(worker: Worker) -> None:
    worker.do("h = ok(d.cuMemHostAlloc(8, 0)); ctypes.memmove(int(h), b'12345678', 8); put(p, bytes(8)); spin(50, s)")
    worker.do("""
        ok(d.cuMemcpyHtoDAsync(p, h, 8, s)); ctypes.memmove(int(h), b'abcdefgh', 8); ok(d.cuStreamSynchronize(s))
    """)
    assert worker.get("get(p, 8) == b'abcdefgh'"), "pinned memory is read when the copy runs"


def test_small_pageable_sources_may_be_changed_at_once(worker: Worker) -> None:
    worker.do("source = ctypes.create_string_buffer(b'12345678', 8); put(p, bytes(8)); spin(20, s)")
    worker.do("""
        ok(d.cuMemcpyHtoDAsync(p, ctypes.addressof(source), 8, s)); source.raw = b'xxxxxxxx'
        ok(d.cuStreamSynchronize(s))
    """)
    assert worker.get("get(p, 8) == b'12345678'")


def test_a_copy_to_pageable_memory_is_done_on_return(worker: Worker) -> None:
    worker.do("put(p, b'12345678'); back = ctypes.create_string_buffer(8); spin(20, s)")
    worker.do("ok(d.cuMemcpyDtoHAsync(ctypes.addressof(back), p, 8, s))")
    assert worker.get("back.raw == b'12345678'")


def test_two_and_three_dimensions(worker: Worker) -> None:
    worker.do("""
        source = ctypes.create_string_buffer(data[:6000], 6000)
        left, right = host('src', ctypes.addressof(source)), device('dst', p)
        ok(d.cuMemcpy2D(made(d.CUDA_MEMCPY2D, **left, srcPitch=100, srcXInBytes=10, srcY=2, **right, dstPitch=512,
            dstXInBytes=4, dstY=1, WidthInBytes=50, Height=20)))
        for row in range(20):
            assert get(at(p, 4 + (row + 1) * 512), 50) == data[(row + 2) * 100 + 10:][:50]
        ok(d.cuMemcpy3D(made(d.CUDA_MEMCPY3D, **left, srcPitch=20, srcHeight=10, srcZ=1, **device('dst', q),
            dstPitch=64, dstHeight=16, WidthInBytes=8, Height=5, Depth=3)))
        for z in range(3):
            for y in range(5):
                assert get(at(q, (z * 16 + y) * 64), 8) == data[((z + 1) * 10 + y) * 20:][:8]
        bad = made(d.CUDA_MEMCPY2D, **device('src', p), srcPitch=10, **device('dst', q), dstPitch=64, WidthInBytes=50,
            Height=9)
    """)
    assert worker.error("d.cuMemcpy2D(bad)") == INVALID


def test_arrays(sim: Any, worker: Worker) -> None:
    before = sim.process(worker.pid)["bytes"]
    worker.do("""
        F = d.CUarray_format
        a = ok(d.cuArray3DCreate(made(d.CUDA_ARRAY3D_DESCRIPTOR, Width=100, Height=50, Depth=3, NumChannels=4,
            Format=F.CU_AD_FORMAT_FLOAT)))
        b = ok(d.cuArrayCreate(made(d.CUDA_ARRAY_DESCRIPTOR, Width=1000, Height=0, NumChannels=1,
            Format=F.CU_AD_FORMAT_UNSIGNED_INT8)))
        about = ok(d.cuArray3DGetDescriptor(a))
        bad = made(d.CUDA_ARRAY3D_DESCRIPTOR, Width=100, Height=50, Depth=3, NumChannels=3, Format=F.CU_AD_FORMAT_FLOAT)
    """)
    # 100 x 50 x 3 elements of 16 bytes, and 1000 of 1 byte, each rounded up to 512
    assert sim.process(worker.pid)["bytes"] - before == 240_128 + 1024
    assert worker.get("ok(d.cuArrayGetMemoryRequirements(b, 0)).size") == 1024
    assert worker.get("[about.Width, about.Height, about.Depth, about.NumChannels]") == [100, 50, 3, 4]
    worker.do("""
        put(p, data); ok(d.cuMemcpyDtoA(b, 10, p, 500)); ok(d.cuMemcpyAtoD(q, b, 20, 400))
        assert get(q, 400) == data[10:410]
        back = bytearray(100); ok(d.cuMemcpyAtoH((ctypes.c_char * 100).from_buffer(back), b, 10, 100))
        assert bytes(back) == data[:100]
        ok(d.cuMemcpy3D(made(d.CUDA_MEMCPY3D, **device('src', p), srcPitch=1600, srcHeight=50, **in_array('dst', a),
            WidthInBytes=1600, Height=50, Depth=3)))
        ok(d.cuMemcpy3D(made(d.CUDA_MEMCPY3D, **in_array('src', a), srcXInBytes=16, srcY=3, srcZ=2, **device('dst', q),
            dstPitch=160, dstHeight=4, WidthInBytes=160, Height=4, Depth=1)))
        for y in range(4):
            assert get(at(q, y * 160), 160) == data[((2 * 50 + 3 + y) * 100 + 1) * 16:][:160]
    """)
    assert worker.error("d.cuMemcpyDtoA(b, 600, p, 500)") == INVALID
    worker.do("ok(d.cuArrayDestroy(a)); ok(d.cuArrayDestroy(b))")
    assert worker.error("d.cuArrayDestroy(a)") == "CUDA_ERROR_INVALID_HANDLE"
    assert sim.process(worker.pid)["bytes"] == before
    assert worker.error("d.cuArray3DCreate(bad)") == INVALID


def test_mipmapped_arrays_are_charged_for_all_levels(sim: Any, worker: Worker) -> None:
    before = sim.process(worker.pid)["bytes"]
    worker.do("""
        D = d.CUDA_ARRAY3D_DESCRIPTOR(); D.Width, D.Height, D.NumChannels = 64, 64, 1
        D.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT; m = ok(d.cuMipmappedArrayCreate(D, 3))
        level = ok(d.cuMipmappedArrayGetLevel(m, 2))
    """)
    assert sim.process(worker.pid)["bytes"] - before == 4 * (64 * 64 + 32 * 32 + 16 * 16)
    assert worker.get("(lambda x: [x.Width, x.Height])(ok(d.cuArrayGetDescriptor(level)))") == [16, 16]
    assert worker.error("d.cuMipmappedArrayGetLevel(m, 3)") == INVALID
    assert worker.error("d.cuArrayDestroy(level)") == "CUDA_ERROR_INVALID_HANDLE"
    worker.do("ok(d.cuMipmappedArrayDestroy(m))")
    assert sim.process(worker.pid)["bytes"] == before


def test_between_devices(worker: Worker) -> None:
    worker.do("""
        put(p, data); there = context(1); r = ok(d.cuMemAlloc(1 << 20)); ok(d.cuCtxSetCurrent(ctx))
        ok(d.cuMemcpyPeer(r, there, p, ctx, 1 << 20)); assert get(r, 1 << 20) == data
        ok(d.cuMemcpyPeerAsync(q, ctx, r, there, 1000, s)); ok(d.cuStreamSynchronize(s))
        assert get(q, 1000) == data[:1000]
        M = d.CUDA_MEMCPY3D_PEER(); M.srcMemoryType = M.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE
        M.srcDevice = r; M.dstDevice = q
        M.srcContext, M.dstContext = there, ctx; M.srcPitch = M.dstPitch = 100; M.srcHeight = M.dstHeight = 10
        M.WidthInBytes, M.Height, M.Depth = 50, 10, 2
        ok(d.cuMemsetD8(q, 0, 2000)); ok(d.cuMemcpy3DPeer(M)); assert get(q, 100) == data[:50] + bytes(50)
    """)


def test_batches(worker: Worker) -> None:
    worker.do("""
        put(p, data); A = d.CUmemcpyAttributes()
        A.srcAccessOrder = d.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        ok(d.cuMemcpyBatchAsync([q, at(q, 1000)], [at(p, 10), at(p, 5000)], [100, 200], 2, [A], [0], 1, s))
        ok(d.cuStreamSynchronize(s))
        assert get(q, 100) == data[10:110] and get(at(q, 1000), 200) == data[5000:5200]
    """)
    assert worker.error("d.cuMemcpyBatchAsync([q], [p], [1 << 21], 1, [A], [0], 1, s)") == INVALID
    assert worker.error("d.cuMemcpyBatchAsync([q], [p], [1], 1, [A], [0], 1, 0)") == INVALID


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        ("ok(d.cuMemcpyHtoDAsync(big, host, 250 << 20, s))", (250 << 20) / 25e9),
        ("ok(d.cuMemcpyDtoHAsync(host, big, 250 << 20, s))", (250 << 20) / 25e9),
        ("ok(d.cuMemsetD8Async(big, 0, 250 << 20, s))", (250 << 20) / 2000e9),
        ("ok(d.cuMemcpyDtoDAsync(at(big, 125 << 20), big, 125 << 20, s))", (125 << 20) / 1000e9),
        ("ok(d.cuMemsetD8Async(big, 0, 1, s))", 1e-6),
    ],
)
@pytest.mark.xdist_group("timing")
def test_how_long_it_takes_on_the_device(sim: Any, worker: Worker, work: str, seconds: float) -> None:
    worker.do("big = ok(d.cuMemAlloc(250 << 20)); host = ok(d.cuMemHostAlloc(250 << 20, 0))")
    took = worker.get(f"elapsed(s, lambda: {work})") / 1000
    # Events use the device's own clock, and everything was submitted before the first event: only a copy that needs the
    # host can be late.
    assert seconds * 0.99 <= took <= seconds + 0.01
    busy = sim.process(worker.pid)["busy_ns"]
    assert busy >= seconds * 0.99e9 if "memset" in work.lower() or "DtoD" in work else busy < 1e6


def test_hints_are_accepted_for_managed_memory_only(worker: Worker) -> None:
    worker.do("m = ok(d.cuMemAllocManaged(4096, 1)); there = access().location")
    assert worker.error("d.cuMemPrefetchAsync(m, 4096, there, 0, s)") == "CUDA_SUCCESS"
    assert worker.error("d.cuMemAdvise(m, 4096, d.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY, there)") == "CUDA_SUCCESS"
    assert worker.error("d.cuMemPrefetchAsync(p, 4096, there, 0, s)") == INVALID
    assert worker.error("d.cuMemPrefetchAsync(m, 4097, there, 0, s)") == INVALID


def test_synchronous_calls_are_refused_in_a_capture(worker: Worker) -> None:
    worker.do("ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))")
    assert worker.error("d.cuMemAlloc(100)") == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    assert worker.get("d.cuStreamEndCapture(s)[0].name") == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


def test_captured_copies_run_at_each_launch(worker: Worker) -> None:
    worker.do("""
        h = ok(d.cuMemHostAlloc(8, 0)); ctypes.memmove(int(h), b'11111111', 8); put(p, bytes(8))
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        ok(d.cuMemcpyHtoDAsync(p, h, 8, s)); ok(d.cuMemsetD8Async(q, 9, 16, s)); graph = ok(d.cuStreamEndCapture(s))
        run = ok(d.cuGraphInstantiate(graph, 0))
        assert get(p, 8) == bytes(8)
        ok(d.cuGraphLaunch(run, s)); ok(d.cuStreamSynchronize(s))
        assert get(p, 8) == b'11111111' and get(q, 16) == bytes([9]) * 16
        ctypes.memmove(int(h), b'22222222', 8); ok(d.cuGraphLaunch(run, s)); ok(d.cuStreamSynchronize(s))
        assert get(p, 8) == b'22222222'
    """)
