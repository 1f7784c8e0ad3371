"""A device that can use plain memory of the program (HMM, ATS): no call moves memory there uncharged."""

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT
from run.interposed import Interpose, Interposed

MIB = 1 << 20
LIMIT = 2 << 30
PAGEABLE_MEMORY_ACCESS = 88
HELPERS = """
    import mmap
    def plain(size):
        made = mmap.mmap(-1, size)
        return made, ctypes.addressof(ctypes.c_char.from_buffer(made))
    def at(device, kind="DEVICE"):
        return made(d.CUmemLocation, type=getattr(d.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}"), id=device)
    size = 3 << 30
    keeps, p = plain(size); P = d.CUdeviceptr(p)
    m, s = ok(d.cuMemAllocManaged(64 << 20, 1)), ok(d.cuStreamCreate(1))
    handle = ctypes.c_void_p(int(s))
    def raw(name, *rest):
        return d.CUresult(getattr(lib, name)(ctypes.c_uint64(p), ctypes.c_size_t(size), *rest)),
    PREFERRED = d.CUmem_advise(3)  # CU_MEM_ADVISE_SET_PREFERRED_LOCATION
"""
WAYS = {
    "a prefetch": "d.cuMemPrefetchAsync(p, size, at(0), 0, s)",
    "a prefetch of before CUDA 12": ("raw('cuMemPrefetchAsync', 0, handle)"),
    "the thread's own stream": ("raw('cuMemPrefetchAsync_ptsz', 0, None)"),
    "a batch": "d.cuMemPrefetchBatchAsync([m, P], [MIB, size], 2, [at(0)], [0], 1, 0, s)",
    "a batch of places": "d.cuMemPrefetchBatchAsync([m, P], [MIB, size], 2, [at(0, 'HOST'), at(0)], [0, 1], 2, 0, s)",
    "a discard": "d.cuMemDiscardAndPrefetchBatchAsync([P, m], [size, MIB], 2, [at(0)], [0], 1, 0, s)",
    "a preferred place": "d.cuMemAdvise(p, size, PREFERRED, at(0))",
    "a preferred place of before CUDA 12": ("raw('cuMemAdvise', 3, 0)"),
}


def prepare(worker: Interposed) -> None:
    worker.do("import ctypes; MIB = 1 << 20")
    worker.do(HELPERS)


@pytest.fixture
def pageable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_SIM_PAGEABLE", "1")


@pytest.fixture
def worker(pageable: None, grant: Grant, interpose: Interpose) -> Interposed:
    made = interpose(grant)
    prepare(made)
    return made


@pytest.fixture
def bare(pageable: None, interpose: Interpose) -> Interposed:
    made = interpose(None)
    prepare(made)
    return made


def held(sim: Simulator, worker: Interposed) -> int:
    return sum(row["bytes"] for row in sim.books()["devices"][0]["processes"] if row["pid"] == worker.pid)


@pytest.mark.promise("no-prefetch-to-device")
@pytest.mark.parametrize("way", WAYS)
def test_plain_memory_stays_on_the_host(worker: Interposed, bare: Interposed, sim: Simulator, way: str) -> None:
    own = CONTEXT + 64 * MIB
    assert bare.error(WAYS[way]) == "CUDA_SUCCESS"
    assert held(sim, bare) == own + (3 << 30), "without us it takes device memory"
    assert worker.error(WAYS[way]) == "CUDA_SUCCESS"
    assert worker.charged() == held(sim, worker) == own
    for each in (worker, bare):
        each.do("ok(d.cuStreamSynchronize(s)); ok(d.cuMemPrefetchAsync(p, size, at(0, 'HOST'), 0, s))")
        assert held(sim, each) == own


@pytest.mark.promise("no-prefetch-to-device")
def test_a_range_of_both_kinds_stays_on_the_host(worker: Interposed, sim: Simulator) -> None:
    """A range that begins in managed memory and reaches beyond it."""
    worker.error("d.cuMemPrefetchAsync(int(m) + (63 << 20), 1 << 30, at(0), 0, s)")
    assert held(sim, worker) == CONTEXT + 64 * MIB


@pytest.mark.parametrize(
    "way", ["p, size, at(0), 7, s", "p, 0, at(0), 0, s", "0, size, at(0), 0, s", "p, size, at(9), 0, s"]
)
def test_errors_are_the_drivers(worker: Interposed, bare: Interposed, way: str) -> None:
    answer = bare.error(f"d.cuMemPrefetchAsync({way})")
    assert answer != "CUDA_SUCCESS"
    assert worker.error(f"d.cuMemPrefetchAsync({way})") == answer
    assert worker.error("d.cuMemAdvise(p, size, PREFERRED, at(9))") == bare.error(
        "d.cuMemAdvise(p, size, PREFERRED, at(9))"
    )


def test_the_device_can_still_use_it(worker: Interposed) -> None:
    """A program that works on plain memory works in a grant, too."""
    assert worker.get(f"ok(d.cuDeviceGetAttribute(d.CUdevice_attribute({PAGEABLE_MEMORY_ACCESS}), 0))") == 1


def test_without_that_ability_the_driver_refuses(grant: Grant, interpose: Interpose) -> None:
    worker = interpose(grant)
    prepare(worker)
    for way in WAYS.values():
        assert worker.error(way) == "CUDA_ERROR_INVALID_VALUE"
