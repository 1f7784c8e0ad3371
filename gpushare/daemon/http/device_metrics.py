"""Metrics of devices: what they were used for, their memory and health, and what the driver measures of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from gpushare.api import sensors
from gpushare.api.sensors import Sensors
from gpushare.api.types import Device
from gpushare.daemon.http.families import Sample, family


def labels(index: int, device_id: str) -> dict[str, str]:
    """Those that each sample of a device has. `gpu`: its number on the node, for people."""
    return {"gpu": str(index), "gpu_uuid": device_id}


_TIMES = (
    ("leased", "Time leased to grants since the daemon started", "leased_ns"),
    ("idle", "Time in which nobody had a lease", "idle_ns"),
    ("switch", "Time between leases", "switch_ns"),
    ("idle_with_waiters", "Idle time while a grant waited: must stay near 0", "idle_with_waiters_ns"),
)
_GAUGES: tuple[tuple[str, str, Callable[[Device], float]], ...] = (
    ("memory_bytes", "Device memory there is", lambda device: device.capacity.memory),
    ("memory_used_bytes", "Device memory in use by anybody", lambda device: device.memory_used_bytes),
    (
        "memory_asleep_bytes",
        "Room that suspended grants have left and nobody has borrowed",
        lambda device: device.memory_asleep_bytes,
    ),
    (
        "memory_idle_bytes",
        "Memory of grants that lend it and do nothing: moved away when a borrower asks",
        lambda device: device.memory_idle_bytes,
    ),
    ("health", "1 when the device works, 0 when it does not", lambda device: int(device.health == "healthy")),
)
_SENSORS: tuple[tuple[str, str, str, float], ...] = (
    ("temperature_celsius", "Temperature of the chip", "temperature_celsius", 1),
    ("power_watts", "Power that it draws", "power_milliwatts", 1e3),
    ("power_limit_watts", "Most power that it may draw", "power_limit_milliwatts", 1e3),
    ("sm_clock_hertz", "Clock of its processors", "sm_clock_mhz", 1e-6),
    ("memory_clock_hertz", "Clock of its memory", "memory_clock_mhz", 1e-6),
    ("utilization_ratio", "Part of the driver's sample period in which any kernel ran", "utilization_percent", 100),
    ("memory_utilization_ratio", "The same for reads and writes of its memory", "memory_utilization_percent", 100),
)
"""Metric, text, field of Sensors, and what its values are divided by. Absent where the driver does not say."""
ECC = "Uncorrected errors of its memory since the driver was loaded"


def families(devices: Sequence[Device], busy_ns: Mapping[str, int]) -> list[str]:
    """The lines of all these. `devices`: as the node API shows them. `busy_ns`: metered work, by device."""

    def each(value: Callable[[Device], float]) -> list[Sample]:
        return [(labels(device.index, device.id), value(device)) for device in devices]

    def measured(value: Callable[[Sensors], float | None]) -> list[Sample]:
        known = ((device, value(device.sensors)) for device in devices)
        return [(labels(device.index, device.id), found) for device, found in known if found is not None]

    lines = family(
        "gpushare_device_info",
        "gauge",
        "1; what the device is",
        [
            (
                {
                    **labels(device.index, device.id),
                    "model": device.name,
                    "pci_bus_id": device.pci_bus_id,
                    "driver": device.attributes.get("driver_version", ""),
                },
                1,
            )
            for device in devices
        ],
    )
    for name, text, field in _TIMES:
        samples = each(lambda device, field=field: getattr(device, field) / 1e9)  # type: ignore[misc]
        lines += family(f"gpushare_device_{name}_seconds_total", "counter", text, samples)
    text = "Metered work of all grants since the daemon started"
    busy = each(lambda device: busy_ns.get(device.id, 0) / 1e9)
    lines += family("gpushare_device_busy_seconds_total", "counter", text, busy)
    for name, text, value in _GAUGES:
        lines += family(f"gpushare_device_{name}", "gauge", text, each(value))
    for name, text, field, scale in _SENSORS:
        lines += family(f"gpushare_device_{name}", "gauge", text, measured(_scaled(field, scale)))
    lines += family("gpushare_device_ecc_errors_total", "counter", ECC, measured(lambda found: found.ecc_errors))
    slowed = [
        ({**labels(device.index, device.id), "reason": reason}, int(reason in device.sensors.slowed_by))
        for device in devices
        for reason in get_args(sensors.Slowed)
    ]
    return lines + family("gpushare_device_slowed", "gauge", "1 while that keeps its clocks down", slowed)


def _scaled(field: str, scale: float) -> Callable[[Sensors], float | None]:
    def value(found: Sensors) -> float | None:
        number = getattr(found, field)
        return None if number is None else number / scale

    return value
