"""Real devices, through NVML. The only module that imports pynvml; probe.py and limits.py get it from here."""

import logging
import os
import shutil
import subprocess
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.errors import FailedError, UnreachableError
from gpushare.inject.node import DeviceNode, Node
from gpushare.node import limits, sensors
from gpushare.node.devices import MAX_DEVICES, ContextCost, Device, DeviceProcess, architecture
from gpushare.node.sensors import Sensors
from gpushare.node.topology import linked, numa_node, nvlink_domain, pcie_root

# The driver libraries that a CUDA program loads: the API, NVML, the debugger's stub, and the compilers that the API
# opens by name (as libcuda.so.1 of r580 and r595 lists them). Names in _VERSIONED end with the driver's version.
# In a container all of them end up in the program: libnvidia-pkcs11, for confidential computing, would pull in OpenSSL.
_LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudadebugger.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
)
_VERSIONED = (
    "libnvidia-gpucomp.so.",
    "libnvidia-tileiras.so.",
)
# Directories of a driver that is missing from the loader's cache: one mounted into a container or a virtual machine.
_LIBRARY_DIRS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
_TOOLS = ("nvidia-smi",)
_TOOL_DIRS = ("/usr/local/nvidia/bin",)
_UVM_NODE = "/dev/nvidia-uvm"
# Nodes that CUDA needs in addition to its device. Without nvidia-modeset, which hands out device memory that is not
# counted, and nvidia-uvm-tools, which inspects processes; the device program denies these two to containers that have
# their nodes.
_COMMON_NODES = ("/dev/nvidiactl", _UVM_NODE)


def load() -> Any:
    """Returns the pynvml module, initialised. Raises UnreachableError if there is no driver."""
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnreachableError(
            f'no usable NVIDIA driver ({error}): install one, or for simulated devices set simulate = "2x16GiB" in '
            "/etc/gpushare/gpushare.toml, or give --simulate 2x16GiB"
        ) from None
    return pynvml


def device_node(path: str) -> DeviceNode | None:
    """Returns the device node at a path; None if there is no character device."""
    import stat

    try:
        found = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return DeviceNode(path, os.major(found.st_rdev), os.minor(found.st_rdev))


def _is_driver(name: str) -> bool:
    return name in _LIBRARIES or name.startswith(_VERSIONED)


def _cached() -> list[tuple[str, Path]]:
    """Returns (name, path) of the driver's libraries for this architecture in the loader's cache."""
    machine = "AArch64" if os.uname().machine == "aarch64" else "x86-64"
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = []
    for line in cache.splitlines():
        name, _, rest = line.strip().partition(" ")
        kind, arrow, path = rest.partition("=> ")
        if arrow and _is_driver(name) and machine in kind:
            found.append((name, Path(path.strip())))
    return found


def _in_directories() -> list[tuple[str, Path]]:
    """As _cached, but in the other directories that a program in this environment would search."""
    directories = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_LIBRARY_DIRS]
    found = []
    for directory in filter(os.path.isabs, directories):
        try:
            names = sorted(path.name for path in Path(directory).iterdir() if _is_driver(path.name))
        except OSError:
            continue
        found += [(name, Path(directory, name)) for name in names]
    return found


def driver_files() -> tuple[Path, ...]:
    """Returns the driver's libraries as the dynamic loader finds them by SONAME: all from its cache, or all from
    elsewhere, since libraries of two drivers do not work together."""
    cached = _cached()
    known = cached if any(name == "libcuda.so.1" for name, _ in cached) else _in_directories()
    found: dict[str, Path] = {}
    for name, path in known:
        found.setdefault(name, path)
    return tuple(found.values())


def _tool_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *_TOOL_DIRS])


def _make_uvm_node() -> None:
    """Makes the nvidia-uvm node, as the first CUDA program after a boot would: a container may start before that."""
    helper = shutil.which("nvidia-modprobe")
    if helper is not None and not Path(_UVM_NODE).exists():
        subprocess.run([helper, "-c=0", "-u"], capture_output=True, check=False)


log = logging.getLogger(__name__)


_SAMPLE_US_MAX = 1_000_000


