"""Devices as the daemon sees them, whether NVML (nvml.py) or the simulator (simulated.py) found them."""

import functools
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from gpushare.errors import UsageError
from gpushare.inject.node import DeviceNode, Node
from gpushare.node.sensors import Sensors
from gpushare.policy.grants import selector
from gpushare.text.units import parse_size

MAX_DEVICES = 16  # GS_ARBITER_MAX_DEVICES

_SPEC = re.compile(r"([0-9]{1,3})x(.+)", re.ASCII)


class ContextCost(NamedTuple):
    """Device memory of a process's first context. `listed_bytes`: the part that the driver counts for the process."""

    size_bytes: int
    listed_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """`reserved_bytes`: kept by the driver for itself, never granted. `links`: distance to other devices by id, in the
    terms of gpushare.policy.grants.distance. `unlisted_bytes`: the part of a context that the driver counts for no
    process."""

    id: str
    index: int
    minor: int
    name: str
    pci_bus_id: str
    memory_bytes: int
    reserved_bytes: int = 0
    context_bytes: int = 0
    attributes: dict[str, str] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    unlisted_bytes: int = 0

    @property
    def uuid(self) -> bytes:
        """The id as 16 bytes."""
        return _uuid_bytes(self.id)


def facts(device: Device) -> dict[str, selector.Value]:
    """Returns the values that a selector compares."""
    return selector.facts(
        device.attributes,
        memory=device.memory_bytes,
        index=device.index,
        minor=device.minor,
        uuid=device.id,
        product=device.name,
        pci_bus_id=device.pci_bus_id,
    )


# The lowest compute capability of each architecture (https://developer.nvidia.com/cuda-gpus).
_ARCHITECTURES = {
    (12, 0): "Blackwell",
    (10, 0): "Blackwell",
    (9, 0): "Hopper",
    (8, 9): "Ada",
    (8, 0): "Ampere",
    (7, 5): "Turing",
    (7, 0): "Volta",
    (6, 0): "Pascal",
    (5, 0): "Maxwell",
}


def architecture(capability: tuple[int, int]) -> str | None:
    """Returns NVIDIA's architecture name for this compute capability; None if it is older or newer than the table."""
    found = (name for first, name in _ARCHITECTURES.items() if first <= capability < (13, 0))
    return next(found, None)


@functools.lru_cache(maxsize=64)
def _uuid_bytes(device: str) -> bytes:
    return uuid.UUID(device.removeprefix("GPU-").removeprefix("MIG-")).bytes


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A living process as the driver counts it on one device. `pid`: on the host. `memory_bytes`: None if the driver
    does not report it. `busy_ns`: device time; only differences are meaningful."""

    pid: int
    memory_bytes: int | None
    busy_ns: int


class Backend(Protocol):
    """A source of devices.

    `absent`: number of devices that the driver counts but that did not work at the start and that the ledger does not
    remember. Their time stays promised, and is missing until the daemon starts with them.
    """

    name: str
    driver_version: str
    absent: int

    def devices(self) -> list[Device]:
        """Returns all devices by number, found and missed ones."""
        ...

    def device(self, index: int) -> Device:
        """Returns the device's current state; a missed one may have come back. Raises FailedError if it does not
        answer."""
        ...

    def miss(self, devices: Sequence[Device]) -> None:
        """Adds devices that belong here but were not found: each has a number, and a `fault` until it returns."""
        ...

    def memory_used(self, index: int) -> int:
        """Returns the bytes in use on the device, by all processes; 0 if the device does not report it."""
        ...

    def sensors(self, index: int) -> Sensors:
        """Returns what the driver measures of the device; nothing if it does not answer."""
        ...

    def processes(self, index: int) -> list[DeviceProcess]:
        """Returns the processes that use the device, as the driver lists them. Raises FailedError if it does not
        answer."""
        ...

    def fault(self, index: int) -> str:
        """Returns why the device cannot be used; empty if it works."""
        ...

    def limit_memory(self, index: int, group: Path, most: int | None) -> None:
        """Has the driver limit the device memory of the processes in this v2 cgroup and below to `most` bytes; None: no
        limit. Raises FailedError if it cannot."""
        ...

    def group_memory(self, index: int, group: Path) -> int:
        """Returns the bytes of the device's memory that the processes of a limited cgroup hold, as the driver counts
        them. Raises FailedError."""
        ...

    def inject(self) -> Node:
        """Returns the parts of the driver and its devices that go into containers."""
        ...

    def close(self) -> None:
        """Releases the driver or the simulator."""
        ...


def parse_simulate(text: str) -> list[int]:
    """Parses `2x16GiB` into the memory of each device in bytes. Raises UsageError."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--simulate {text!r} is not COUNTxMEMORY: write for example 2x16GiB")
    count, size = int(match[1]), parse_size(match[2])
    if not 1 <= count <= MAX_DEVICES:
        raise UsageError(f"--simulate {text!r} is out of range: give 1 to {MAX_DEVICES} devices")
    return [size] * count
