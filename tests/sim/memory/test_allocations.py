"""Device memory: exact accounting for every way to allocate."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run.simworker import CONTEXT, Worker, held, start
from run.waiting import until

OOM = "CUDA_ERROR_OUT_OF_MEMORY"
INVALID = "CUDA_ERROR_INVALID_VALUE"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("asked", "charged"),
    [
        (1, 512),
        (512, 512),
        (513, 1024),
        (MIB, MIB),
        (MIB + 1, 2 * MIB),
        (2 * MIB - 1, 2 * MIB),
        (2 * MIB, 2 * MIB),
        (2 * MIB + 1, 4 * MIB),
        (100_000_000, 96 * MIB),
    ],
)
def test_an_allocation_is_charged_what_it_takes(sim: Any, asked: int, charged: int) -> None:
    worker = start(sim)
    total = worker.get("ok(d.cuMemGetInfo())[1]")
    worker.do(f"p = ok(d.cuMemAlloc({asked}))")
    assert held(sim, worker) == charged
    assert worker.get("ok(d.cuMemGetInfo())") == [total - CONTEXT - charged, total]
    worker.do("ok(d.cuMemFree(p))")
    assert held(sim, worker) == 0
    assert sim.process(worker.pid)["peak_bytes"] == CONTEXT + charged


def test_free_memory_is_the_devices_not_the_processs(sim: Any) -> None:
    one, two = start(sim), start(sim)
    one.do("p = ok(d.cuMemAlloc(1 << 30))")
    assert two.get("ok(d.cuMemGetInfo())[0]") == (16 << 30) - 2 * CONTEXT - (1 << 30)


def test_pitched_and_managed_memory(sim: Any) -> None:
    worker = start(sim)
    assert worker.get("ok(d.cuMemAllocPitch(1000, 7, 4))[1]") == 1024
    assert held(sim, worker) == 7 * 1024
    worker.do("m = ok(d.cuMemAllocManaged(5000, 1))")
    assert held(sim, worker) == 7 * 1024 + 5120
    worker.do("ctypes.memset(int(m), 7, 5000)")
    assert worker.get("get(m, 5000) == bytes([7]) * 5000")
    assert worker.error("d.cuMemAllocPitch(1000, 7, 3)") == INVALID
    assert worker.error("d.cuMemAllocManaged(5000, 0)") == INVALID


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("d.cuMemAlloc(0)", INVALID),
        ("d.cuMemAlloc((1 << 64) - 1)", OOM),
        ("d.cuMemAlloc(1 << 40)", OOM),
        ("d.cuMemAlloc((16 << 30) - (16 << 20) + 1)", OOM),
        ("d.cuMemAlloc((16 << 30) - (16 << 20))", "CUDA_SUCCESS"),
        ("d.cuMemAllocPitch(1 << 60, 1 << 60, 4)", OOM),
        ("d.cuMemAllocPitch(0, 1, 4)", INVALID),
        ("d.cuMemAllocManaged(0, 1)", INVALID),
        ("d.cuMemFree(d.CUdeviceptr(0))", "CUDA_SUCCESS"),
        ("d.cuMemFree(d.CUdeviceptr(4096))", INVALID),
        ("d.cuMemHostAlloc(0, 0)", INVALID),
        ("d.cuMemHostAlloc(4096, 64)", INVALID),
        ("d.cuMemFreeHost(4096)", INVALID),
        ("d.cuMemHostUnregister(4096)", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
        ("d.cuMemGetAddressRange(d.CUdeviceptr(4096))", "CUDA_ERROR_NOT_FOUND"),
    ],
)
def test_bad_sizes_and_pointers(sim: Any, call: str, result: str) -> None:
    worker = start(sim)
    assert worker.error(call) == result
    if result != "CUDA_SUCCESS":
        assert held(sim, worker) == 0


def test_only_the_base_of_an_allocation_can_be_freed_and_only_once(sim: Any) -> None:
    worker = start(sim)
    worker.do("p = ok(d.cuMemAlloc(8192))")
    assert worker.error("d.cuMemFree(d.CUdeviceptr(int(p) + 512))") == INVALID
    assert worker.get("[int(x) for x in ok(d.cuMemGetAddressRange(d.CUdeviceptr(int(p) + 5000)))] == [int(p), 8192]")
    assert worker.error("d.cuMemFree(p)") == "CUDA_SUCCESS"
    assert worker.error("d.cuMemFree(p)") == INVALID


def test_nothing_works_before_cuinit_or_without_a_context(sim: Any) -> None:
    worker = Worker(sim)
    null = "d.CUdeviceptr(0)"
    for call in ("d.cuMemAlloc(100)", f"d.cuMemFree({null})", "d.cuMemHostAlloc(100, 0)", "d.cuMemAllocAsync(1, 0)"):
        assert worker.error(call) == "CUDA_ERROR_NOT_INITIALIZED"
    worker.do("ok(d.cuInit(0))")
    assert worker.error("d.cuMemAlloc(100)") == "CUDA_ERROR_INVALID_CONTEXT"


def test_untouched_memory_costs_nothing(sim: Any) -> None:
    worker = start(sim)
    resident = Path(f"/proc/{worker.pid}/statm")
    before = int(resident.read_text().split()[1])
    worker.do("p = ok(d.cuMemAlloc(15 << 30))")
    assert (int(resident.read_text().split()[1]) - before) * os.sysconf("SC_PAGESIZE") < 8 * MIB


def test_freed_memory_goes_back_to_the_system(sim: Any) -> None:
    worker = start(sim)
    worker.do("""
        from pathlib import Path
        def blocks():
            files = [link for link in Path('/proc/self/fd').iterdir() if 'gpushare-sim-device' in str(link.resolve())]
            return sum(link.stat().st_blocks for link in files)
    """)
    worker.do("p = ok(d.cuMemAlloc(8 << 20)); put(p, bytes([1]) * (8 << 20))")
    assert worker.get("blocks()") * 512 >= 8 * MIB
    worker.do("ok(d.cuMemFree(p))")
    assert worker.get("blocks()") == 0


def test_new_memory_is_empty(sim: Any) -> None:
    worker = start(sim)
    worker.do("p = ok(d.cuMemAlloc(4096)); put(p, b'x' * 4096); ok(d.cuMemFree(p)); p = ok(d.cuMemAlloc(4096))")
    assert worker.get("get(p, 4096) == bytes(4096)")


def test_a_context_takes_its_memory_with_it(sim: Any) -> None:
    worker = start(sim)
    worker.do("c = ok(d.cuCtxCreate(None, 0, 0)); p = ok(d.cuMemAlloc(1 << 20)); h = ok(d.cuMemHostAlloc(100, 0))")
    assert held(sim, worker) == CONTEXT + MIB
    worker.do("ok(d.cuCtxDestroy(c))")
    assert held(sim, worker) == 0
    assert worker.error("d.cuMemFree(p)") == INVALID


def test_a_modules_variables_end_with_their_context_and_come_anew(sim: Any) -> None:
    worker = start(sim)
    text = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .b8 table[1000];\n"
    worker.do(f"library = ok(d.cuLibraryLoadData({text.encode()!r} + bytes(1), [], [], 0, [], [], 0))")
    worker.do("p = ok(d.cuLibraryGetGlobal(library, b'table'))[0]; put(p, b'x' * 1000)")
    assert held(sim, worker) == 2 * MIB  # the whole program is loaded on first use
    worker.do("ok(d.cuDevicePrimaryCtxReset(0)); ctx = context()")
    assert held(sim, worker) == 0
    worker.do("other = ok(d.cuMemAlloc(1000)); p = ok(d.cuLibraryGetGlobal(library, b'table'))[0]")
    assert worker.get("int(p) != int(other) and get(p, 1000) == bytes(1000)")
    assert held(sim, worker) == 2 * MIB + 1024
    worker.do("ok(d.cuLibraryUnload(library))")
    assert held(sim, worker) == 1024


def test_a_killed_process_gives_all_back(sim: Any) -> None:
    worker = start(sim)
    worker.do("""
        p = ok(d.cuMemAlloc(1 << 30)); q = ok(d.cuMemAllocAsync(1 << 20, 0))
        h = ok(d.cuMemCreate(2 << 20, on_device(), 0))
    """)
    assert sim.device()["bytes"] == CONTEXT + (1 << 30) + (32 << 20) + (2 << 20)
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait(10)
    until(lambda: sim.device()["bytes"] == 0, "the books forget the dead process")
    assert sim.process(worker.pid)["peak_bytes"] == CONTEXT + (1 << 30) + (32 << 20) + (2 << 20)


def test_two_processes_cannot_have_more_than_there_is(sim: Any) -> None:
    one, two = start(sim), start(sim)
    one.do("p = ok(d.cuMemAlloc(10 << 30))")
    assert two.error("d.cuMemAlloc(6 << 30)") == OOM
    two.do("q = ok(d.cuMemAlloc((6 << 30) - (32 << 20)))")
    assert sim.device()["bytes"] == 16 << 30
    assert one.error("d.cuMemAlloc(1)") == OOM
    two.do("ok(d.cuMemFree(q))")
    assert one.error("d.cuMemAlloc(1)") == "CUDA_SUCCESS"


def test_each_device_has_its_own_books(sim: Any) -> None:
    worker = start(sim, device=1)
    worker.do("p = ok(d.cuMemAlloc(12345))")
    assert sim.device(1)["bytes"] == CONTEXT + 12800
    assert sim.device(0)["bytes"] == 0


def test_attributes_of_pointers(sim: Any) -> None:
    worker = start(sim)
    worker.do("""
        A = d.CUpointer_attribute
        tell = lambda p, name: ok(d.cuPointerGetAttribute(getattr(A, 'CU_POINTER_ATTRIBUTE_' + name), p))
        p = ok(d.cuMemAlloc(8192)); h = ok(d.cuMemHostAlloc(8192, 0)); m = ok(d.cuMemAllocManaged(8192, 1))
        q = ok(d.cuMemAllocAsync(8192, 0))
    """)
    for name, values in {
        "MEMORY_TYPE": [2, 1, 2, 2],
        "IS_MANAGED": [False, False, True, False],
        "DEVICE_ORDINAL": [0, 0, 0, 0],
        "RANGE_SIZE": [8192, 8192, 8192, 8192],
        "MAPPED": [True, True, True, True],
    }.items():
        assert [worker.get(f"tell({pointer}, '{name}')") for pointer in "phmq"] == values, name
    assert worker.get("int(tell(d.CUdeviceptr(int(p) + 9), 'RANGE_START_ADDR')) == int(p)")
    assert worker.get("int(tell(p, 'CONTEXT')) == int(ctx)")
    assert worker.get("int(tell(q, 'MEMPOOL_HANDLE')) == int(ok(d.cuDeviceGetDefaultMemPool(0)))")
    assert worker.get("tell(p, 'BUFFER_ID') != tell(m, 'BUFFER_ID')")
    assert worker.error("d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096)") == INVALID
    assert worker.get("ok(d.cuPointerGetAttributes(1, [A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL], 4096))") == [-2]


def test_host_memory_is_not_device_memory(sim: Any) -> None:
    worker = start(sim)
    worker.do("""
        h = ok(d.cuMemHostAlloc(100_000, 1))
        mine = ctypes.create_string_buffer(10_000); r = ctypes.addressof(mine)
        ok(d.cuMemHostRegister(r, 10_000, 0))
    """)
    assert held(sim, worker) == 0
    assert worker.get("int(ok(d.cuMemHostGetDevicePointer(h, 0))) == int(h)")
    assert worker.get("ok(d.cuMemHostGetFlags(h))") & 1
    assert worker.error("d.cuMemHostRegister(r + 100, 100, 0)") == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    assert worker.error("d.cuMemHostUnregister(h)") == "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
    assert worker.error("d.cuMemFreeHost(r)") == INVALID
    assert worker.error("d.cuMemHostUnregister(r)") == "CUDA_SUCCESS"
    assert worker.error("d.cuMemFreeHost(h)") == "CUDA_SUCCESS"
    assert worker.error("d.cuMemFreeHost(h)") == INVALID


def test_the_oldest_interface_has_pointers_of_32_bits(sim: Any) -> None:
    worker = start(sim)
    worker.do("p = ctypes.c_uint32(); assert lib.cuMemAlloc(ctypes.byref(p), 1000) == 0")
    assert held(sim, worker) == 1024
    worker.do("s = bytes(range(250)) * 4; t = ctypes.create_string_buffer(1000)")
    worker.do("assert lib.cuMemcpyHtoD(p, s, 1000) == 0 and lib.cuMemcpyDtoH(t, p, 1000) == 0 and t.raw == s")
    worker.do("""
        b = ctypes.c_uint32(); n = ctypes.c_uint()
        assert lib.cuMemGetAddressRange(ctypes.byref(b), ctypes.byref(n), p) == 0
    """)
    assert worker.get("(b.value, n.value) == (p.value, 1000)")
    worker.do("f, a = ctypes.c_uint(), ctypes.c_uint(); assert lib.cuMemGetInfo(ctypes.byref(f), ctypes.byref(a)) == 0")
    assert worker.get("f.value == a.value == 0xffffffff")
    assert worker.get("lib.cuMemFree(p)") == 0
    assert held(sim, worker) == 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, 3 << 20)),
        st.tuples(st.just("managed"), st.integers(1, 3 << 20)),
        st.tuples(st.just("pool"), st.integers(1, 40 << 20)),
        st.tuples(st.just("create"), st.integers(1, 3)),
        st.tuples(st.just("free"), st.integers(0, 100)),
    ),
    max_size=25,
)
MAKE = {
    "alloc": "ok(d.cuMemAlloc({}))",
    "managed": "ok(d.cuMemAllocManaged({}, 1))",
    "pool": "ok(d.cuMemAllocAsync({}, 0))",
    "create": "ok(d.cuMemCreate({} << 21, on_device(), 0))",
}
FREE = {"alloc": "cuMemFree(x)", "managed": "cuMemFree(x)", "pool": "cuMemFreeAsync(x, 0)", "create": "cuMemRelease(x)"}


def charge_of(kind: str, size: int) -> int:
    step = 2 * MIB if kind == "alloc" and size > MIB else 512
    return {"create": size << 21, "pool": 0}.get(kind, -(-size // step) * step)


def test_books_are_exact_at_every_step_of_any_history_and_zero_at_its_end(sim: Any) -> None:
    worker = start(sim)
    worker.do("default = ok(d.cuDeviceGetDefaultMemPool(0)); held = []")

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(OPERATIONS)
    def history(operations: list[tuple[str, int]]) -> None:
        mine: list[tuple[str, int]] = []
        for kind, size in operations:
            if kind != "free":
                worker.do(f"held.append({MAKE[kind].format(size)})")
                mine.append((kind, size))
            elif mine:
                index = size % len(mine)
                gone, _ = mine.pop(index)
                worker.do(f"x = held.pop({index}); ok(d.{FREE[gone]})")
            reserved = worker.get("pool_attribute(default, 'RESERVED_MEM_CURRENT')")
            assert reserved % (32 << 20) == 0
            assert held(sim, worker) == sum(charge_of(*each) for each in mine) + reserved
        while mine:
            gone, _ = mine.pop()
            worker.do(f"x = held.pop(); ok(d.{FREE[gone]})")
        worker.do("ok(d.cuCtxSynchronize())")
        assert held(sim, worker) == 0

    history()


def test_threads_do_not_disturb_the_books(sim: Any) -> None:
    worker = start(sim)
    worker.do("""
        import random, threading
        def work(seed):
            ok(d.cuCtxSetCurrent(ctx)); stream = ok(d.cuStreamCreate(1)); dice = random.Random(seed); mine = []
            for _ in range(150):
                if mine and dice.random() < 0.5:
                    kind, pointer = mine.pop(dice.randrange(len(mine)))
                else:
                    kind = dice.choice(('plain', 'pool'))
                    size = dice.randrange(1, 1 << 20)
                    pointer = ok(d.cuMemAlloc(size)) if kind == 'plain' else ok(d.cuMemAllocAsync(size, stream))
                    ok(d.cuMemsetD8Async(pointer, seed, size, stream)); mine.append((kind, pointer)); continue
                ok(d.cuMemFree(pointer) if kind == 'plain' else d.cuMemFreeAsync(pointer, stream))
            for kind, pointer in mine:
                ok(d.cuMemFree(pointer))
            ok(d.cuStreamSynchronize(stream)); ok(d.cuStreamDestroy(stream)); done.append(seed)
        done = []
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads]; [thread.join() for thread in threads]; ok(d.cuCtxSynchronize())
    """)
    assert worker.get("sorted(done)") == [0, 1, 2, 3]
    assert held(sim, worker) == 0


def test_a_process_without_a_simulator_has_no_device(sim: Any) -> None:
    code = "from cuda.bindings import driver as d; print(d.cuInit(0)[0].name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=sim.environment(GPUSHARE_SIM_DIR="/nowhere"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() == "CUDA_ERROR_NO_DEVICE"
