"""The simulated NVML through pynvml, as tools and the daemon use it; every number comes from the simulator."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
from run.simworker import CONTEXT, Worker, start
from run.waiting import until

from gpushare.paths import SIM_LIB_DIR

NAMES = Path(__file__).parents[3] / "native" / "api" / "nvml.txt"
SPIN = (
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n  ret;\n}\n"
)
BEGIN = """
import json, time
import pynvml as n
def error(call, *arguments):
    try:
        return call(*arguments) and None
    except n.NVMLError as failure:
        return failure.value
"""


def ask(sim: Any, code: str, **env: str) -> Any:
    """The values that `show(...)` printed in a separate process."""
    text = BEGIN + "def show(value): print(json.dumps(value))\n" + code
    return json.loads(sim.run(sys.executable, "-c", text, env=env))


def test_start_and_stop(sim: Any) -> None:
    code = """
before = error(n.nvmlDeviceGetCount)
n.nvmlInit(); n.nvmlInit(); n.nvmlShutdown()
between = n.nvmlDeviceGetCount()
n.nvmlShutdown()
show([before, between, error(n.nvmlDeviceGetCount), error(n.nvmlShutdown)])
"""
    assert ask(sim, code) == [pynvml.NVML_ERROR_UNINITIALIZED, 2] + [pynvml.NVML_ERROR_UNINITIALIZED] * 2


def test_no_simulator_is_no_driver(sim: Any) -> None:
    code = "show(error(n.nvmlInit))"
    assert ask(sim, code, GPUSHARE_SIM_DIR="/nowhere") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_a_child_after_fork_starts_anew(sim: Any) -> None:
    code = """
import os
n.nvmlInit()
end, other = os.pipe()
if os.fork() == 0:
    first = error(n.nvmlDeviceGetCount); n.nvmlInit()
    os.write(other, json.dumps([first, n.nvmlDeviceGetCount()]).encode()); os._exit(0)
child = json.loads(os.read(end, 100)); os.wait()
show([child, n.nvmlDeviceGetCount()])
"""
    assert ask(sim, code) == [[pynvml.NVML_ERROR_UNINITIALIZED, 2], 2]


def test_every_way_to_a_device(sim: Any) -> None:
    code = """
n.nvmlInit()
found = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    uuid, bus = n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h).busId
    same = [n.nvmlDeviceGetHandleByUUID(uuid), n.nvmlDeviceGetHandleByUUID(uuid.upper())]
    same.append(n.nvmlDeviceGetHandleByPciBusId(bus))
    assert all(n.nvmlDeviceGetIndex(other) == index for other in same)
    found.append([uuid, n.nvmlDeviceGetName(h), n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetMemoryInfo(h).total])
show([found, error(n.nvmlDeviceGetHandleByIndex, 2), error(n.nvmlDeviceGetHandleByUUID, 'GPU-x'),
    error(n.nvmlDeviceGetHandleByPciBusId, '00000000:FF:00.0')])
"""
    found, *errors = ask(sim, code)
    books = sim.stats()["devices"]
    assert found == [[each["uuid"], each["name"], i, each["total_bytes"]] for i, each in enumerate(books)]
    assert errors == [pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_FOUND]


def test_the_same_device_in_cuda_and_nvml(sim: Any) -> None:
    code = """
from cuda.bindings import driver as d
d.cuInit(0); n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1); pci = n.nvmlDeviceGetPciInfo(h)
A = d.CUdevice_attribute
number = lambda name: d.cuDeviceGetAttribute(getattr(A, 'CU_DEVICE_ATTRIBUTE_' + name), 1)[1]
show([
    bytes(d.cuDeviceGetUuid(1)[1].bytes).hex() == n.nvmlDeviceGetUUID(h)[4:].replace('-', ''),
    [number('PCI_DOMAIN_ID'), number('PCI_BUS_ID'), number('PCI_DEVICE_ID')] == [pci.domain, pci.bus, pci.device],
    [number('COMPUTE_CAPABILITY_' + part) for part in ('MAJOR', 'MINOR')]
        == list(n.nvmlDeviceGetCudaComputeCapability(h)),
    d.cuDriverGetVersion()[1] == n.nvmlSystemGetCudaDriverVersion() == n.nvmlSystemGetCudaDriverVersion_v2(),
    d.cuDeviceGetPCIBusId(20, 1)[1].split(bytes(1))[0].decode() == pci.busIdLegacy,
    n.nvmlSystemGetDriverVersion().split('.')[0] == '580' and n.nvmlSystemGetNVMLVersion().startswith('13.580'),
])
"""
    assert ask(sim, code) == [True] * 6


def test_memory_and_processes_are_those_of_the_books(sim: Any) -> None:
    one, two = start(sim), start(sim)
    one.do("p = ok(d.cuMemAlloc(1 << 30))")
    two.do("p = ok(d.cuMemAlloc(1000))")
    code = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
m, m2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
both = (n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetComputeRunningProcesses_v2)
rows = [sorted([p.pid, p.usedGpuMemory] for p in get(h)) for get in both]
show([[m.total, m.free, m.used], [m2.total, m2.free, m2.used, m2.reserved], rows,
    n.nvmlDeviceGetGraphicsRunningProcesses(h),
    len(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1)))])
"""
    v1, v2, rows, graphics, elsewhere = ask(sim, code)
    used, total = 2 * CONTEXT + (1 << 30) + 1024, 16 << 30
    assert sim.device()["bytes"] == used
    assert v1 == [total, total - used, used]
    assert v2 == [total, total - used, used, 0]
    assert rows == [sorted([[one.pid, CONTEXT + (1 << 30)], [two.pid, CONTEXT + 1024]])] * 2
    assert (graphics, elsewhere) == ([], 0)
    one.end()
    assert [row[0] for row in ask(sim, code)[2][0]] == [two.pid]


