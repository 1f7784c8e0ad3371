"""Devices: simulated ones; and those of NVML and of the probe, tested with the simulated driver libraries."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from run.simulated import CLIENT, MEM_ALLOC, Wire

from gpushare import paths
from gpushare.errors import FailedError, UsageError
from gpushare.node import nvml, sensors
from gpushare.node.devices import Device, DeviceProcess, parse_simulate
from gpushare.node.simulated import SimulatedBackend
from gpushare.node.simulator import SOCKET_NAME, Simulator, flags

GIB = 1 << 30


@pytest.fixture
def directory():
    # Short, because a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gs-") as name:
        yield Path(name)


@pytest.fixture
def simulator(directory):
    found = Simulator.start_or_adopt(directory, [4 * GIB, 2 * GIB])
    yield found
    if found.spawned is not None and found.spawned.poll() is None:
        found.stop()


def test_parse_simulate():
    assert parse_simulate("2x16GiB") == [16 * GIB] * 2
    assert parse_simulate(" 1x1.5GiB ") == [3 * GIB // 2]
    for text in ("", "2", "x16GiB", "2x", "-1x1GiB", "0x1GiB", "17x1GiB", "2x0", "2x-1GiB", "2X16GiB", "1e1x1GiB"):
        with pytest.raises(UsageError):
            parse_simulate(text)


def test_simulator_states_what_it_is(simulator):
    assert [device.memory_bytes for device in simulator.devices] == [4 * GIB, 2 * GIB]
    assert simulator.devices[0].name == "gpushare simulated GPU"
    assert simulator.pid == simulator.spawned.pid
    assert [device["uuid"] for device in simulator.stats()["devices"]] == [d.uuid for d in simulator.devices]
    assert simulator.clients(0) == 0


def test_simulator_is_adopted_and_keeps_its_uuids(simulator, directory):
    second = Simulator.start_or_adopt(directory, [GIB])
    assert second.spawned is None
    assert second.pid == simulator.pid
    assert [device.uuid for device in second.devices] == [device.uuid for device in simulator.devices]
    second.close()


def test_stopped_simulator_reports_it(simulator, directory):
    simulator.stop()
    assert simulator.spawned.returncode == 0
    assert Simulator.connect(directory) is None
    with pytest.raises(FailedError, match="simulator"):
        simulator.stats()


def test_no_simulator(directory):
    assert Simulator.connect(directory) is None
    (directory / SOCKET_NAME).write_text("")
    assert Simulator.connect(directory) is None


def test_environment_becomes_flags():
    environment = {
        "GPUSHARE_SIM_KERNEL_NS": "5",
        "GPUSHARE_SIM_PREEMPT": "0",
        "GPUSHARE_SIM_SLICE_NS": "",
        "OTHER": "1",
    }
    assert flags(environment) == ["--kernel-ns", "5", "--preempt", "0"]


@pytest.fixture
def driver(simulator, directory):
    """An environment in which the simulated driver libraries are the driver."""
    libraries = str(paths.SIM_LIB_DIR)
    if not (paths.SIM_LIB_DIR / "libnvidia-ml.so.1").exists():
        pytest.fail("the simulated libraries are missing: build the project first")
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "GPUSHARE_SIM_DIR": str(directory)}


def python(driver, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], env=driver, capture_output=True, text=True, cwd="/", check=False, timeout=60
    )


def test_probe_measures_what_a_context_costs(simulator, driver):
    done = python(driver, "-m", "gpushare.node.probe", simulator.devices[1].uuid)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "context_bytes": simulator.context_bytes,
        "listed_bytes": simulator.context_bytes,
    }
    assert simulator.stats()["devices"][1]["bytes"] == 0


def test_probe_of_an_unknown_device_fails(driver):
    done = python(driver, "-m", "gpushare.node.probe", "GPU-00000000-0000-0000-0000-000000000000")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert python(driver, "-m", "gpushare.node.probe").returncode == 2


NVML = """
import dataclasses, json
from gpushare.node.nvml import NvmlBackend
backend = NvmlBackend()
found = [dataclasses.asdict(device) for device in backend.devices()]
used = [backend.memory_used(index) for index in range(len(found))]
healthy = [backend.fault(index) for index in range(len(found))]
print(json.dumps([backend.ids(), found, used, healthy]))
backend.close()
"""


def test_nvml_backend_over_the_simulated_library(simulator, directory, driver):
    sensing = "print(json.dumps(dataclasses.asdict(backend.sensors(1)))); backend.close()"
    done = python(driver, "-c", NVML.replace("backend.close()", sensing))
    assert done.returncode == 0, done.stderr
    answer, measured = map(json.loads, done.stdout.splitlines())
    ids, found, used, healthy = answer
    backend = SimulatedBackend(Simulator.connect(directory), directory)
    backend.sensors(1)  # a utilization is of the time between two looks
    assert sensors.Sensors(**{**measured, "slowed_by": ()}) == backend.sensors(1)
    assert (measured["sm_clock_mhz"], measured["utilization_percent"], measured["temperature_celsius"]) == (
        1410,
        0,
        None,
    )
    backend.close()
    assert ids == [device.uuid for device in simulator.devices]
    assert [device["memory_bytes"] for device in found] == [4 * GIB, 2 * GIB]
    assert [device["id"] for device in found] == ids
    assert (used, healthy) == ([0, 0], ["", ""])


def test_what_a_driver_measures_is_read_and_what_it_does_not_is_left_out():
    said = {
        **{"nvmlDeviceGetTemperature": 71, "nvmlDeviceGetFanSpeed": 4_000_000, "nvmlDeviceGetPowerUsage": 287_300},
        **{"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40), "nvmlDeviceGetTotalEccErrors": 2},
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x04 | 0x08 | 0x40,
    }
    found = sensors.read(lambda name, *_: said.get(name), None)
    assert found == sensors.Sensors(
        temperature_celsius=71,
        power_milliwatts=287_300,
        utilization_percent=97,
        memory_utilization_percent=40,
        ecc_errors=2,
        slowed_by=("power", "heat"),
    )
    assert sensors.read(lambda *_: None, None) == sensors.Sensors()
    assert sensors.read(lambda name, *_: 0x08 if "Throttle" in name else None, None).slowed_by == ("hardware",)


def test_who_uses_a_device_is_the_same_to_the_simulator_and_to_nvml(simulator, directory, driver):
    backend = SimulatedBackend(Simulator.connect(directory), directory)
    assert backend.processes(1) == []
    with Wire(directory / SOCKET_NAME, CLIENT) as wire:
        assert wire.call(MEM_ALLOC, 1, 3 << 20)[0] == 0
        assert backend.processes(1) == [DeviceProcess(os.getpid(), 3 << 20, 0)]
        assert backend.processes(0) == []
        done = python(driver, "-c", NVML.replace("print", "print(backend.processes(1));"))
        assert done.stdout.splitlines()[0] == f"[DeviceProcess(pid={os.getpid()}, memory_bytes={3 << 20}, busy_ns=0)]"
    simulator.set_lost(1, lost=True)
    with pytest.raises(FailedError, match="lost"):
        backend.processes(1)
    simulator.set_lost(1, lost=False)
    assert backend.processes(1) == []
    backend.close()


def test_nvml_backend_leaves_out_what_does_not_work(simulator, driver):
    simulator.set_lost(0, lost=True)
    done = python(driver, "-c", NVML + "print(backend.absent)")
    assert done.returncode == 0, done.stderr
    answer, absent = done.stdout.splitlines()
    assert [device["index"] for device in json.loads(answer)[1]] == [0]
    assert (json.loads(answer)[0], absent) == ([simulator.devices[1].uuid], "1")
    assert "left out" in done.stderr


MISSED = """
import json
from gpushare.node.nvml import NvmlBackend
backend = NvmlBackend()
[known] = msgspec.json.decode(input(), type=list[Device])
backend.miss([known])
rows = lambda: [[device.id, device.index, device.memory_bytes, device.context_bytes] for device in backend.devices()]
faults = lambda: [backend.fault(index) for index in range(2)]
print(json.dumps([rows(), faults(), backend.memory_used(0), backend.absent]), flush=True)
input()
print(json.dumps([faults(), msgspec.to_builtins(backend.device(0)), rows()]))
"""


def test_nvml_backend_has_a_place_for_one_that_is_missed_until_it_is_back(simulator, driver):
    known = Device(simulator.devices[0].uuid, 0, 9, "old", simulator.devices[0].pci_bus_id, 4 * GIB, context_bytes=7)
    simulator.set_lost(0, lost=True)
    child = subprocess.Popen(
        [sys.executable, "-c", "import msgspec\nfrom gpushare.node.devices import Device\n" + MISSED],
        env=driver,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    child.stdin.write(msgspec.json.encode([known]).decode() + "\n")
    rows, faults, used, absent = json.loads(child.stdout.readline())
    assert rows == [[known.id, 0, 4 * GIB, 7], [simulator.devices[1].uuid, 1, 2 * GIB, 0]]
    assert "NVML says" in faults[0]
    assert (faults[1], used, absent) == ("", 0, 0)
    simulator.set_lost(0, lost=False)
    answer, _ = child.communicate("\n", timeout=60)
    faults, device, after = json.loads(answer)
    assert (faults, after) == (["", ""], rows)
    # The device's current facts, not the remembered ones.
    assert (device["minor"], device["name"], device["context_bytes"]) == (0, simulator.devices[0].name, 7)


def test_nvml_backend_reports_why_a_device_stopped(simulator, driver):
    child = subprocess.Popen(
        [sys.executable, "-c", NVML.replace("used = ", "print(flush=True), input()\nused = ")],
        env=driver,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child.stdout.readline()
    simulator.set_lost(1, lost=True)
    answer, _ = child.communicate("\n", timeout=60)
    _, _, used, faults = json.loads(answer)
    assert faults[0] == ""
    assert "GPU is lost" in faults[1]
    assert used == [0, 0]


def test_a_simulated_device_is_lost_and_back(simulator, directory):
    backend = SimulatedBackend(simulator, directory)
    simulator.set_lost(1, lost=True)
    assert backend.fault(0) == ""
    assert "simulated device 1 is lost" in backend.fault(1)
    simulator.set_lost(1, lost=False)
    assert backend.fault(1) == ""


# Ways to the device that bypass libcuda.so.1, where shares are enforced: gpushare gives them to no container.
OTHER_APIS = (
    "libnvidia-opencl.so.1",
    "libnvidia-glvkspirv.so.580.1",
    "libGLX_nvidia.so.0",
    "libEGL_nvidia.so.0",
    "libnvidia-encode.so.1",
    "libnvcuvid.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvoptix.so.1",
)


@pytest.mark.promise("cuda-only")
@pytest.mark.parametrize("cached", [False, True])
def test_driver_libraries_come_from_one_place(tmp_path, monkeypatch, cached):
    """A driver found only through LD_LIBRARY_PATH is used; if another is in the loader's cache, the two are not
    mixed."""
    compilers = ("libnvidia-gpucomp.so.580.1", "libnvidia-ptxjitcompiler.so.1")
    for name in (
        "libcuda.so.1",
        *compilers,
        "libc.so.6",
        "libnvidia-gpucomp.soap",
        "libnvidia-pkcs11-openssl3.so.580.1",
        *OTHER_APIS,
    ):
        (tmp_path / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f":relative:{tmp_path / 'absent'}:{tmp_path}")
    known = [("libcuda.so.1", Path("/usr/lib/libcuda.so.1"))] if cached else []
    monkeypatch.setattr(nvml, "_cached", lambda: known)
    elsewhere = (tmp_path / "libcuda.so.1", *(tmp_path / name for name in compilers))
    assert nvml.driver_files() == ((Path("/usr/lib/libcuda.so.1"),) if cached else elsewhere)


def test_no_driver_is_reported_plainly(tmp_path):
    program = (
        "from gpushare.errors import UnreachableError\nfrom gpushare.node import nvml\n"
        "try: nvml.load()\nexcept UnreachableError as error: print(error)\nelse: print('a driver')"
    )
    done = python(dict(os.environ), "-c", program)
    assert done.returncode == 0, done.stderr
    assert "--simulate" in done.stdout or done.stdout == "a driver\n"
