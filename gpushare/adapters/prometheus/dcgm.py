"""The daemon's numbers under the metric names of NVIDIA's dcgm-exporter, for dashboards made for those. Pure.

DCGM samples; these values are differences of the daemon's books between two scrapes. A device's series are split: one
for each pod that has a part of it, one for the rest; they add up to the device.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = Any

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MIB = 1 << 20
_POD = ("container", "namespace", "pod")
_WALL = tuple(f"gpushare_device_{what}_seconds_total" for what in ("leased", "idle", "switch"))
_BUSY, _MEMORY = "gpushare_grant_busy_seconds_total", "gpushare_grant_memory_bytes"
_HOSTED = "gpushare_memory_hosted_bytes"
_LIMIT, _USED = "gpushare_grant_memory_limit_bytes", "gpushare_device_memory_used_bytes"
_NAMES = "|".join((*_WALL, _BUSY, _MEMORY, _HOSTED, _LIMIT, _USED))
_SAMPLE = re.compile(rf'({_NAMES})\{{((?:\w+="(?:[^"\\]|\\.)*",?)*)\}} (\S+)')

_SENSORS = (
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", "temperature_celsius", 1),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", "power_milliwatts", 1000),
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", "sm_clock_mhz", 1),
    ("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", "memory_clock_mhz", 1),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", "memory_utilization_percent", 1),
)
"""Of the whole device, and of no pod: name, text, the node API's field, and what that is divided by."""

Who: TypeAlias = tuple[str, ...]
"""Values of a pod's labels, in the order of `_POD`, escaped; empty strings for what belongs to no pod."""
_NOBODY: Who = ("", "", "")


@dataclass(slots=True)
class _Device:
    """One device's numbers, in seconds and bytes. `busy`: by grant."""

    wall: float = 0.0
    used: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    memory: dict[Who, float] = field(default_factory=dict)
    limit: dict[Who, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Reading:
    devices: dict[str, _Device] = field(default_factory=dict)
    pods: dict[str, Who] = field(default_factory=dict)


def _read(metrics: str) -> _Reading:
    found = _Reading()
    for name, inside, value in _SAMPLE.findall(metrics):
        labels = dict(_LABEL.findall(inside))
        device = found.devices.setdefault(labels["gpu_uuid"], _Device())
        number = float(value)
        if name in _WALL:
            device.wall += number
        elif name == _USED:
            device.used = number
        elif name in (_BUSY, _MEMORY, _LIMIT, _HOSTED):
            who = found.pods.setdefault(labels["grant"], tuple(labels.get(label, "") for label in _POD))
            if name == _BUSY:
                device.busy[labels["grant"]] = number
            elif who != _NOBODY:
                sums = device.limit if name == _LIMIT else device.memory
                # Memory that a grant has in host memory is held, but not on the device.
                sums[who] = sums.get(who, 0.0) + (-number if name == _HOSTED else number)
    return found


def _active(now: _Device, before: _Device | None, pods: Mapping[str, Who]) -> dict[Who, float] | None:
    """Returns the fraction of the time since `before` in which each pod's work ran on the device. None if unknown: at
    the first reading, and after a restart of the daemon."""
    if before is None or now.wall <= before.wall:
        return None
    out: dict[Who, float] = dict.fromkeys([_NOBODY, *now.memory], 0.0)
    for grant, busy in now.busy.items():
        who = pods[grant]
        grown = max(0.0, busy - before.busy.get(grant, 0.0))  # a grant that was not there has begun since
        if grown or who in out:
            out[who] = out.get(who, 0.0) + grown
    return {who: min(busy / (now.wall - before.wall), 1.0) for who, busy in out.items()}


def _memory(device: _Device, capacity: int) -> Iterator[tuple[Who, float, float]]:
    """Yields for each pod, and last for the rest, the bytes used and the bytes it can still have."""
    used, free = device.used, capacity - device.used
    for who, memory in ((who, max(0.0, held)) for who, held in device.memory.items()):
        left = max(0.0, device.limit.get(who, 0.0) - memory)
        yield who, memory, left
        used, free = used - memory, free - left
    yield _NOBODY, max(0.0, used), max(0.0, free)


class Names:
    """Renders the metrics, and keeps the last reading for differences. `host`: value of the label Hostname."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._last = _Reading()

    def text(self, metrics: str, devices: Sequence[Json]) -> str:
        """Returns what dcgm-exporter would report, from the daemon's `metrics` and the node API's `devices`."""
        now, before = _read(metrics), self._last
        self._last = now
        util: list[str] = []
        active: list[str] = []
        used: list[str] = []
        free: list[str] = []
        for device in devices:
            found = now.devices.get(device["id"], _Device())
            label = self._label(device)
            parts = _active(found, before.devices.get(device["id"]), now.pods) or {}
            for who, part in parts.items():
                util.append(f"{{{label}{_who(who)}}} {part * 100:.10g}")
                active.append(f"{{{label}{_who(who)}}} {part:.10g}")
            for who, memory, left in _memory(found, device["capacity"]["memory"]):
                used.append(f"{{{label}{_who(who)}}} {memory / _MIB:.10g}")
                free.append(f"{{{label}{_who(who)}}} {left / _MIB:.10g}")
        known = [(self._label(device), device.get("sensors", {})) for device in devices]
        return "".join(
            [
                *(
                    _family(
                        name,
                        text,
                        [f"{{{label}}} {has[one] / scale:.10g}" for label, has in known if has.get(one) is not None],
                    )
                    for name, text, one, scale in _SENSORS
                ),
                _family("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", util),
                _family("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", free),
                _family("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", used),
                _family("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", active),
            ]
        )

    def _label(self, device: Json) -> str:
        labels = {
            "gpu": device["index"],
            "UUID": device["id"],
            "pci_bus_id": device["pci_bus_id"],
            "device": f"nvidia{device['minor']}",
            "modelName": device["name"],
            "Hostname": self._host,
        }
        return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _who(who: Who) -> str:
    if who == _NOBODY:
        return ""
    return "".join(f',{name}="{value}"' for name, value in zip(_POD, who, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _family(name: str, text: str, samples: Sequence[str]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge", *(name + sample for sample in samples)]
    return "\n".join(lines) + "\n" if samples else ""
