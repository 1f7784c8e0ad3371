"""What the end of a context frees and what it must not free; calls that destroy something and block on the program."""

import time
from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import Interpose, Interposed
from run.waiting import until

from gpushare import paths

SPIN = f"""
    module = ok(d.cuModuleLoad({str(paths.SPIN_PTX).encode()!r}))
    function = ok(d.cuModuleGetFunction(module, b"spin_ns"))
    value = ctypes.c_uint64(0); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    def spin(ns, stream=0):
        value.value = ns
        ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(arguments), 0))
"""
GREEN = """
    def green(sms=8):
        whole = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        part = ok(d.cuDevSmResourceSplitByCount(1, whole, 0, sms))[0][0]
        return ok(d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc([part], 1)), 0, 1))
"""
CREATE = "made = ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(made), 0, {device}) == 0"


@pytest.fixture
def start(grant: Grant, interpose: Interpose) -> Callable[..., Interposed]:
    def run(device: int | None = None) -> Interposed:
        return interpose(grant, device)

    return run


# ---- a context that stays alive keeps its work

LIVES_ON = {
    "release": ("context()", "ok(d.cuDevicePrimaryCtxRetain(0))", "ok(d.cuDevicePrimaryCtxRelease(0))"),
    "detach": (
        CREATE.format(device=0),
        "a = ctypes.c_void_p(); assert lib.cuCtxAttach(ctypes.byref(a), 0) == 0",
        "assert lib.cuCtxDetach(a) == 0",
    ),
    "green": (GREEN.strip() + "\n    context()", "g = green()", "ok(d.cuGreenCtxDestroy(g))"),
}


@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("way", LIVES_ON)
def test_what_lives_on_is_metered_and_bounded(
    start: Callable[..., Interposed], sim: Simulator, grant: Grant, way: str
) -> None:
    begins, holds, lets_go = LIVES_ON[way]
    worker = start()
    worker.do("    " + begins)
    worker.do(SPIN + f"\n    for _ in range(60):\n        {holds}; spin(1_000_000); {lets_go}\n")
    assert sim.busy_ns(worker.pid) >= 50 * MS, "2 ms may be in flight"
    worker.do("ok(d.cuCtxSynchronize())")
    assert sim.busy_ns(worker.pid) == 60 * MS
    until(lambda: abs(grant.slot().busy_ns - 60 * MS) < 6 * MS, lambda: f"metered: {grant.slot().busy_ns}")


@pytest.mark.parametrize("way", ["release", "detach"])
def test_what_lives_on_has_not_drained(
    start: Callable[..., Interposed], sim: Simulator, grant: Grant, way: str
) -> None:
    """The lease is revoked while a context that one of its two holders has released has work in flight: `drained` waits
    for that work."""
    begins, holds, lets_go = LIVES_ON[way]
    grant.set_bound(400 * MS)
    worker = start()
    worker.do("    " + begins)
    worker.do(SPIN + "\n    for _ in range(5): spin(1_000_000)\n    ok(d.cuCtxSynchronize())")
    before = sim.busy_ns(worker.pid)
    worker.do(f"    for _ in range(200): spin(1_000_000)\n    {holds}; {lets_go}")
    word = grant.revoke()
    until(lambda: grant.slot().drained == word, "drained")
    assert sim.busy_ns(worker.pid) - before >= 198 * MS


ENDS = {
    "destroy": (CREATE.format(device=0), "lib.cuCtxDestroy_v2(made)"),
    "detach": (CREATE.format(device=0), "lib.cuCtxDetach(made)"),
    "release": ("context()", "lib.cuDevicePrimaryCtxRelease_v2(0)"),
    "reset": ("context()", "lib.cuDevicePrimaryCtxReset_v2(0)"),
    "green": (
        "g = green(); ok(d.cuCtxSetCurrent(ok(d.cuCtxFromGreenCtx(g))))",
        "lib.cuGreenCtxDestroy(ctypes.c_void_p(int(g)))",
    ),
    "reset of a green one's": (
        "g = green(); ok(d.cuCtxSetCurrent(ok(d.cuCtxFromGreenCtx(g))))",
        "lib.cuDevicePrimaryCtxReset_v2(0)",
    ),
}


