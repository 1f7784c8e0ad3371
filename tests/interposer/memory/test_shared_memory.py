"""Shared memory is charged to its creator until nothing holds it, as measured by the simulator."""

import os
from collections.abc import Callable

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import Interpose, Interposed
from run.waiting import until

UNIT = 2 * MIB  # of cuMemCreate
SHARED = "d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
Start = Callable[..., Interposed]
NAME = "list(ctypes.string_at(h.getPtr(), 64))"  # of a CUipcMemHandle
PREPARE = f"""
    import os
    FILE = {SHARED}
    def create(bytes, kind=d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE, device=0):
        return ok(d.cuMemCreate(bytes, on_device(kind, device), 0))
    def export(handle):
        return ok(d.cuMemExportToShareableHandle(handle, FILE, 0))
    def opened(pid, fd):
        return os.open(f"/proc/{{pid}}/fd/{{fd}}", os.O_RDWR)
    def team(devices, size):
        m = ok(d.cuMulticastCreate(made(d.CUmulticastObjectProp, numDevices=len(devices), size=size)))
        for device in devices:
            ok(d.cuMulticastAddDevice(m, device))
        return m
"""


@pytest.fixture
def start(grant: Grant, interpose: Interpose) -> Start:
    def run() -> Interposed:
        made = interpose(grant)
        made.do(PREPARE)
        return made

    return run


# ---- cuIpc


def test_ipc_memory_is_the_exporters(start: Start) -> None:
    one, two = start(), start()
    one.do("p = ok(d.cuMemAlloc(10 << 20)); put(p, b'shared'); h = ok(d.cuIpcGetMemHandle(p))")
    name = bytes(one.get(NAME))
    two.do(f"h = d.CUipcMemHandle(); ctypes.memmove(h.getPtr(), {name!r}, 64)")
    two.do("q = ok(d.cuIpcOpenMemHandle(h, 1)); r = ok(d.cuIpcOpenMemHandle(h, 1))")
    assert two.get("get(q, 6).decode()") == "shared"
    assert (one.charged(), two.charged()) == (CONTEXT + 10 * MIB, CONTEXT)
    assert two.error("d.cuMemFree(q)") == "CUDA_ERROR_INVALID_VALUE", "it is not the importer's to free"
    two.do("ok(d.cuIpcCloseMemHandle(q)); ok(d.cuIpcCloseMemHandle(r))")
    assert two.error("d.cuIpcCloseMemHandle(q)") == "CUDA_ERROR_INVALID_VALUE"
    one.do("ok(d.cuMemFree(p))")
    assert (one.charged(), two.charged()) == (CONTEXT, CONTEXT)


@pytest.mark.parametrize("first", ["exporter", "importer"])
def test_deaths_in_any_order(start: Start, sim: Simulator, grant: Grant, first: str) -> None:
    one, two = start(), start()
    one.do("p = ok(d.cuMemAlloc(10 << 20)); h = ok(d.cuIpcGetMemHandle(p))")
    two.do(f"h = d.CUipcMemHandle(); ctypes.memmove(h.getPtr(), {bytes(one.get(NAME))!r}, 64)")
    two.do("q = ok(d.cuIpcOpenMemHandle(h, 1))")
    dies, lives = (one, two) if first == "exporter" else (two, one)
    dies.kill()
    until(lambda: dies.truth() == 0, "the simulator has the dead one's bytes")
    assert grant.charged(pid=dies.pid) == CONTEXT + (10 * MIB if dies is one else 0), "what a daemon takes back"
    lives.do("ok(d.cuIpcCloseMemHandle(q))" if lives is two else "ok(d.cuMemFree(p))")
    assert lives.charged() == CONTEXT
    lives.do("p = ok(d.cuMemAlloc(1 << 20))")
    assert lives.charged() == CONTEXT + MIB


# ---- physical handles between processes


def test_a_shareable_handle_is_the_exporters(start: Start) -> None:
    one, two = start(), start()
    one.do(f"h = create({3 * UNIT}, FILE); fd = export(h)")
    two.do(f"fd = opened({one.pid}, {one.get('fd')})")
    two.do("h = ok(d.cuMemImportFromShareableHandle(fd, FILE)); again = ok(d.cuMemImportFromShareableHandle(fd, FILE))")
    two.do(f"at = ok(d.cuMemAddressReserve({3 * UNIT}, 0, 0, 0)); ok(d.cuMemMap(at, {3 * UNIT}, 0, h, 0))")
    two.do("kept = ok(d.cuMemRetainAllocationHandle(at))")
    assert (one.charged(), two.charged()) == (CONTEXT + 3 * UNIT, CONTEXT)
    for line in ("d.cuMemRelease(h)", "d.cuMemRelease(again)", f"d.cuMemUnmap(at, {3 * UNIT})", "d.cuMemRelease(kept)"):
        two.do(f"ok({line})")
        assert (one.charged(), two.charged()) == (CONTEXT + 3 * UNIT, CONTEXT)
    assert two.error("d.cuMemRelease(kept)") == "CUDA_ERROR_INVALID_VALUE"
    two.do("os.close(fd)")
    one.do("os.close(fd); ok(d.cuMemRelease(h))")
    assert one.charged() == CONTEXT