class Worked:
    """Busy time per process on one device, summed from the driver's samples: each is the percentage of the time since
    the preceding sample in which the process had kernels running."""

    def __init__(self) -> None:
        self.newest_us = 0
        self.busy_ns: dict[int, int] = {}
        self._last_us: dict[int, int] = {}

    def add(self, samples: Sequence[Any]) -> None:
        """Adds samples, in any order; those already counted are skipped."""
        for sample in sorted(samples, key=lambda one: int(one.timeStamp)):
            at, pid = int(sample.timeStamp), int(sample.pid)
            last = self._last_us.get(pid)
            if last is not None and at <= last:
                continue
            # A process's first sample covers an unknown time: nothing is charged for it.
            span = min(at - last, _SAMPLE_US_MAX) if last is not None else 0
            self.busy_ns[pid] = self.busy_ns.get(pid, 0) + span * int(sample.smUtil) * 10
            self._last_us[pid] = at
            self.newest_us = max(self.newest_us, at)

    def keep(self, pids: Container[int]) -> None:
        """Forgets all other processes."""
        for known in (self.busy_ns, self._last_us):
            for pid in [pid for pid in known if pid not in pids]:
                del known[pid]


class NvmlBackend:
    """Devices as NVML shows them. Raises UnreachableError if NVML cannot be initialised, FailedError if the driver does
    not answer."""

    name = "native"

    def __init__(self) -> None:
        self._nvml = load()
        self.contexts: dict[str, ContextCost] = {}
        """The probe's measurements, by device id."""
        try:
            self.driver_version = str(self._nvml.nvmlSystemGetDriverVersion())
            count = min(self._nvml.nvmlDeviceGetCount(), MAX_DEVICES)
        except self._nvml.NVMLError as error:
            raise FailedError(f"the NVIDIA driver does not answer ({error}): see dmesg and `nvidia-smi`") from None
        found = [self._working(index) for index in range(count)]
        self._handles: list[Any] = [handle for handle in found if handle is not None]
        """NVML handles by number; None for a missed device."""
        self._links = self._linked()
        self._missed: dict[int, Device] = {}
        self._worked: dict[int, Worked] = {}
        self.absent = count - len(self._handles)

    def _working(self, index: int) -> Any:
        """Returns the device's handle; None if it does not work: a lost device must not prevent sharing the others."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            log.warning("device %d of the driver is left out: NVML says %s", index, error)
            return None
        return handle

    def _linked(self) -> dict[str, dict[str, str]]:
        """Returns the links of each working device, by id."""
        working = [(self._optional("nvmlDeviceGetUUID", handle), handle) for handle in self._handles if handle]
        return linked(self._nvml, {name: handle for name, handle in working if name is not None})

    def _optional(self, function: str, *arguments: Any) -> Any:
        """Calls an NVML function; None if this driver or device does not support it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def ids(self) -> list[str]:
        """Returns the ids of the devices that were found."""
        return [str(self._nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles if handle is not None]

    def devices(self) -> list[Device]:
        return [self.device(index) for index in range(len(self._handles))]

    def device(self, index: int) -> Device:
        if self._handles[index] is None:
            return self._missed[index]
        try:
            return self._device(index)
        except self._nvml.NVMLError as error:
            raise FailedError(f"the NVIDIA driver does not answer ({error}): see dmesg and `nvidia-smi`") from None

    def miss(self, devices: Sequence[Device]) -> None:
        # In PCI address order, as the driver numbers them, so that a missed device does not change others' numbers.
        rows: list[tuple[Device, Any]] = [(self.device(i), handle) for i, handle in enumerate(self._handles)]
        rows = sorted([*rows, *((device, None) for device in devices)], key=lambda row: row[0].pci_bus_id)
        self._handles = [handle for _, handle in rows]
        self._missed = {i: replace(device, index=i) for i, (device, handle) in enumerate(rows) if handle is None}
        self.contexts |= {
            device.id: ContextCost(device.context_bytes, device.context_bytes - device.unlisted_bytes)
            for device in devices
        }
        self.absent = max(0, self.absent - len(devices))

    def _device(self, index: int) -> Device:
        nvml, handle = self._nvml, self._handles[index]
        device_id = str(nvml.nvmlDeviceGetUUID(handle))
        minor = nvml.nvmlDeviceGetMinorNumber(handle)
        memory = self._optional("nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
        reserved = memory.reserved if memory is not None else 0
        total = memory.total if memory is not None else nvml.nvmlDeviceGetMemoryInfo(handle).total
        attributes = {"driver_version": self.driver_version}
        if (capability := self._optional("nvmlDeviceGetCudaComputeCapability", handle)) is not None:
            attributes["cuda_compute_capability"] = f"{capability[0]}.{capability[1]}"
            if (name := architecture((capability[0], capability[1]))) is not None:
                attributes["architecture"] = name
        if (cuda := self._optional("nvmlSystemGetCudaDriverVersion")) is not None:
            attributes["cuda_driver_version"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        bus_id = str(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
        if (root := pcie_root(bus_id)) is not None:
            attributes["pcie_root"] = root
        if (numa := numa_node(bus_id)) is not None:
            attributes["numa_node"] = numa
        if (domain := nvlink_domain(device_id, self._links)) is not None:
            attributes["nvlink_domain"] = domain
        node = device_node(f"/dev/nvidia{minor}")
        context = self.contexts.get(device_id, ContextCost(0, 0))
        return Device(
            id=device_id,
            index=index,
            minor=minor,
            name=str(nvml.nvmlDeviceGetName(handle)),
            pci_bus_id=bus_id,
            memory_bytes=total,
            reserved_bytes=reserved,
            context_bytes=context.size_bytes,
            unlisted_bytes=max(0, context.size_bytes - context.listed_bytes),
            attributes=attributes,
            nodes=(node,) if node is not None else (),
            links=self._links.get(device_id, {}),
        )

    def memory_used(self, index: int) -> int:
        handle = self._handles[index]
        info = self._optional("nvmlDeviceGetMemoryInfo", handle) if handle is not None else None
        return int(info.used) if info is not None else 0

    def sensors(self, index: int) -> Sensors:
        handle = self._handles[index]
        return sensors.read(self._optional, handle) if handle is not None else Sensors()

    def processes(self, index: int) -> list[DeviceProcess]:
        nvml, handle = self._nvml, self._handles[index]
        if handle is None:
            raise FailedError("the driver does not show it")
        try:
            rows = [*nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        except nvml.NVMLError as error:
            raise FailedError(f"NVML does not say who uses device {index}: {error}") from None
        rows += self._optional("nvmlDeviceGetGraphicsRunningProcesses", handle) or []
        worked = self._worked.setdefault(index, Worked())
        # newest_us: the query returns samples after it. There are none while nothing runs, and never any with MIG.
        worked.add(self._optional("nvmlDeviceGetProcessUtilization", handle, worked.newest_us) or [])
        held: dict[int, int | None] = {row.pid: row.usedGpuMemory for row in rows}
        worked.keep(held)
        return [DeviceProcess(pid, size, worked.busy_ns.get(pid, 0)) for pid, size in held.items()]

    def fault(self, index: int) -> str:
        try:
            handle = self._handles[index]
            if handle is None:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(self._missed[index].id)
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
            if self._handles[index] is None:
                self._handles[index] = handle
                self._links = self._linked()
        except self._nvml.NVMLError as error:
            return f"NVML says {error}"
        return ""

    def limit_memory(self, index: int, group: Path, most: int | None) -> None:
        limits.limit(self._nvml, self._handles[index], group, most)

    def group_memory(self, index: int, group: Path) -> int:
        return limits.used(self._nvml, self._handles[index], group)

    def inject(self) -> Node:
        _make_uvm_node()
        common = tuple(node for path in _COMMON_NODES if (node := device_node(path)) is not None)
        tools = tuple(Path(found) for name in _TOOLS if (found := shutil.which(name, path=_tool_path())))
        return Node(
            driver_files=driver_files(),
            driver_version=self.driver_version,
            driver_tools=tools,
            common_devices=common,
        )

    def close(self) -> None:
        self._optional("nvmlShutdown")