@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("ends", ENDS)
def test_what_ends_has_not_drained(start: Callable[..., Interposed], sim: Simulator, grant: Grant, ends: str) -> None:
    """The lease is revoked while the driver waits for the work of a context that it destroys: that work is in flight
    and charged."""
    begins, end = ENDS[ends]
    grant.set_bound(400 * MS)
    worker, began = start(), time.monotonic_ns()
    worker.do(GREEN)
    worker.do(begins)
    worker.do(SPIN + "\n    for _ in range(5): spin(1_000_000)\n    ok(d.cuCtxSynchronize())")
    worker.do("for _ in range(200): spin(1_000_000)")
    worker.do(
        f"import threading; thread = threading.Thread(target=lambda: over.append({end})); over = []; thread.start()"
    )
    word = grant.revoke()
    until(lambda: grant.slot().drained == word, "drained")
    assert sim.busy_ns(worker.pid) >= 203 * MS
    worker.do("thread.join()")
    assert worker.get("over") == [0]
    # Where others have the processors, its end is seen late, and what was not seen counts.
    assert 185 * MS < grant.slot().busy_ns < max(225 * MS, time.monotonic_ns() - began)
    assert worker.charged() == 0


# ---- reused handles


@pytest.fixture
def two(pair: Simulator, both: Grant, interpose: Interpose) -> Callable[[], Interposed]:
    return lambda: interpose(both, None, on=pair)


def test_a_streams_handle_comes_back_on_another_device(two: Callable[[], Interposed]) -> None:
    worker = two()
    use = "s = ok(d.cuStreamCreate(1)); p = ok(d.cuMemAllocAsync(1 << 20, s)); ok(d.cuStreamSynchronize(s))"
    worker.do(CREATE.format(device=0) + "; " + use + "; old = int(s); ok(d.cuMemFreeAsync(p, s))")
    worker.do("assert lib.cuCtxDestroy_v2(made) == 0")
    worker.do(CREATE.format(device=1) + "; " + use)
    assert worker.get("int(s) == old"), "else this shows nothing"
    assert worker.charged(1) > CONTEXT + MIB
    worker.charged(0)


@pytest.mark.xdist_group("timing")
def test_work_for_a_stream_that_is_gone_is_unowned(
    start: Callable[..., Interposed], sim: Simulator, grant: Grant
) -> None:
    """A program launches into a stream of a destroyed context, and later gets the same handle for another stream."""
    worker = start()
    worker.do(
        CREATE.format(device=0)
        + "; ok(d.cuStreamCreate(1)); s = ok(d.cuStreamCreate(1)); assert lib.cuCtxDestroy_v2(made) == 0"
    )
    worker.do(CREATE.format(device=0))
    worker.do(SPIN)
    worker.do("assert d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, ctypes.addressof(arguments), 0)[0] != 0")
    worker.do("second = ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(second), 0, 0) == 0")
    worker.do("again = ok(d.cuStreamCreate(1)); ok(d.cuCtxSetCurrent(d.CUcontext(made.value)))")
    assert worker.get("int(again) == int(s)"), "else this shows nothing"
    worker.do("ok(d.cuCtxSetCurrent(d.CUcontext(second.value)))")
    worker.do(SPIN)
    worker.do("for _ in range(30): spin(1_000_000, again)\nok(d.cuStreamSynchronize(again))")
    assert sim.busy_ns(worker.pid) == 30 * MS
    worker.do("assert lib.cuCtxDestroy_v2(made) == 0")
    worker.do("for _ in range(30): spin(1_000_000, again)")
    assert sim.busy_ns(worker.pid) >= 55 * MS, "the other context's end took none of its marks"
    worker.do("ok(d.cuStreamSynchronize(again))")
    until(lambda: abs(grant.slot().busy_ns - 60 * MS) < 6 * MS, lambda: f"metered: {grant.slot().busy_ns}")