def test_external_memory_is_the_exporters(start: Start) -> None:
    one, two = start(), start()
    one.do(f"h = create({2 * UNIT}, FILE); fd = export(h)")
    two.do(f"""
        description = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
        description.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
        description.handle.fd = opened({one.pid}, {one.get("fd")})
        description.size = {2 * UNIT}
        x = ok(d.cuImportExternalMemory(description))
        buffer = d.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
        buffer.size = {UNIT}
        p = ok(d.cuExternalMemoryGetMappedBuffer(x, buffer))
        put(p, b"to all")
    """)
    assert (one.charged(), two.charged()) == (CONTEXT + 2 * UNIT, CONTEXT)
    one.do(f"""
        at = ok(d.cuMemAddressReserve({2 * UNIT}, 0, 0, 0)); ok(d.cuMemMap(at, {2 * UNIT}, 0, h, 0))
        ok(d.cuMemSetAccess(at, {2 * UNIT}, [access()], 1))
    """)
    assert one.get("get(at, 6).decode()") == "to all"
    two.do("ok(d.cuMemFree(p)); ok(d.cuDestroyExternalMemory(x))")
    assert two.error("d.cuMemFree(p)") == "CUDA_ERROR_INVALID_VALUE"
    assert two.error("d.cuDestroyExternalMemory(x)") == "CUDA_ERROR_INVALID_HANDLE"
    assert (one.charged(), two.charged()) == (CONTEXT + 2 * UNIT, CONTEXT)
    one.kill()
    two.do("p = ok(d.cuMemAlloc(512))")
    assert two.charged() == CONTEXT + 512


# ---- multicast


def test_a_multicast_object_keeps_what_is_bound_to_it(start: Start) -> None:
    worker = start()
    worker.do(f"m = team([0], {8 * UNIT}); h, k, g = create({UNIT}), create({2 * UNIT}), create({UNIT})")
    assert worker.charged() == CONTEXT + 4 * UNIT, "a multicast object has no memory of its own"
    worker.do(f"ok(d.cuMulticastBindMem(m, 0, h, 0, {UNIT}, 0)); ok(d.cuMulticastBindMem(m, {UNIT}, k, 0, {UNIT}, 0))")
    worker.do(f"ok(d.cuMulticastBindMem(m, {4 * UNIT}, k, {UNIT}, {UNIT}, 0))")
    worker.do(f"""
        at = ok(d.cuMemAddressReserve({UNIT}, 0, 0, 0)); ok(d.cuMemMap(at, {UNIT}, 0, g, 0))
        ok(d.cuMulticastBindAddr(m, {6 * UNIT}, int(at), {UNIT}, 0))
        ok(d.cuMemRelease(h)); ok(d.cuMemRelease(k)); ok(d.cuMemRelease(g))
    """)
    assert worker.charged() == CONTEXT + 4 * UNIT
    overlap = f"d.cuMulticastBindMem(m, 0, create({UNIT}), 0, {UNIT}, 0)"
    assert worker.error(overlap) == "CUDA_ERROR_INVALID_VALUE"
    expected = CONTEXT + 5 * UNIT  # the handle of the refused call is still held
    for step, change in [
        (f"d.cuMemUnmap(at, {UNIT})", 0),
        (f"d.cuMulticastUnbind(m, 0, 0, {UNIT})", -UNIT),
        (f"d.cuMulticastUnbind(m, 0, {UNIT}, {UNIT})", 0),  # bound in two places
        (f"d.cuMulticastUnbind(m, 0, {4 * UNIT}, {UNIT})", -2 * UNIT),
        ("d.cuMemRelease(m)", -UNIT),  # and everything still bound
    ]:
        worker.do(f"ok({step})")
        expected += change
        assert worker.charged() == expected, step
    assert worker.error("d.cuMemRelease(m)") == "CUDA_ERROR_INVALID_VALUE"


def test_a_multicast_team_of_two_devices(pair: Simulator, both: Grant, interpose: Interpose) -> None:
    worker = interpose(both, on=pair)
    worker.do(PREPARE)
    worker.do(f"other = context(1); m = team([0, 1], {4 * UNIT})")
    worker.do(f"""
        h, k = create({UNIT}), create({3 * UNIT}, device=1)
        ok(d.cuMulticastBindMem(m, 0, h, 0, {UNIT}, 0)); ok(d.cuMulticastBindMem(m, 0, k, 0, {3 * UNIT}, 0))
        ok(d.cuMemRelease(h)); ok(d.cuMemRelease(k))
    """)
    assert (worker.charged(0), worker.charged(1)) == (CONTEXT + UNIT, CONTEXT + 3 * UNIT)
    worker.do(f"ok(d.cuMulticastUnbind(m, 1, 0, {4 * UNIT}))")
    assert (worker.charged(0), worker.charged(1)) == (CONTEXT + UNIT, CONTEXT)
    worker.do("ok(d.cuMemRelease(m))")
    assert (worker.charged(0), worker.charged(1)) == (CONTEXT, CONTEXT)


def test_descriptors_do_not_leak(start: Start) -> None:
    worker = start()
    count = len(os.listdir(f"/proc/{worker.pid}/fd"))
    worker.do(f"""
        for _ in range(20):
            h = create({UNIT}, FILE); fd = export(h)
            description = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
            description.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
            description.handle.fd = fd
            ok(d.cuDestroyExternalMemory(ok(d.cuImportExternalMemory(description))))
            ok(d.cuMemRelease(h))
    """)
    assert len(os.listdir(f"/proc/{worker.pid}/fd")) <= count + 1
    assert worker.charged() == CONTEXT
