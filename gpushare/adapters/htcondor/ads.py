"""ClassAds of devices, in the format of condor_gpu_discovery(1), and the share that a job's slots are worth. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from gpushare.errors import UsageError
from gpushare.policy.quota.shares import DEVICE_MILLI

Json: TypeAlias = Any

SLOTS_MAX = 100

_MIB = 1 << 20


def text(devices: Iterable[Json], slots: int) -> str:
    """Returns the ads of devices that work and are not drained, each listed `slots` times as by `-divide`: a slot has
    its part of the memory. The names are full UUIDs, the daemon's device ids."""
    listed = [one for one in devices if one["health"] == "healthy" and one.get("state", "ready") == "ready"]
    names = [one["id"] for one in listed for _ in range(slots)]
    lines = [f'DetectedGPUs="{", ".join(names)}"' if names else "DetectedGPUs=0"]
    found = [_properties(one, slots) for one in listed]
    common = dict(set.intersection(*(set(one.items()) for one in found))) if found else {}
    common.pop("GlobalMemoryMb", None)  # per slot: the tool never puts it into the common ad when it divides
    if common:
        lines.append(f"Common=[ {_pairs(common)}]")
    for device, properties in zip(listed, found, strict=True):
        own = {name: value for name, value in properties.items() if name not in common}
        attribute = device["id"].replace("-", "_").replace("/", "_")
        lines.append(f"{attribute}=[ id={_quoted(device['id'])}; {_pairs(own)}]")
    return "\n".join(lines) + "\n"


def share(assigned: str, slots: int) -> dict[str, object]:
    """Returns the GrantRequest fields for a job's slots. `assigned`: their names, comma-separated as in AssignedGPUs.

    Raises UsageError unless the job has equally many slots of each of its devices.
    """
    counts = Counter(name for name in (part.strip() for part in assigned.split(",")) if name)
    if not counts:
        raise UsageError("the job was assigned no device: give its AssignedGPUs")
    numbers = set(counts.values())
    if len(numbers) > 1:
        raise UsageError(f"the job has {assigned}: give it equally many slots of each device, or of one device")
    (number,) = numbers
    if number > slots:
        raise UsageError(f"the job has {number} slots of a device that is cut into {slots}: give --slots as HTCondor")
    return {
        "memory": f"{100 * number / slots:.6g}%",
        "time": DEVICE_MILLI * number // slots,
        "devices": len(counts),
        "device": ",".join(counts),
    }


def _properties(device: Json, slots: int) -> dict[str, str]:
    attributes: Mapping[str, str] = device["attributes"]
    memory = device["capacity"]["memory"] // _MIB
    found = {
        "DeviceMemoryMb": str(memory),
        "DeviceName": _quoted(device["name"]),
        "DevicePciBusId": _quoted(device["pci_bus_id"]),
        "DeviceUuid": _quoted(device["id"].removeprefix("GPU-")),
        "GlobalMemoryMb": str(memory // slots),
        "GpushareTimeMilli": str(DEVICE_MILLI // slots),
    }
    for ad, names in _VERSIONS.items():
        value = next((attributes[name] for name in names if name in attributes), "")
        if value.replace(".", "", 1).isdecimal():
            found[ad] = value
    return found


_VERSIONS = {
    "Capability": ("compute_capability", "cuda_compute_capability"),
    "DriverVersion": ("cuda_version", "cuda_driver_version"),  # the tool means the driver's CUDA
}


def _pairs(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}; " for name, value in sorted(properties.items()))


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