# ---- captures that are never ended

LEFT_OPEN = {
    "destroy": (
        CREATE.format(device=0) + "; s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, mode)); "
        "assert lib.cuCtxDestroy_v2(made) == 0; " + CREATE.format(device=0)
    ),
    "reset": (
        "context(); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, mode)); "
        "ok(d.cuDevicePrimaryCtxReset(0)); context()"
    ),
    "reset of a green one's": (
        "context(); g = green(); s = ok(d.cuGreenCtxStreamCreate(g, 1, 0)); ok(d.cuStreamBeginCapture(s, mode)); "
        "ok(d.cuDevicePrimaryCtxReset(0)); context()"
    ),
    "green": (
        "context(); g = green(); s = ok(d.cuGreenCtxStreamCreate(g, 1, 0)); ok(d.cuStreamBeginCapture(s, mode)); "
        "ok(d.cuGreenCtxDestroy(g))"
    ),
    "thread": (
        "import threading; c = context(); thread = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(c)), "
        "ok(d.cuStreamBeginCapture(d.CUstream(2), mode)))); thread.start(); thread.join()"
    ),
}


@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("way", LEFT_OPEN)
def test_a_capture_left_open_ends_with_what_it_was_in(
    start: Callable[..., Interposed], sim: Simulator, grant: Grant, way: str
) -> None:
    worker = start()
    worker.do(GREEN)
    worker.do("mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED; " + LEFT_OPEN[way])
    worker.do(SPIN + "\n    beside = ok(d.cuStreamCreate(1))")

    def metered() -> bool:
        before, metered_before = sim.busy_ns(worker.pid), grant.slot().busy_ns
        worker.do("for _ in range(100): spin(100_000, beside)\nok(d.cuStreamSynchronize(beside))")
        assert sim.busy_ns(worker.pid) == before + 10 * MS
        return abs(grant.slot().busy_ns - metered_before - 10 * MS) < MS

    if way == "thread":  # no call reports this end; a periodic check finds it
        until(metered, "its work is measured")
    else:
        assert sum(metered() for _ in range(3)) >= 2, "its work is measured, by the median of three"


# ---- calls that block on the program

WAITS = """
    import threading
    opened, failed = threading.Event(), []
    host_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: failed.append(1) if not opened.wait(10) else None)
    def hold():
        assert lib.cuLaunchHostFunc(ctypes.c_void_p(int(held)), host_function, None) == 0
    def beside(call):
        thread = threading.Thread(target=call); thread.start()
        return thread
"""
OTHERS = {
    "alloc": "p = ok(d.cuMemAlloc(1 << 20)); ok(d.cuMemFree(p))",
    "context": "x = ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(x), 0, 0) == 0; "
    "assert lib.cuCtxDestroy_v2(x) == 0",
    "map": "u = ok(d.cuMemAddressReserve(2 << 20, 0, 0, 0)); h = ok(d.cuMemCreate(2 << 20, on_device(), 0)); "
    "ok(d.cuMemMap(u, 2 << 20, 0, h, 0)); ok(d.cuMemRelease(h))",
    "pool": "t = ok(d.cuStreamCreate(1)); q = ok(d.cuMemAllocAsync(1 << 20, t)); ok(d.cuMemFreeAsync(q, t))",
    "launch": "spin(100_000)",
    "retain": "ok(d.cuDevicePrimaryCtxRetain(0)); ok(d.cuDevicePrimaryCtxRelease(0))",
}
PRIMARY_ENDS = ("release", "reset", "green", "reset of a green one's")  # a retain would block on that call