def test_a_wrong_struct_version_is_refused(sim: Any) -> None:
    code = """
import ctypes
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); m = n.c_nvmlMemory_v2_t(); m.version = 0x03000028
lib = ctypes.CDLL('libnvidia-ml.so.1')
show(lib.nvmlDeviceGetMemoryInfo_v2(h, ctypes.byref(m)))
"""
    assert ask(sim, code) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def spin(worker: Worker, ms: float) -> None:
    worker.do(f"""
        function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData({SPIN.encode()!r} + bytes(1))), b'spin_ns'))
        value = ctypes.c_uint64(int({ms} * 1e6)); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0))
    """)


@pytest.mark.xdist_group("timing")
def test_utilisation_is_measured_and_separates_busy_from_idle(sim: Any) -> None:
    worker = start(sim)
    spin(worker, 60_000)
    code = """
n.nvmlInit()
rate = lambda index: n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(index)).gpu
busy = [[p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessUtilization(n.nvmlDeviceGetHandleByIndex(0), 0)]
show([rate(0), rate(1), busy, error(n.nvmlDeviceGetProcessUtilization, n.nvmlDeviceGetHandleByIndex(1), 0)])
"""

    def whole() -> Any:
        """What is found once the kernel has run for as long as utilisation is measured over."""
        device, other, processes, none = ask(sim, code)
        return (other, processes, none) if device >= 95 and processes[0][1] >= 95 else None

    other, processes, none = until(whole, "the device is busy")
    assert other == 0
    assert [pid for pid, _ in processes] == [worker.pid]
    assert none == pynvml.NVML_ERROR_NOT_FOUND


def test_sensors_are_not_made_up_and_what_is_not_there_cannot_be_changed(sim: Any) -> None:
    code = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
sensors = [error(n.nvmlDeviceGetTemperature, h, 0), error(n.nvmlDeviceGetPowerUsage, h),
    error(n.nvmlDeviceGetClockInfo, h, 3), error(n.nvmlDeviceGetFanSpeed, h), error(n.nvmlDeviceGetMigMode, h),
    error(n.nvmlDeviceGetMemoryAffinity, h, 1, 0),
    error(n.nvmlDeviceGetSerial, h), error(n.nvmlDeviceGetTotalEnergyConsumption, h)]
changes = [error(n.nvmlDeviceSetMigMode, h, 1), error(n.nvmlDeviceResetGpuLockedClocks, h),
    error(n.nvmlDeviceClearEccErrorCounts, h, 0), error(n.nvmlUnitSetLedState, None, 0)]
fields = [value.nvmlReturn for value in n.nvmlDeviceGetFieldValues(h, [1, 82])]
show([sensors, changes, fields, n.nvmlDeviceGetComputeMode(h), n.nvmlDeviceGetPersistenceMode(h),
    n.nvmlDeviceGetBrand(h), [n.nvmlDeviceGetClockInfo(h, kind) for kind in (0, 1, 2)],
    [n.nvmlDeviceGetMaxClockInfo(h, kind) for kind in (0, 1, 2)]])
