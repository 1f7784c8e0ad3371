"""Simulated devices, as the simulator describes them. Like a driver, it omits devices that are lost at the start."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpushare.errors import FailedError
from gpushare.inject.node import DeviceNode, Node
from gpushare.node import standins
from gpushare.node.devices import Device, DeviceProcess
from gpushare.node.sensors import Sensors
from gpushare.node.simulator import NO_LIMIT, SimDevice, Simulator

# SIM_CAPABILITY_MAJOR, SIM_CLOCK_KHZ and SIM_MEMORY_CLOCK_KHZ of native/sim/model/card.h.
_ATTRIBUTES = {"cuda_compute_capability": "8.0", "architecture": "Ampere"}
_SM_CLOCK_MHZ, _MEMORY_CLOCK_MHZ = 1410, 1215


def _level(one: SimDevice, other: SimDevice) -> str:
    # Must agree with the simulated NVML (native/sim/nvml/topology.c).
    if one.nvlink and one.nvlink == other.nvlink:
        return "nvlink"
    if one.pcie and one.pcie == other.pcie:
        return "single"
    return "node" if one.numa == other.numa else "system"


class SimulatedBackend:
    """Devices of a running simulator, whose socket is in `directory`."""

    name = "simulated"
    driver_version = "simulated"

    def __init__(self, simulator: Simulator, directory: Path) -> None:
        self._simulator = simulator
        self._directory = directory
        self._viewer: Simulator | None = None
        """A connection for `processes` only, so that a slow answer does not delay other requests."""
        self._times: dict[int, tuple[int, int]] = {}
        """Busy and wall time of each device when its sensors were read last."""
        self.nodes = self._nodes(range(len(simulator.devices)))
        everything = [self._device(number) for number in range(len(simulator.devices))]
        self._devices = [device for device in everything if not self._fault(device)]
        self.absent = len(everything) - len(self._devices)

    def _nodes(self, numbers: range) -> tuple[DeviceNode, ...]:
        """Returns the nodes of these devices, in order, and makes missing ones; empty if the simulator has no nodes."""
        if self._simulator.first_node is None:
            return ()
        major, first = self._simulator.first_node
        try:
            return standins.make((major, first + numbers.start), len(numbers))
        except OSError as error:
            raise FailedError(
                f"the nodes of the simulator in {self._directory} are gone and cannot be made ({error.strerror}):"
                " end its processes, then start again"
            ) from None

    def _device(self, number: int) -> Device:
        device = self._simulator.devices[number]
        return Device(
            id=device.uuid,
            index=number,
            minor=number,
            name=device.name,
            pci_bus_id=device.pci_bus_id,
            memory_bytes=device.memory_bytes,
            context_bytes=self._simulator.context_bytes,
            nodes=self.nodes[number : number + 1],
            attributes=_ATTRIBUTES | {"driver_version": self.driver_version} | self._place(device),
            links={other.uuid: _level(device, other) for other in self._simulator.devices if other is not device},
        )

    def _place(self, device: SimDevice) -> dict[str, str]:
        found = {"pcie_root": f"pci0000:{device.pcie - 1:02x}"} if device.pcie else {}
        if device.numa:
            found["numa_node"] = str(device.numa - 1)
        linked = [other.uuid for other in self._simulator.devices if other.nvlink == device.nvlink]
        return found | ({"nvlink_domain": linked[0]} if device.nvlink and len(linked) > 1 else {})

    def devices(self) -> list[Device]:
        return [self.device(index) for index in range(len(self._devices))]

    def device(self, index: int) -> Device:
        return replace(self._devices[index], index=index)

    def miss(self, devices: Sequence[Device]) -> None:
        self._devices = sorted([*self._devices, *devices], key=lambda device: device.pci_bus_id)
        self.absent = max(0, self.absent - len(devices))

    def memory_used(self, index: int) -> int:
        number = self._simulator.number(self._devices[index].id)
        return self._simulator.memory_used(number) if number is not None else 0

    def sensors(self, index: int) -> Sensors:
        number = self._simulator.number(self._devices[index].id)
        if number is None:
            return Sensors()
        try:
            busy_ns, wall_ns = self._simulator.times(number)
            limit = self._simulator.power_limit(number)
        except FailedError:
            return Sensors()
        busy_before, wall_before = self._times.get(number, (busy_ns, wall_ns))
        self._times[number] = busy_ns, wall_ns
        wall = wall_ns - wall_before
        return Sensors(
            power_limit_milliwatts=limit,
            sm_clock_mhz=_SM_CLOCK_MHZ,
            sm_clock_max_mhz=_SM_CLOCK_MHZ,
            memory_clock_mhz=_MEMORY_CLOCK_MHZ,
            utilization_percent=min(100, round(100 * (busy_ns - busy_before) / wall)) if wall > 0 else None,
            memory_utilization_percent=0,
        )

    def processes(self, index: int) -> list[DeviceProcess]:
        number = self._simulator.number(self._devices[index].id)
        if self._viewer is None:
            self._viewer = Simulator.connect(self._directory)
        if number is None or self._viewer is None:
            raise FailedError("the simulator does not have it, or has ended")
        try:
            return [DeviceProcess(pid, held, busy) for pid, busy, held in self._viewer.processes(number)]
        except FailedError:
            self._viewer.close()  # a late answer must not be taken for the next request's
            self._viewer = None
            raise

    def fault(self, index: int) -> str:
        return self._fault(self._devices[index])

    def _fault(self, device: Device) -> str:
        number = self._simulator.number(device.id)
        if number is None:
            return "the simulator does not have it"
        try:
            self._simulator.clients(number)
        except FailedError as error:
            if self._simulator.spawned is not None:
                self._simulator.spawned.poll()  # it may be a child of ours that ended
            return str(error).partition(": restart")[0]
        try:
            # Another daemon whose nodes happen to have the same numbers may have removed this one.
            self._nodes(range(number, number + 1))
        except FailedError as error:
            return str(error)
        return ""

    def limit_memory(self, index: int, group: Path, most: int | None) -> None:
        self._simulator.limit(self._number(index), group, NO_LIMIT if most is None else most)

    def group_memory(self, index: int, group: Path) -> int:
        return self._simulator.used(self._number(index), group)

    def _number(self, index: int) -> int:
        number = self._simulator.number(self._devices[index].id)
        if number is None:
            raise FailedError("the simulator does not have the device")
        return number

    def inject(self) -> Node:
        return Node(sim_dir=self._directory)

    def close(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
        self._simulator.close()
