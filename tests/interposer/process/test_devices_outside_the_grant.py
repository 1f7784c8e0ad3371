"""Memory on a device that is in the machine but not in the grant is refused by every call that can request it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Interpose, Interposed

from gpushare import paths

BEHIND = f"import ctypes; ctypes.CDLL({str(paths.SIM_LIB_DIR / 'libcuda.so.1')!r}).cuInit(0)"
MIB = 1 << 20
NOT_PERMITTED = "CUDA_ERROR_NOT_PERMITTED"
INVALID = "CUDA_ERROR_INVALID_VALUE"
HELPERS = """
    def at(device, kind="DEVICE"):
        return made(d.CUmemLocation, type=getattr(d.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}"), id=device)
    def properties(device, most=0):
        pinned = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        return made(d.CUmemPoolProps, allocType=pinned, location=at(device), maxSize=most)
    def graph(device, size):
        whole = ok(d.cuGraphCreate(0))
        params = made(d.CUDA_MEM_ALLOC_NODE_PARAMS, poolProps=properties(device), bytesize=size)
        ok(d.cuGraphAddMemAllocNode(whole, None, 0, params)) if device < 9 else None
        return whole
    def plain(name, *arguments):
        return d.CUresult(getattr(lib, name)(*arguments)),
    elsewhere = ok(d.cuDeviceGetDefaultMemPool(1))
    m = ok(d.cuMemAllocManaged(4 << 20, 1)); s = ok(d.cuStreamCreate(1))
    pointer, out = ctypes.c_uint64(int(m)), ctypes.byref(ctypes.c_void_p())
    PREFERRED, ACCESSED = d.CUmem_advise(3), d.CUmem_advise(5)  # CU_MEM_ADVISE_SET_PREFERRED_LOCATION, .._ACCESSED_BY
    handle = lambda device: ctypes.c_void_p(int(ok(d.cuDeviceGetMemPool(device))))
"""


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    simulator = Simulator(tmp_path / "sim", "2x4GiB")
    yield simulator
    simulator.stop()


@pytest.fixture
def worker(grant: Grant, interpose: Interpose) -> Interposed:
    """In a grant of the first device; both are visible, as the driver is initialised behind the interposer's back."""
    grant.limits.device[1].uuid = bytes(16)
    made = interpose(grant, before=BEHIND)
    made.do(HELPERS)
    return made


WAYS = {
    "physical memory": "d.cuMemCreate(2 << 20, on_device(device={device}), 0)",
    "a pool": "d.cuMemPoolCreate(properties({device}))",
    "a default pool": "d.cuMemAllocFromPoolAsync(1 << 20, ok(d.cuDeviceGetDefaultMemPool({device})), 0)",
    "a current pool": "d.cuMemAllocFromPoolAsync(1 << 20, ok(d.cuDeviceGetMemPool({device})), s)",
    "the thread's own stream": "plain('cuMemAllocFromPoolAsync_ptsz', out, 1 << 20, handle({device}), None)",
    "a graph": "d.cuGraphInstantiate(graph({device}, 1 << 20), 0)",
    "an uploaded graph": (
        "d.cuGraphInstantiateWithParams(graph({device}, 1 << 20),"
        " made(d.CUDA_GRAPH_INSTANTIATE_PARAMS, flags=2, hUploadStream=s))"
    ),
    "managed memory that is moved": "d.cuMemPrefetchAsync(m, 1 << 20, at({device}), 0, s)",
    "managed memory that is moved, as before": "plain('cuMemPrefetchAsync', pointer, 1 << 20, {device}, None)",
    "a preferred place": "d.cuMemAdvise(m, 1 << 20, PREFERRED, at({device}))",
    "a preferred place, as before": "plain('cuMemAdvise', pointer, 1 << 20, 3, {device})",
    "many moves": "d.cuMemPrefetchBatchAsync([m], [1 << 20], 1, [at({device})], [0], 1, 0, s)",
    "many moves of nothing": "d.cuMemDiscardAndPrefetchBatchAsync([m], [1 << 20], 1, [at({device})], [0], 1, 0, s)",
}


@pytest.mark.parametrize("way", WAYS)
def test_another_device_is_refused(worker: Interposed, sim: Simulator, way: str) -> None:
    before = worker.charged()
    assert worker.error(WAYS[way].format(device=1)) == NOT_PERMITTED
    assert worker.truth(1) == 0
    assert worker.charged() == before
    assert worker.error(WAYS[way].format(device=0)) == "CUDA_SUCCESS"
    worker.charged()
    assert [row["peak_bytes"] for row in sim.books()["devices"][1]["processes"]] in ([], [0])


WRONG = {
    "physical memory of no size": ("d.cuMemCreate(0, on_device(device=1), 0)", INVALID),
    "physical memory of odd size": ("d.cuMemCreate(4096, on_device(device=1), 0)", INVALID),
    "physical memory nowhere": ("d.cuMemCreate(2 << 20, on_device(device=7), 0)", "CUDA_ERROR_INVALID_DEVICE"),
    "a pool nowhere": ("d.cuMemPoolCreate(properties(7))", INVALID),
    "a pool and no place for it": ("plain('cuMemPoolCreate', None, ctypes.c_void_p(properties(1).getPtr()))", INVALID),
    "nothing of a pool": ("d.cuMemAllocFromPoolAsync(0, elsewhere, 0)", INVALID),
    "a move of other memory": ("d.cuMemPrefetchAsync(64, 1 << 20, at(7), 0, s)", INVALID),
    "a move nowhere": ("d.cuMemPrefetchAsync(m, 1 << 20, at(7), 0, s)", "CUDA_ERROR_INVALID_DEVICE"),
    "a move to the host": ("d.cuMemPrefetchAsync(m, 1 << 20, at(0, 'HOST'), 0, s)", "CUDA_SUCCESS"),
    "a move to the host, as before": ("plain('cuMemPrefetchAsync', pointer, 1 << 20, -1, None)", "CUDA_SUCCESS"),
    "access from there": ("d.cuMemAdvise(m, 1 << 20, ACCESSED, at(1))", "CUDA_SUCCESS"),
    "the host preferred": ("plain('cuMemAdvise', pointer, 1 << 20, 3, -1)", "CUDA_SUCCESS"),
    "moves from nowhere": ("plain('cuMemPrefetchBatchAsync', None, None, 1, None, None, 1, 0, None)", INVALID),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_rest_is_the_drivers_to_say(worker: Interposed, what: str, interpose: Interpose) -> None:
    call, answer = WRONG[what]
    assert worker.error(call) == answer
    bare = interpose(None)
    bare.do("import ctypes")
    bare.do(HELPERS)
    assert bare.error(call) == answer


def test_a_captured_allocation_of_another_device_is_refused_as_a_graph(worker: Interposed) -> None:
    worker.do("ok(d.cuStreamBeginCapture(s, 0)); p = ok(d.cuMemAllocFromPoolAsync(1 << 20, elsewhere, s))")
    worker.do("captured = ok(d.cuStreamEndCapture(s))")
    assert worker.error("d.cuGraphInstantiate(captured, 0)") == NOT_PERMITTED
    assert worker.truth(1) == 0


def test_a_child_graph_of_another_device_is_refused(worker: Interposed) -> None:
    worker.do("whole = ok(d.cuGraphCreate(0)); ok(d.cuGraphAddChildGraphNode(whole, None, 0, graph(1, 1 << 20)))")
    assert worker.error("d.cuGraphInstantiate(whole, 0)") == NOT_PERMITTED


def test_without_a_context_nothing_is_had_there_either(worker: Interposed, grant: Grant, interpose: Interpose) -> None:
    other = interpose(grant, None, BEHIND)
    assert other.error("d.cuMemCreate(2 << 20, on_device(device=1), 0)") == NOT_PERMITTED
    assert other.error("d.cuMemCreate(2 << 20, on_device(device=0), 0)") == "CUDA_SUCCESS"
    assert (other.charged(), other.truth(1)) == (2 * MIB, 0)