@pytest.mark.parametrize(
    ("call", "other"),
    [(call, other) for call in ENDS for other in OTHERS if other != "retain" or call not in PRIMARY_ENDS],
)
def test_a_call_that_waits_holds_nobody_up(start: Callable[..., Interposed], call: str, other: str) -> None:
    """The call waits for another thread, whose own calls must not be blocked meanwhile."""
    begins, end = ENDS[call]
    worker = start()
    worker.do(GREEN + "\n    spare = ctypes.c_void_p(); assert lib.cuCtxCreate_v2(ctypes.byref(spare), 0, 0) == 0")
    worker.do(begins)
    if "green" in call:
        worker.do("held = ok(d.cuGreenCtxStreamCreate(g, 1, 0))")
    else:
        worker.do("held = ok(d.cuStreamCreate(1))")
    worker.do(SPIN + "\n    for _ in range(5): spin(1_000_000, held)\n    ok(d.cuStreamSynchronize(held))")
    worker.do(WAITS + "\n    hold()\n    for _ in range(3): spin(1_000_000, held)")
    worker.do(f"over = []; thread = beside(lambda: over.append({end}))")
    worker.do("ok(d.cuCtxSetCurrent(d.CUcontext(spare.value)))")
    worker.do(SPIN)
    worker.do(f"for _ in range(50): {OTHERS[other]}")
    worker.do("waited, early = bool(failed), bool(over); opened.set(); thread.join()")
    assert worker.get("over") == [0]
    assert not worker.get("early"), "it waits, or this shows nothing"
    assert not worker.get("waited"), f"{other} was held up"
    worker.do("ok(d.cuCtxSetCurrent(d.CUcontext(spare.value)))")
    worker.charged()


# ---- all of it at once

COME_AND_GO = """
    import threading, time
    end, turns, wrong = time.monotonic() + {seconds}, dict(), []
    def did(call, *arguments):
        if result := getattr(lib, call)(*arguments):
            wrong.append((call, result))
    def primary(device):
        c, p = ctypes.c_void_p(), ctypes.c_uint64()
        did("cuDevicePrimaryCtxRetain", ctypes.byref(c), device)
        did("cuCtxSetCurrent", c)
        did("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(1 << 20))
        did("cuMemsetD8Async", p, 0, ctypes.c_size_t(1 << 20), None)
        did("cuDevicePrimaryCtxRelease_v2", device)
    def created(device):
        c, s, p, q = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        did("cuCtxCreate_v2", ctypes.byref(c), 0, device)
        did("cuStreamCreate", ctypes.byref(s), 1)
        did("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(1 << 20))
        did("cuMemAllocAsync", ctypes.byref(q), ctypes.c_size_t(1 << 20), s)
        did("cuMemsetD8Async", p, 0, ctypes.c_size_t(1 << 20), s)
        did("cuCtxDestroy_v2", c)
    def again(use, device):
        while time.monotonic() < end and not wrong:
            use(device)
            turns[use, device] = turns.get((use, device), 0) + 1
    threads = [threading.Thread(target=again, args=(use, i % 2)) for i in range(4) for use in (primary, created)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_handles_that_come_back_while_others_end(two: Callable[[], Interposed]) -> None:
    """Contexts of all kinds, created and destroyed by several threads on two devices, with memory and work left in
    them."""
    worker = two()
    worker.do(COME_AND_GO.format(seconds=2))
    assert worker.get("wrong") == []
    assert worker.get("len(turns)") == 4
    assert worker.get("min(turns.values())") > 20
    assert worker.charged(0) == worker.truth(0)
    worker.do(CREATE.format(device=0) + "; p = ok(d.cuMemAlloc(1 << 20))")
    assert worker.charged(0) >= CONTEXT + MIB
    worker.do("assert lib.cuCtxDestroy_v2(made) == 0")
    assert (worker.charged(0), worker.charged(1)) == (0, 0)
