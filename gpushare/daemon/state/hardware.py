"""The devices that this run of the daemon has, and what grants get of them: nodes, numbers, words of their pages."""

from collections.abc import Sequence
from dataclasses import replace

from gpushare.binding.page_words import DeviceLimits
from gpushare.daemon.state.records import GrantRecord
from gpushare.enforce import exclusive
from gpushare.inject.node import DeviceNode, Granted, Node
from gpushare.node.devices import Device
from gpushare.policy.grants.admission import Place
from gpushare.text.units import PAGE

_MINOR_MAX = (1 << 20) - 1  # include/linux/kdev_t.h: MINORBITS


class Hardware:
    """By id."""

    def __init__(self, node: Node, devices: Sequence[Device]) -> None:
        self._node = node
        self._by_id = {device.id: device for device in devices}

    def all(self) -> list[Granted]:
        """All devices with their nodes."""
        return [Granted(device.id, tuple(device.nodes)) for device in self._by_id.values()]

    def knows(self, record: GrantRecord) -> bool:
        """Whether this run of the daemon has all of the grant's devices."""
        return all(place.device in self._by_id for place in record.places)

    def renew(self, device: Device) -> None:
        """A device has come back, possibly with other device nodes."""
        self._by_id[device.id] = device

    def renumber(self, record: GrantRecord) -> None:
        """Updates the devices' numbers, which are valid for one run of the daemon: a device may be missing or back."""
        record.places = [replace(place, index=self._by_id[place.device].index) for place in record.places]

    def granted(self, record: GrantRecord) -> list[Granted]:
        """The grant's devices with their nodes, in the order in which the workload sees them."""
        return [Granted(place.device, tuple(self._by_id[place.device].nodes)) for place in record.places]

    def limits(self, place: Place, guarantee_milli: int, limit_milli: int) -> DeviceLimits:
        """The limits page's words for one place. Shares in milli of the device."""
        device = self._by_id[place.device]
        return DeviceLimits(
            device.uuid,
            place.memory_bytes,
            -(-device.context_bytes // PAGE) * PAGE,  # so that a program can have all that a context leaves
            guarantee_milli,
            limit_milli,
            instance=device.id.startswith("MIG-"),
        )

    def capacity(self, record: GrantRecord) -> list[int]:
        """The memory of each of the grant's devices, in bytes."""
        return [self._by_id[place.device].memory_bytes for place in record.places]

    def numa_nodes(self, record: GrantRecord) -> list[int]:
        """The NUMA node of each of the grant's devices; -1 where it is not known."""
        found = (self._by_id[place.device].attributes.get("numa_node", "-1") for place in record.places)
        return [int(node) for node in found]

    def numbers(self, record: GrantRecord) -> tuple[dict[int, set[int]], set[tuple[int, int]]]:
        """Numbers of device nodes: by major, the present minors of all devices of this node; and the grant's (major,
        minor). Empty where devices have no nodes."""
        guarded: dict[int, set[int]] = {}
        for node in self._nodes_of_all():
            guarded.setdefault(node.major, set()).add(node.minor)
        granted = [*self._node.common_devices, *(node for device in self.granted(record) for node in device.nodes)]
        return guarded, {(node.major, node.minor) for node in granted}

    def _nodes_of_all(self) -> list[DeviceNode]:
        return [*self._node.common_devices, *(node for device in self._by_id.values() for node in device.nodes)]

    def hidden(self, record: GrantRecord) -> list[str]:
        """Paths of the nodes of devices that are not the grant's."""
        granted = {place.device for place in record.places}
        return [node.path for device in self._by_id.values() if device.id not in granted for node in device.nodes]

    def ranges(self) -> list[exclusive.Range]:
        """The devices' nodes, as ranges of minors. A real driver's majors are wholly its own, and may get more nodes
        while the daemon runs; the major of stand-ins is shared with other simulators."""
        if self._node.simulated:
            return sorted({(node.major, node.minor, node.minor) for node in self._nodes_of_all()})
        return [(major, 0, _MINOR_MAX) for major in sorted({node.major for node in self._nodes_of_all()})]
