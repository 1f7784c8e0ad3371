"""Checkpoints of processes (cuCheckpointProcess*), by another process and by the process itself."""

import threading
from typing import Any

import pytest
from run.simworker import CONTEXT, Worker, held, start
from run.waiting import until

from gpushare.paths import SIM_LIB_DIR, SIM_SMI, SPIN_PTX

MIB = 1 << 20
RUNNING, LOCKED, CHECKPOINTED, FAILED = (
    f"CU_PROCESS_STATE_{name}" for name in ("RUNNING", "LOCKED", "CHECKPOINTED", "FAILED")
)
ILLEGAL = "CUDA_ERROR_ILLEGAL_STATE"
SPIN = f"""
    import ctypes
    text = open({str(SPIN_PTX)!r}, "rb").read() + bytes(1)
    spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b"spin_ns"))
    def launch(ns):
        value = ctypes.c_uint64(ns); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0))
"""
SAVER = """
    def state(pid): return ok(d.cuCheckpointProcessGetState(pid)).name
    def lock(pid, ms=0):
        how = d.CUcheckpointLockArgs(); how.timeoutMs = ms
        return d.cuCheckpointProcessLock(pid, how)
    def save(pid): return d.cuCheckpointProcessCheckpoint(pid, None)
    def restore(pid): return d.cuCheckpointProcessRestore(pid, None)
    def unlock(pid): return d.cuCheckpointProcessUnlock(pid, None)
"""


def taken(sim: Any, worker: Worker) -> int:
    """Bytes of device memory, the context's included."""
    return held(sim, worker) + CONTEXT


@pytest.fixture
def target(sim: Any) -> Worker:
    worker = start(sim)
    worker.do(SPIN)
    worker.do(f"p = ok(d.cuMemAlloc({64 * MIB})); ok(d.cuMemcpyHtoD(p, b'kept', 4)); back = bytearray(4)")
    return worker


@pytest.fixture
def saver(sim: Any) -> Worker:
    worker = start(sim, 1)
    worker.do(SAVER)
    return worker


def test_there_and_back(sim: Any, target: Worker, saver: Worker) -> None:
    pid, before = target.pid, taken(sim, target)
    assert before > 64 * MIB + CONTEXT
    assert saver.get(f"state({pid})") == RUNNING
    saver.do(f"ok(lock({pid}, 5000))")
    assert saver.get(f"state({pid})") == LOCKED
    assert taken(sim, target) == before
    saver.do(f"ok(save({pid}))")
    assert saver.get(f"state({pid})") == CHECKPOINTED
    assert taken(sim, target) == 0
    assert str(pid) not in sim.run(SIM_LIB_DIR / SIM_SMI)
    saver.do(f"ok(restore({pid}))")
    assert (saver.get(f"state({pid})"), taken(sim, target)) == (LOCKED, before)
    saver.do(f"ok(unlock({pid}))")
    assert saver.get(f"state({pid})") == RUNNING
    target.do("ok(d.cuMemcpyDtoH(back, p, 4)); launch(1000); ok(d.cuCtxSynchronize())")
    assert target.get("back.decode()") == "kept"


def test_calls_wait_until_the_process_is_unlocked(target: Worker, saver: Worker) -> None:
    saver.do(f"ok(lock({target.pid})); ok(save({target.pid}))")
    calls = threading.Thread(target=target.do, args=("ok(d.cuMemcpyDtoH(back, p, 4)); q = ok(d.cuMemAlloc(4096))",))
    calls.start()
    calls.join(0.1)
    assert calls.is_alive()
    saver.do(f"ok(restore({target.pid})); ok(unlock({target.pid}))")
    calls.join(10)
    assert not calls.is_alive()


def test_a_lock_waits_for_work(target: Worker, saver: Worker) -> None:
    target.do("launch(50_000_000)")
    saver.do(f"ok(lock({target.pid}))")
    assert saver.get(f"state({target.pid})") == LOCKED
    saver.do(f"ok(unlock({target.pid}))")
    assert target.error("d.cuStreamQuery(0)") == "CUDA_SUCCESS"


