"""Memory that other devices get at stays on the device from then on; what a driver cannot do with mapped memory is
refused by name. With a driver that has what the simulated one has not."""

import pytest
from pages.lending import Lender
from run.interposed import Faults, Interpose, Interposed
from run.waiting import until

from gpushare._native import lib

MIB = 1 << 20
SYNC_MEMOPS = 0x80
ASK = """
    import ctypes, os
    heard, said = os.pipe()
    os.dup2(said, 2)
    os.set_blocking(heard, False)
    def hear():
        try:
            return os.read(heard, 4096).decode().splitlines()
        except BlockingIOError:
            return []
    def call(name, *arguments):
        return getattr(lib, name)(*[ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments])
    a, b = [int(ok(d.cuMemAlloc(%d))) for _ in range(2)]
    place, value = (ctypes.c_uint64 * 2)(), ctypes.c_uint(1)
"""
REQUESTS = {
    "a dma-buf": "call('cuMemGetHandleForAddressRange', place, a, 4096, 1, 0)",
    "tokens": "call('cuPointerGetAttribute', place, 5, a + 8192)",
    "synchronous": "call('cuPointerSetAttribute', ctypes.byref(value), 6, a)",
}


@pytest.fixture
def grant(lender: Lender) -> Lender:
    """The grant whose driver `faults` replaces."""
    return lender


@pytest.fixture
def worker(faults: Faults, lender: Lender, interpose: Interpose) -> Interposed:
    made = interpose(lender)
    made.do(ASK % (3 * MIB))
    faults(cuMemGetHandleForAddressRange=0, tokens=2)
    return made


@pytest.mark.parametrize("what", REQUESTS)
def test_it_stays(lender: Lender, worker: Interposed, what: str) -> None:
    assert lender.slot().movable_bytes == 8 * MIB
    assert worker.get(REQUESTS[what]) == 0
    assert lender.slot().movable_bytes == 4 * MIB
    assert lender.suspend() == lib.GS_MOVED
    assert lender.slot().hosted_bytes == 4 * MIB
    assert lender.resume() == lib.GS_MOVED


@pytest.mark.parametrize("what", REQUESTS)
def test_it_comes_back_first(lender: Lender, worker: Interposed, what: str) -> None:
    assert lender.suspend() == lib.GS_MOVED
    worker.do(f"""
        import threading
        results = []
        thread = threading.Thread(target=lambda: results.append({REQUESTS[what]}))
        thread.start()
    """)
    until(lambda: lender.wants, "it waits")
    assert lender.resume() == lib.GS_MOVED
    worker.do("thread.join()")
    assert worker.get("results") == [0]
    assert lender.slot().movable_bytes == 4 * MIB


def test_tokens_are_of_the_memory_itself(worker: Interposed) -> None:
    worker.do(REQUESTS["tokens"])
    assert worker.get("list(bytes(place))") == 16 * [0x77]


def test_tokens_for_other_memory_only(faults: Faults, worker: Interposed) -> None:
    faults(tokens=1)
    assert worker.get(f"[{REQUESTS['tokens']} for _ in range(2)]") == 2 * [801]
    said = worker.get("hear()")
    assert [line for line in said if "P2P_TOKENS" in line and "--idle-memory keep" in line] == said
    assert len(said) == 1


def test_a_driver_without_tokens(faults: Faults, worker: Interposed) -> None:
    faults()
    assert worker.get(REQUESTS["tokens"]) == 801
    assert worker.get("hear()") == []


def test_synchronous_by_the_context(faults: Faults, worker: Interposed) -> None:
    asked = "(call('cuPointerGetAttribute', place, 6, a), place[0])"
    assert worker.get(REQUESTS["synchronous"]) == 0
    assert worker.get(asked) == [0, 1]
    worker.do("flags = ctypes.c_uint(); assert call('cuCtxGetFlags', ctypes.byref(flags)) == 0")
    assert worker.get("flags.value") & SYNC_MEMOPS
    faults(cuCtxSetFlags=801)
    assert worker.get("call('cuPointerSetAttribute', ctypes.byref(value), 6, b)") == 801
    assert worker.get(asked.replace("a)", "b)")) == [0, 0]
    assert "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS does not work" in worker.get("hear()")[0]
