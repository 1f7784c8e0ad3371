"""Every way to get a context charges it once, and every way to end it returns the charge, as measured by the
simulator."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pages.handmade import MS, Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import CHUNK, Interpose, Interposed, chunks, ptx
from run.waiting import until

LIMIT = 2 << 30
Start = Callable[..., Interposed]
GREEN = """
    def green(sms=8):
        whole = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        part = ok(d.cuDevSmResourceSplitByCount(1, whole, 0, sms))[0][0]
        return ok(d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc([part], 1)), 0, 1))
"""
GREEN_CALL = (
    "d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc([ok(d.cuDeviceGetDevResource(0, "
    "d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))], 1)), 0, 1)"
)


@pytest.fixture
def start(grant: Grant, interpose: Interpose) -> Start:
    def run(device: int | None = None) -> Interposed:
        made = interpose(grant, device)
        made.do(GREEN)
        return made

    return run


CREATED = {
    "cuCtxCreate": "c = ctypes.c_uint(), ctypes.c_void_p(); assert lib.cuCtxCreate(ctypes.byref(c[1]), 0, 0) == 0",
    "cuCtxCreate_v2": "c = 0, ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(c[1]), 0, 0) == 0",
    "cuCtxCreate_v3": "c = 0, ctypes.c_void_p(); assert lib.cuCtxCreate_v3(ctypes.byref(c[1]), None, 0, 0, 0) == 0",
    "cuCtxCreate_v4": "c = 0, ctypes.c_void_p(); assert lib.cuCtxCreate_v4(ctypes.byref(c[1]), None, 0, 0) == 0",
}
ENDED = {
    "cuCtxDestroy": "assert lib.cuCtxDestroy(c[1]) == 0",
    "cuCtxDestroy_v2": "assert lib.cuCtxDestroy_v2(c[1]) == 0",
    "cuCtxDetach": "assert lib.cuCtxDetach(c[1]) == 0",
}


@pytest.mark.parametrize("creates", CREATED)
@pytest.mark.parametrize("ends", ENDED)
def test_created_contexts(start: Start, creates: str, ends: str) -> None:
    worker = start()
    assert worker.charged() == 0
    worker.do(CREATED[creates])
    assert worker.charged() == CONTEXT
    worker.do("p = ok(d.cuMemAlloc(1 << 20))")
    assert worker.charged() == CONTEXT + MIB
    worker.do(ENDED[ends])
    assert worker.charged() == 0


def test_an_attached_context_ends_with_its_last_detach(start: Start) -> None:
    worker = start()
    worker.do(CREATED["cuCtxCreate_v2"])
    worker.do("a = ctypes.c_void_p(); assert lib.cuCtxAttach(ctypes.byref(a), 0) == 0; assert lib.cuCtxDetach(a) == 0")
    assert worker.charged() == CONTEXT
    worker.do("assert lib.cuCtxDetach(a) == 0")
    assert worker.charged() == 0


@pytest.mark.parametrize("ends", ["Release", "Release_v2"])
def test_a_primary_context_costs_once(start: Start, ends: str) -> None:
    worker = start()
    for _ in range(3):
        worker.do("ctx = context()")
        assert worker.charged() == CONTEXT
    for left in (CONTEXT, CONTEXT, 0):
        worker.do(f"assert lib.cuDevicePrimaryCtx{ends}(0) == 0")
        assert worker.charged() == left
    assert worker.get(f"lib.cuDevicePrimaryCtx{ends}(0)") == 201
    assert worker.charged() == 0


@pytest.mark.parametrize("ends", ["Reset", "Reset_v2"])
def test_a_reset_ends_it_whatever_holds_it(start: Start, ends: str, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("k", 2048))
    worker = start()
    worker.do(f"""
        context(); context(); p = ok(d.cuMemAlloc(6 << 20)); m = ok(d.cuModuleLoad({str(program).encode()!r}))
        f = ok(d.cuModuleGetFunction(m, b"k")); ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20))
    """)
    assert worker.charged() == CONTEXT + 6 * MIB + CHUNK + chunks(2048 * 221184) - chunks(1024 * 221184) + 56 * MIB
    worker.do(f"assert lib.cuDevicePrimaryCtx{ends}(0) == 0")
    assert worker.charged() == 0
    worker.do("context()")
    assert worker.charged() == CONTEXT


def test_a_killed_process_holds_nothing(start: Start) -> None:
    worker = start()
    worker.do("context(); " + CREATED["cuCtxCreate_v2"] + "; g = green()")
    assert worker.charged() == 2 * CONTEXT
    worker.kill()
    until(lambda: worker.truth() == 0, "the simulator has it all back")


# ---- green contexts


def test_a_green_context_is_part_of_the_primary_one(start: Start, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("k", 2048))
    worker = start()
    worker.do("g = green()")
    assert worker.charged() == CONTEXT, "it retains the primary context"
    worker.do("g2 = green(); ctx = context()")
    assert worker.charged() == CONTEXT
    worker.do(f"""
        part = ok(d.cuCtxFromGreenCtx(g)); ok(d.cuCtxSetCurrent(part))
        p, m = ok(d.cuMemAlloc(1 << 20)), ok(d.cuModuleLoad({str(program).encode()!r}))
        s = ok(d.cuGreenCtxStreamCreate(g, 1, 0))
        f = ok(d.cuModuleGetFunction(m, b"k")); ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))
        ok(d.cuStreamSynchronize(s)); ok(d.cuStreamDestroy(s))
    """)
    taken = MIB + CHUNK + chunks(2048 * 221184) - chunks(1024 * 221184)
    assert worker.charged() == CONTEXT + taken
    worker.do("ok(d.cuCtxSetCurrent(ctx)); ok(d.cuGreenCtxDestroy(g))")
    assert worker.charged() == CONTEXT + taken, "memory is the primary context's"
    worker.do("ok(d.cuMemFree(p)); ok(d.cuModuleUnload(m)); ok(d.cuDevicePrimaryCtxRelease(0))")
    assert worker.charged() == CONTEXT + taken - MIB - CHUNK, "another green context holds it"
    worker.do("ok(d.cuGreenCtxDestroy(g2))")
    assert worker.charged() == 0
    assert worker.error("d.cuGreenCtxDestroy(g2)") == "CUDA_ERROR_INVALID_CONTEXT"


def test_a_reset_takes_green_contexts_along(start: Start) -> None:
    worker = start()
    worker.do("g = green(); ok(d.cuCtxSetCurrent(ok(d.cuCtxFromGreenCtx(g)))); p = ok(d.cuMemAlloc(1 << 20))")
    assert worker.charged() == CONTEXT + MIB
    worker.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert worker.charged() == 0
    assert worker.error("d.cuCtxFromGreenCtx(g)") == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    worker.do("ctx = context()")
    assert worker.charged() == CONTEXT


def test_a_green_context_that_does_not_fit(start: Start, sim: Simulator, grant: Grant) -> None:
    hog, worker = start(0), start()
    hog.do(f"p = ok(d.cuMemAlloc({LIMIT - CONTEXT - 512}))")
    assert worker.error(GREEN_CALL) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert worker.charged() == 0
    hog.do("ok(d.cuMemFree(p))")
    worker.do("g = green()")
    assert worker.charged() == CONTEXT


@pytest.mark.xdist_group("timing")
def test_streams_of_a_green_context_are_gated_and_metered(
    start: Start, sim: Simulator, grant: Grant, tmp_path: Path
) -> None:
    program = tmp_path / "spin.ptx"
    program.write_text(
        ".version 7.0\n.target sm_52\n.address_size 64\n"
        ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n ret;\n}\n"
    )
    worker = start()
    worker.do(f"""
        import threading
        g = green(); part = ok(d.cuCtxFromGreenCtx(g)); ctx = context()
        ok(d.cuCtxSetCurrent(part)); m = ok(d.cuModuleLoad({str(program).encode()!r}))
        f = ok(d.cuModuleGetFunction(m, b"spin_ns")); s = ok(d.cuGreenCtxStreamCreate(g, 1, 0))
        e = ok(d.cuEventCreate(0))
        value = ctypes.c_uint64(1_000_000); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        def spin(count):
            ok(d.cuCtxSetCurrent(part))
            for _ in range(count):
                ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, ctypes.addressof(arguments), 0))
    """)
    worker.do("spin(50); ok(d.cuGreenCtxRecordEvent(g, e)); ok(d.cuEventSynchronize(e)); ok(d.cuStreamSynchronize(s))")
    assert sim.busy_ns(worker.pid) == 50 * MS
    until(lambda: abs(grant.slot().busy_ns - 50 * MS) < 5 * MS, "the meter has what the device did")
    assert grant.slot().launches == 50
    grant.revoke()
    worker.do("late = threading.Thread(target=spin, args=(1,)); late.start()")
    until(lambda: grant.slot().waiting == 1, "the launch waits for a lease")
    assert sim.busy_ns(worker.pid) == 50 * MS
    grant.lease()
    worker.do("late.join(); ok(d.cuStreamSynchronize(s))")
    assert sim.busy_ns(worker.pid) == 51 * MS
    worker.do("ok(d.cuGreenCtxWaitEvent(g, e)); ok(d.cuStreamDestroy(s)); ok(d.cuCtxSetCurrent(ctx))")
    worker.do("ok(d.cuGreenCtxDestroy(g))")


@pytest.mark.parametrize("call", ["cuCtxCreate_v2(None, 0, 0)", "cuCtxCreate_v4(None, None, 0, 0)"])
def test_a_full_grant_does_not_change_what_is_wrong(start: Start, call: str) -> None:
    hog, worker = start(0), start()
    hog.do(f"p = ok(d.cuMemAlloc({LIMIT - CONTEXT}))")
    assert worker.get(f"lib.{call}") == 1, "no place for the answer"
    assert worker.get("lib.cuDevicePrimaryCtxRetain(None, 0)") == 1
    assert worker.get("lib.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0)") == 2
    assert worker.charged() == 0
