"""ClassAds of devices, in the words of condor_gpu_discovery(1), and what a job's part of them is worth. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from gpushare.errors import UsageError
from gpushare.policy.shares import DEVICE_MILLI

Json: TypeAlias = Any

SLOTS_MAX = 100

_MIB = 1 << 20


def text(devices: Iterable[Json], slots: int) -> str:
    """Devices that work and are not drained, each `slots` times as `-divide` does it: a slot has its part of the
    memory. The names are whole UUIDs, by which the daemon knows them too."""
    listed = [one for one in devices if one["health"] == "healthy" and one.get("state", "ready") == "ready"]
    names = [one["id"] for one in listed for _ in range(slots)]
    lines = [f'DetectedGPUs="{", ".join(names)}"' if names else "DetectedGPUs=0"]
    found = [_properties(one, slots) for one in listed]
    common = dict(set.intersection(*(set(one.items()) for one in found))) if found else {}
    common.pop("GlobalMemoryMb", None)  # of a slot: never in the common ad where the tool divides it
    if common:
        lines.append(f"Common=[ {_pairs(common)}]")
    for device, properties in zip(listed, found, strict=True):
        own = {name: value for name, value in properties.items() if name not in common}
        attribute = device["id"].replace("-", "_").replace("/", "_")
        lines.append(f"{attribute}=[ id={_quoted(device['id'])}; {_pairs(own)}]")
    return "\n".join(lines) + "\n"


def share(assigned: str, slots: int) -> dict[str, object]:
    """Fields of the GrantRequest of a job with these slots, by name and with commas as AssignedGPUs has them.

    Raises UsageError for slots that are no even part of several devices.
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