"""
    sensors, changes, fields, *modes, clocks, highest = ask(sim, code)
    assert set(sensors) == {pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert set(changes) == {pynvml.NVML_ERROR_NO_PERMISSION}
    assert set(fields) == {pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert modes == [pynvml.NVML_COMPUTEMODE_DEFAULT, 1, pynvml.NVML_BRAND_UNKNOWN]
    assert clocks == highest == [1410, 1410, 1215]  # as cuDeviceGetAttribute says


def test_what_an_administrator_sets_every_process_sees(sim: Any) -> None:
    change = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)
n.nvmlDeviceSetPersistenceMode(h, 0); n.nvmlDeviceSetComputeMode(h, n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
n.nvmlDeviceSetAccountingMode(h, 1); n.nvmlDeviceSetPowerManagementLimit(h, 123456)
show([error(n.nvmlDeviceSetPowerManagementLimit, h, 1), error(n.nvmlDeviceSetPersistenceMode, h, 2),
    error(n.nvmlDeviceSetComputeMode, h, 4), n.nvmlDeviceGetPowerManagementLimitConstraints(h),
    n.nvmlDeviceGetPowerManagementDefaultLimit(h)])
"""
    *refused, limits, default = ask(sim, change)
    assert set(refused) == {pynvml.NVML_ERROR_INVALID_ARGUMENT}
    look = """
n.nvmlInit(); handles = [n.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
fields = [91, 187, 188, 189, 190, 192]
show([[n.nvmlDeviceGetPersistenceMode(h), n.nvmlDeviceGetComputeMode(h), n.nvmlDeviceGetAccountingMode(h),
    n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetEnforcedPowerLimit(h),
    [value.value.uiVal for value in n.nvmlDeviceGetFieldValues(h, fields)]] for h in handles])
"""
    untouched, changed = ask(sim, look)
    assert untouched == [1, 0, 0, default, default, [0, *limits, default, default, default]]
    assert changed == [0, 3, 1, 123456, 123456, [0, *limits, default, 123456, 123456]]


def test_accounting_keeps_those_that_ended(sim: Any) -> None:
    code = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
off = [n.nvmlDeviceGetAccountingPids(h), error(n.nvmlDeviceGetAccountingStats, h, PID)]
n.nvmlDeviceSetAccountingMode(h, 1)
one, two = n.nvmlDeviceGetAccountingStats(h, PID), n.nvmlDeviceGetAccountingStats_v2(h, PID)
show([off, n.nvmlDeviceGetAccountingPids(h), [one.isRunning, one.maxMemoryUsage], [two.isRunning, two.maxMemoryUsage]])
n.nvmlDeviceSetAccountingMode(h, 0)
"""
    worker = start(sim)
    worker.do("p = ok(d.cuMemAlloc(1 << 30)); ok(d.cuMemFree(p))")
    code = code.replace("PID", str(worker.pid))
    peak = CONTEXT + (1 << 30)
    off, pids, one, two = ask(sim, code)
    assert off == [[], pynvml.NVML_ERROR_NOT_FOUND]
    assert (pids, one, two) == ([worker.pid], [1, peak], [1, peak])
    worker.end()
    assert ask(sim, code)[1:] == [[worker.pid], [0, peak], [0, peak]]


def test_a_sample_and_the_versioned_list_of_processes_agree(sim: Any) -> None:
    worker = start(sim)
    spin(worker, 60_000)
    code = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
kind, samples = n.nvmlDeviceGetSamples(h, n.NVML_GPU_UTILIZATION_SAMPLES, 0)
other = error(n.nvmlDeviceGetSamples, h, n.NVML_DEC_UTILIZATION_SAMPLES, 0)
show([[kind, [s.sampleValue.uiVal for s in samples]], other,
    [[p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessesUtilizationInfo(h, 0)]])
"""
    (kind, samples), other, processes = ask(sim, code)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert len(samples) == 1
    assert samples[0] >= 80
    assert other == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert [pid for pid, _ in processes] == [worker.pid]
    assert processes[0][1] >= 80


def test_the_library_has_every_known_name() -> None:
    command = ["nm", "-D", "--defined-only", str(SIM_LIB_DIR / "libnvidia-ml.so.1")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in listing.stdout.splitlines()}
    wanted = {line for line in NAMES.read_text().splitlines() if not line.startswith("#")}
    assert wanted <= exported
    assert {name for name in exported if not name.startswith("nvml")} == set()


def test_it_sees_a_simulator_that_was_started_anew(sim: Any) -> None:
    code = (
        "import sys, pynvml as n\nn.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "for line in sys.stdin:\n"
        "    try:\n        print(n.nvmlDeviceGetMemoryInfo(h).used, flush=True)\n"
        "    except n.NVMLError as failure:\n        print(failure, flush=True)\n"
    )
    viewer = sim.spawn(sys.executable, "-c", code)

    def used() -> str:
        viewer.stdin.write("\n")
        viewer.stdin.flush()
        return str(viewer.stdout.readline().strip())

    assert used() == "0"
    assert sim.engine is not None
    sim.engine.kill()
    sim.engine.wait(10)
    sim.engine.stderr.close()
    assert used() == "GPU is lost"
    sim.start()
    assert used() == "0"


@pytest.mark.parametrize("code", [0, 3, 6, 9, 25, 999, 12345])
def test_error_texts(sim: Any, code: int) -> None:
    text = f"""
import ctypes
lib = ctypes.CDLL('libnvidia-ml.so.1'); lib.nvmlErrorString.restype = ctypes.c_char_p
show(lib.nvmlErrorString({code}).decode())
"""
    names = {0: "Success", 3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded", 25: "Argument version mismatch"}
    assert ask(sim, text) == names.get(code, "Unknown Error")
