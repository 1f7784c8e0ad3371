"""Simulated devices: what the simulator says they are."""

from pathlib import Path

from gpushare.errors import FailedError
from gpushare.inject.node import Node
from gpushare.node.devices import Device
from gpushare.node.simulator import Simulator


class SimulatedBackend:
    name = "simulated"
    driver_version = "simulated"
    absent = 0

    def __init__(self, simulator: Simulator, directory: Path) -> None:
        self._simulator = simulator
        self._directory = directory

    def devices(self) -> list[Device]:
        return [
            Device(
                id=device.uuid,
                index=index,
                minor=index,
                name=device.name,
                pci_bus_id=device.pci_bus_id,
                memory_bytes=device.memory_bytes,
                context_bytes=self._simulator.context_bytes,
                attributes={"driver_version": self.driver_version},
            )
            for index, device in enumerate(self._simulator.devices)
        ]

    def memory_used(self, index: int) -> int:
        return int(self._simulator.stats()["devices"][index]["bytes"])

    def fault(self, index: int) -> str:
        try:
            self._simulator.clients(index)
        except FailedError as error:
            if self._simulator.spawned is not None:
                self._simulator.spawned.poll()  # it may be a child of ours that ended
            return str(error).partition(": restart")[0]
        return ""

    def inject(self) -> Node:
        return Node(sim_dir=self._directory)

    def close(self) -> None:
        self._simulator.close()
