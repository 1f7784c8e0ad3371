"""How devices spent the last second, from two answers of the node API. Pure: for `top` and the dashboard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A Device or a Grant of gpushare.api.types, as a plain dict."""

WHOLE = 1000


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Milli of one device's last second; together 1000. `guaranteed`, `borrowed`: used by grants within and beyond what
    they are guaranteed. `switching`: from one grant to the next. `idle`: the rest."""

    guaranteed: int
    borrowed: int
    switching: int
    idle: int


def device_time(device: Json, before: Json | None, grants: Sequence[Json]) -> DeviceTime:
    """`before`: an earlier reading of the same device, to compute switching; None at first. `grants`: the node's."""
    used = borrowed = 0
    for grant in grants:
        for part in grant["devices"]:
            if part["id"] == device["id"]:
                used += part["used_milli"]
                borrowed += part["borrowed_milli"]
    wall = device["wall_ns"] - before["wall_ns"] if before is not None else 0
    # A restarted daemon counts from zero: the first reading then shows no switching.
    switched = WHOLE * (device["switch_ns"] - before["switch_ns"]) // wall if before is not None and wall > 0 else 0
    # Grants and devices are read at different moments: the parts can add up to more than a second.
    used = min(used, WHOLE)
    borrowed = min(borrowed, used)
    switching = min(max(switched, 0), WHOLE - used)
    return DeviceTime(used - borrowed, borrowed, switching, WHOLE - used - switching)
