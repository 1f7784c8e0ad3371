"""Device descriptions and statistics for Nomad, and which grants must end. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from gpushare.adapters import common
from gpushare.adapters.deviceplugin import slots
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.errors import UsageError

Json: TypeAlias = Any

KEYS = "nomad/slots/"
"""Prefix of the key of every grant of a task."""
VENDOR, TYPE = "gpushare", "slot"

_MIB = 1 << 20
_ATTRIBUTES = ("product", "architecture", "compute_capability", "driver_version", "cuda_version", "numa_node")


class Config(msgspec.Struct, forbid_unknown_fields=True):
    """The plugin's block in the agent's configuration. `idle_seconds`: how long a grant is kept after its task's last
    process has ended, since tasks are restarted in it. `start_seconds`: how long it is kept for the first process."""

    slots: int = 10
    socket: str = ""
    tenant: str = "default"
    user: str = "nobody"
    idle_seconds: int = 60
    start_seconds: int = 900


SCHEMA = {
    name: "number" if isinstance(value, int) else "string" for name, value in msgspec.structs.asdict(Config()).items()
}
"""Nomad's type names of Config's fields."""


def config(given: bytes) -> Config:
    """Decodes Nomad's msgpack, in which settings missing from the agent's configuration are null. Raises UsageError."""
    try:
        settings = msgspec.msgpack.decode(given) if given else {}
        found = msgspec.convert({name: value for name, value in (settings or {}).items() if value is not None}, Config)
    except (msgspec.MsgspecError, AttributeError, UnicodeError) as error:
        raise UsageError(f"the configuration of plugin gpushare makes no sense: {error}") from None
    if not 1 <= found.slots <= slots.SLOTS_MAX:
        raise UsageError(f"slots = {found.slots} in the configuration of plugin gpushare: give 1 to {slots.SLOTS_MAX}")
    return found


def fingerprint(devices: Iterable[Json], grants: Iterable[Json], sizes: Sizes) -> Json:
    """Returns one group per device: Nomad takes all of a task's slots from one group, hence from one device."""
    devices = list(devices)
    shown = {one.name: one.healthy for one in slots.slots(devices, grants, sizes, KEYS)}
    return {"groups": [_group(device, shown, sizes) for device in devices]}


def _group(device: Json, shown: Mapping[str, bool], sizes: Sizes) -> Json:
    names = [slots.slot_name(device["id"], number) for number in range(sizes.count)]
    why = device["health_reason"] or "the device is drained, or other grants of the node have its room"
    place = {"locality": {"pci_bus_id": device["pci_bus_id"]}}
    attributes = {name: {"string": device["attributes"][name]} for name in _ATTRIBUTES if name in device["attributes"]}
    memory = {"memory": device["capacity"]["memory"], "slot_memory": sizes.of(device, 1)[0]}
    return {
        "vendor": VENDOR,
        "type": TYPE,
        "name": device["id"],
        "devices": [
            {"id": name, "healthy": shown[name], "reason": "" if shown[name] else why, **place} for name in names
        ],
        "attributes": {
            **attributes,
            "model": {"string": device["name"]},
            **{name: {"int": value // _MIB, "unit": "MiB"} for name, value in memory.items()},
        },
    }


def stats(devices: Iterable[Json], grants: Iterable[Json], now_ns: int) -> Json:
    """Returns by slot the memory, time and state of its grant; the same for all slots of a task."""
    when = {"seconds": now_ns // 1_000_000_000, "nanos": now_ns % 1_000_000_000}
    found: dict[str, Json] = {device["id"]: {} for device in devices}
    for grant in grants:
        if not slots.is_slots(grant, KEYS):
            continue
        for part in grant["devices"]:
            used, limit = part["memory_bytes"], part["memory_limit_bytes"]
            memory = {
                "numerator": used,
                "denominator": limit,
                "unit": "B",
                "description": "memory used of its share",
            }
            time = {"numerator": part["busy_ns"], "unit": "ns", "description": "device time used"}
            state = {"string": common.state(grant), "description": "asleep: its memory is in host memory for now"}
            attributes = {"memory": memory, "time": time, "state": state}
            one = {"summary": memory, "stats": {"attributes": attributes}, "timestamp": when}
            found[part["id"]].update(dict.fromkeys(slots.names(grant), one))
    groups = [{"vendor": VENDOR, "type": TYPE, "name": name, "instances": each} for name, each in found.items()]
    return {"groups": groups}


@dataclass(slots=True)
class Seen:
    """`ran`: whether a process of the task was ever seen. `last_ns`: when it last was, or when the grant first was."""

    ran: bool
    last_ns: int


class Watch:
    """Decides which grants must end, from repeated scans for their tasks' processes."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    def look(self, grants: Iterable[Json], used: Collection[str], given: Config, now_ns: int) -> list[str]:
        """Returns the ids of grants that must end. `used`: ids of grants that have processes now. `now_ns`: of a
        monotonic clock."""
        out, seen = [], {}
        for grant in grants:
            known = self._seen.get(grant["id"]) or Seen(False, now_ns)
            if grant["id"] in used:
                known = Seen(True, now_ns)
            elif not known.ran and any(part["memory_peak_bytes"] for part in grant["devices"]):
                known = Seen(True, now_ns)  # it ran and ended between two scans
            seen[grant["id"]] = known
            patience = given.idle_seconds if known.ran else given.start_seconds
            if grant["id"] not in used and now_ns - known.last_ns >= patience * 1_000_000_000:
                out.append(grant["id"])
        self._seen = seen
        return out