@pytest.mark.parametrize(
    "endless",
    ["launch(10**12)", "ok(d.cuStreamWaitValue32(0, p, 12345, 1))"],
)
def test_a_lock_gives_up(target: Worker, saver: Worker, endless: str) -> None:
    target.do(f"ok(d.cuMemsetD32(p, 0, 1)); ok(d.cuCtxSynchronize()); {endless}")
    assert saver.error(f"lock({target.pid}, 50)") == "CUDA_ERROR_NOT_READY"
    assert saver.get(f"state({target.pid})") == RUNNING
    assert target.error("d.cuStreamQuery(0)") == "CUDA_ERROR_NOT_READY", "its calls go on"
    target.process.kill()


def test_what_the_state_does_not_allow(target: Worker, saver: Worker) -> None:
    pid = target.pid
    for call in ("save", "restore", "unlock"):
        assert saver.error(f"{call}({pid})") == ILLEGAL
    saver.do(f"ok(lock({pid}))")
    for call in ("lock", "restore"):
        assert saver.error(f"{call}({pid})") == ILLEGAL
    saver.do(f"ok(save({pid}))")
    for call in ("lock", "save", "unlock"):
        assert saver.error(f"{call}({pid})") == ILLEGAL
    saver.do(f"ok(restore({pid})); ok(unlock({pid}))")


def test_a_restore_without_room_is_final(target: Worker, saver: Worker) -> None:
    pid = target.pid
    saver.do(f"ok(lock({pid})); ok(save({pid}))")
    saver.do("other = context(0); taken = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0]))")
    assert saver.error(f"restore({pid})") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert saver.get(f"state({pid})") == FAILED
    saver.do("ok(d.cuMemFree(taken))")
    assert saver.error(f"restore({pid})") == ILLEGAL
    target.process.kill()


def test_memory_of_others_is_not_saved(target: Worker, saver: Worker) -> None:
    target.do(
        "prop = d.CUmemAllocationProp(); kinds = d.CUmemAllocationHandleType;"
        " prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED;"
        " prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE;"
        " prop.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;"
        " shared = ok(d.cuMemCreate(2 << 20, prop, 0));"
        " fd = ok(d.cuMemExportToShareableHandle(shared, prop.requestedHandleTypes, 0))"
    )
    saver.do(f"ok(lock({target.pid}))")
    assert saver.error(f"save({target.pid})") == "CUDA_ERROR_NOT_SUPPORTED"
    saver.do(f"ok(unlock({target.pid}))")


def test_other_processes(sim: Any, saver: Worker) -> None:
    assert saver.error("d.cuCheckpointProcessGetState(1)") == "CUDA_ERROR_NOT_INITIALIZED"
    assert saver.error("d.cuCheckpointProcessGetState(-1)") == "CUDA_ERROR_INVALID_VALUE"
    assert saver.error("d.cuCheckpointProcessGetState(2**22 + 1)") == "CUDA_ERROR_INVALID_VALUE"


def test_a_process_can_do_it_to_itself(sim: Any, target: Worker) -> None:
    target.do(SAVER)
    before = taken(sim, target)
    target.do("import os; me = os.getpid(); ok(lock(me)); ok(save(me))")
    assert taken(sim, target) == 0
    target.do("ok(restore(me)); ok(unlock(me)); ok(d.cuMemcpyDtoH(back, p, 4))")
    assert (taken(sim, target), target.get("back.decode()")) == (before, "kept")


def test_a_saved_process_that_ends_leaves_nothing(sim: Any, target: Worker, saver: Worker) -> None:
    saver.do(f"ok(lock({target.pid})); ok(save({target.pid}))")
    target.process.kill()
    target.process.wait(10)
    until(lambda: saver.error(f"d.cuCheckpointProcessGetState({target.pid})") != "CUDA_SUCCESS", "it has ended")
    fresh = start(sim)
    fresh.do(f"p = ok(d.cuMemAlloc({MIB}))")
    assert taken(sim, fresh) == CONTEXT + MIB
