"""NVML shows the devices of a grant alone, first to last, under CUDA's numbers."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pages.handmade import Grant, Simulator
from run import built
from run.viewer import Inside

from gpushare import paths

ORDERS = [(1,), (2, 0), (0, 1, 2, 3)]
INVALID, NOT_FOUND = pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
TOOLS = """
    import ctypes
    library = ctypes.CDLL("libnvidia-ml.so.1")
    every = range(n.nvmlDeviceGetCount())
    name = lambda handle: n.nvmlDeviceGetUUID(handle)
    def by_uuid_v(text):
        request = n.c_nvmlUUID_t(); request.type = n.NVML_UUID_TYPE_BINARY
        request.value.bytes[:] = list(bytes.fromhex(text[4:].replace("-", "")))
        handle = n.c_nvmlDevice_t()
        result = n._nvmlGetFunctionPointer("nvmlDeviceGetHandleByUUIDV")(ctypes.byref(request), ctypes.byref(handle))
        return name(handle) if result == 0 else result
"""


def text(raw: bytes) -> str:
    return f"GPU-{uuid.UUID(bytes=raw)}"


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    simulator = Simulator(tmp_path / "sim", "4x4GiB")
    yield simulator
    simulator.stop()


@pytest.mark.parametrize("devices", ORDERS)
def test_a_loop_over_all_devices_sees_the_grant_s(
    devices: tuple[int, ...], granted: Callable[..., Grant], sim: Simulator, inside: Callable[..., Inside]
) -> None:
    """As monitors do: queries each device up to the count, found by every kind of look-up."""
    grant = granted(*devices)
    for place in range(len(devices)):
        grant.set_limit((place + 1) << 30, place)
    starts, bare = inside(grant), inside(None).worker()
    worker = starts.worker()
    for each in (worker, bare):
        each.do(TOOLS)
    own = [text(sim.uuids[device]) for device in devices]
    assert worker.get("[name(device(i)) for i in every]") == own
    worker.do("ok(d.cuInit(0))")
    cuda = "['GPU-' + str(__import__('uuid').UUID(bytes=ok(d.cuDeviceGetUuid(ok(d.cuDeviceGet(i)))).bytes)) "
    assert worker.get(f"{cuda} for i in range(ok(d.cuDeviceGetCount()))]") == own
    assert worker.get("[n.nvmlDeviceGetIndex(device(i)) for i in every]") == list(range(len(devices)))
    assert worker.get("[both(i)[0][0] for i in every]") == [(place + 1) << 30 for place in range(len(devices))]
    assert worker.get("[ok(d.cuDeviceTotalMem(i)) for i in every]") == worker.get("[both(i)[0][0] for i in every]")
    for question in ("Name", "MinorNumber", "UtilizationRates", "ComputeRunningProcesses", "Temperature", "PciInfo"):
        more = ", 0" if question == "Temperature" else ""
        worker.do(f"for i in every: code(n.nvmlDeviceGet{question}, device(i){more})")
    assert worker.get("[n.nvmlDeviceGetMinorNumber(device(i)) for i in every]") == list(devices)
    for place, device in enumerate(devices):
        bus = bare.get(f"n.nvmlDeviceGetPciInfo(device({device})).busId")
        found = f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId({bus!r}))"
        assert worker.get(found) == place
        assert worker.get(f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID({own[place]!r}))") == place
        assert worker.get(f"by_uuid_v({own[place]!r})") == own[place]
    for beyond in (len(devices), len(devices) + 1, 4, 0xFFFFFFFF):
        assert worker.get(f"code(n.nvmlDeviceGetHandleByIndex, {beyond})") == INVALID
    for version in ("", "_v2"):
        worker.do(f"c = ctypes.c_uint(); assert library.nvmlDeviceGetCount{version}(ctypes.byref(c)) == 0")
        assert worker.get("c.value") == len(devices)
        worker.do("h = ctypes.c_void_p(77)")
        beyond_count = f"[library.nvmlDeviceGetHandleByIndex{version}({len(devices)}, ctypes.byref(h)), h.value]"
        assert worker.get(beyond_count) == [INVALID, 77]


@pytest.mark.parametrize("devices", ORDERS)
def test_look_ups_do_not_find_devices_of_others(
    devices: tuple[int, ...], granted: Callable[..., Grant], sim: Simulator, inside: Callable[..., Inside]
) -> None:
    worker, bare = inside(granted(*devices)).worker(), inside(None).worker()
    worker.do(TOOLS)
    for device in sorted({0, 1, 2, 3} - set(devices)):
        other = text(sim.uuids[device])
        bus = bare.get(f"n.nvmlDeviceGetPciInfo(device({device})).busId")
        assert worker.get(f"code(n.nvmlDeviceGetHandleByUUID, {other!r})") == NOT_FOUND
        assert worker.get(f"by_uuid_v({other!r})") == NOT_FOUND
        assert worker.get(f"code(n.nvmlDeviceGetHandleByPciBusId, {bus!r})") == NOT_FOUND


def test_cuda_visible_devices_does_not_change_nvml(
    granted: Callable[..., Grant], sim: Simulator, inside: Callable[..., Inside]
) -> None:
    """As without gpushare: NVML does not read that variable."""
    starts = inside(granted(2, 0, 1))
    for shown in ("0", text(sim.uuids[1]), ""):
        starts.env["CUDA_VISIBLE_DEVICES"] = shown
        worker = starts.worker()
        worker.do(TOOLS)
        assert worker.get("[name(device(i)) for i in every]") == [text(sim.uuids[device]) for device in (2, 0, 1)]


def test_a_device_that_is_gone_keeps_its_number(granted: Callable[..., Grant], inside: Callable[..., Inside]) -> None:
    grant = granted(2, 0)
    grant.limits.device[0].uuid = bytes(range(16))  # a UUID that the driver does not know
    worker = inside(grant).worker()
    assert worker.get("n.nvmlDeviceGetCount()") == 2
    assert worker.get("code(n.nvmlDeviceGetHandleByIndex, 0)") == pynvml.NVML_ERROR_GPU_IS_LOST
    assert worker.get("n.nvmlDeviceGetIndex(device(1))") == 1


def test_no_pages_no_devices(granted: Callable[..., Grant], inside: Callable[..., Inside]) -> None:
    grant = granted(2, 0)
    grant.limits.magic = 0
    worker = inside(grant).worker()
    assert worker.get("n.nvmlDeviceGetCount()") == 0
    assert worker.get("code(n.nvmlDeviceGetHandleByIndex, 0)") == INVALID


# ---- functions that reveal other devices, with a library that has four ----------------------------------------------


@pytest.fixture
def beside(granted: Callable[..., Grant], inside: Callable[..., Inside]) -> Callable[[tuple[int, ...]], Any]:
    def make(devices: tuple[int, ...]) -> Any:
        grant = granted(*devices)
        (grant.directory / "driver").unlink()
        (grant.directory / "driver").symlink_to(built.program("manyml"))
        worker = inside(grant).worker()
        worker.do(TOOLS)
        worker.do("places = lambda handles: [n.nvmlDeviceGetIndex(each) for each in handles]")
        worker.do("""
            ours = device(0)
            address = ctypes.cast(ours, ctypes.c_void_p).value
            def forged(step): return ctypes.cast(address + 4 * step, n.c_nvmlDevice_t)  # struct device is 4 bytes
        """)
        return worker

    return make


def test_topology_has_the_grant_s_devices_alone(beside: Callable[..., Any]) -> None:
    worker = beside((2, 0))
    assert worker.get("places(n.nvmlSystemGetTopologyGpuSet(0))") == [1, 0], "the library's order"
    assert worker.get("code(n.nvmlSystemGetTopologyGpuSet, 64)") == INVALID
    assert worker.get("places(n.nvmlDeviceGetTopologyNearestGpus(device(0), 20))") == [1]
    assert worker.get("places(n.nvmlDeviceGetTopologyNearestGpus(device(1), 20))") == [0]
    worker.do("""
        count, room = ctypes.c_uint(1), (ctypes.c_void_p * 4)()
        assert library.nvmlSystemGetTopologyGpuSet(0, ctypes.byref(count), room) == 0
    """)
    assert worker.get("[count.value, [bool(each) for each in room]]") == [1, [True, False, False, False]]
    alone = beside((1,))
    assert alone.get("n.nvmlDeviceGetTopologyNearestGpus(device(0), 20)") == []
    assert alone.get("places(n.nvmlSystemGetTopologyGpuSet(0))") == [0]


def test_pairs_are_of_the_grant_s_devices(beside: Callable[..., Any]) -> None:
    worker = beside((2, 0))
    pairs = (
        "nvmlDeviceGetTopologyCommonAncestor, A, B",
        "nvmlDeviceGetP2PStatus, A, B, 0",
        "nvmlDeviceOnSameBoard, A, B",
    )
    for call in pairs:
        own = call.replace(" A,", " device(0),").replace(" B", " device(1)")
        assert worker.get(f"code(n.{own})") == 0
        for strange in ("forged(1)", "forged(-1)"):
            foreign = call.replace(" A,", f" {strange},").replace(" B", " device(1)")
            assert worker.get(f"code(n.{foreign})") == INVALID
            foreign = call.replace(" A,", " device(1),").replace(" B", f" {strange}")
            assert worker.get(f"code(n.{foreign})") == INVALID
    assert worker.get("code(n.nvmlDeviceGetIndex, forged(1))") == INVALID


def test_links_lead_to_the_grant_s_devices_and_to_switches(beside: Callable[..., Any]) -> None:
    worker = beside((2, 0))
    remote = "[code(n.nvmlDeviceGetNvLinkRemotePciInfo, device(0), link) for link in range(6)]"
    assert worker.get(remote) == [0, UNSUPPORTED, 0, UNSUPPORTED, 0, INVALID]
    assert worker.get("n.nvmlDeviceGetNvLinkRemotePciInfo(device(0), 4).busId") == "00000000:04:00.0"


def test_nothing_else_shows_other_devices(beside: Callable[..., Any]) -> None:
    worker = beside((2, 0))
    assert worker.get("n.nvmlUnitGetCount()") == 0
    assert worker.get("code(n.nvmlUnitGetHandleByIndex, 0)") == INVALID
    assert worker.get("library.nvmlUnitGetDevices(ours, ctypes.byref(ctypes.c_uint(0)), None)") == INVALID
    assert worker.get("n.nvmlGetExcludedDeviceCount()") == 0
    worker.do("info = (ctypes.c_char * 256)()")
    assert worker.get("library.nvmlGetExcludedDeviceInfoByIndex(0, info)") == INVALID
    assert worker.get("bytes(info) == bytes(256)")
    assert worker.get("code(n.nvmlDeviceGetHandleBySerial, b'serial-1')") == NOT_FOUND
    assert worker.get("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial(b'serial-2'))") == 0
    assert worker.get("code(n.nvmlDeviceGetHandleByPciBusId, b'00000000:01:00.0')") == NOT_FOUND
    assert worker.get("code(n.nvmlDeviceGetMigDeviceHandleByIndex, device(0), 0)") == NOT_FOUND
    instance = beside((3,))
    assert instance.get("code(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device(0))") == NOT_FOUND
    worker.do("register = library.nvmlEventSetRegisterGpuOperationalEvents_v1")
    worker.do("config = lambda text: ctypes.create_string_buffer(text, 128)")
    own, other = (f"GPU-67707573-6841-7265-ad73-696d0000000{number}".encode() for number in (3, 2))
    assert worker.get(f"[register(0, config(each)) for each in ({own!r}, {other!r}, b'')]") == [
        0,
        NOT_FOUND,
        UNSUPPORTED,
    ]


def test_the_library_alone_shows_all(sim: Simulator, environment: Callable[..., dict[str, str]]) -> None:
    """The stand-in library itself reveals the other devices, so the tests above prove something."""
    starts = Inside(
        environment(None, preload="") | {"LD_LIBRARY_PATH": f"{built.program('manyml')}:{paths.SIM_LIB_DIR}"}
    )
    try:
        worker = starts.worker()
        worker.do("places = lambda handles: [n.nvmlDeviceGetIndex(each) for each in handles]")
        assert worker.get("places(n.nvmlSystemGetTopologyGpuSet(0))") == [0, 1, 2, 3]
        assert worker.get("places(n.nvmlDeviceGetTopologyNearestGpus(device(2), 20))") == [0, 1, 3]
        assert worker.get("[n.nvmlUnitGetCount(), n.nvmlGetExcludedDeviceCount()]") == [1, 2]
        remote = "[code(n.nvmlDeviceGetNvLinkRemotePciInfo, device(0), link) for link in range(5)]"
        assert worker.get(remote) == [0] * 5
    finally:
        starts.end()
