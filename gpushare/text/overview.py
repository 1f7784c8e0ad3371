"""What answers of the node API add up to, for the command line, `top` and the dashboard. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from gpushare.text.units import format_time

Json: TypeAlias = Any
"""A wire type of gpushare.api, as a plain dict."""

WHOLE = 1000


def tree(tenants: Sequence[Json], parent: str | None = None, level: int = 0) -> Iterator[tuple[Json, int]]:
    """Each tenant with its depth, below its parent."""
    for tenant in tenants:
        if tenant["parent"] == parent:
            yield tenant, level
            yield from tree(tenants, tenant["name"], level + 1)


def without_directory(command: str) -> str:
    """A command line without its program's directory, which is long while the name says enough."""
    program, space, words = command.partition(" ")
    return f"{program.rpartition('/')[2] or program}{space}{words}"


def short_id(container: str) -> str:
    """A container's id as engines show it, 12 of its 64 hex digits; a name as it is."""
    return container[:12] if len(container) >= 32 else container


def guaranteed_milli(device: Json) -> int:
    """Time of a device that a grant has asked for and was granted. `device`: a GrantDevice."""
    return int(device["guaranteed_milli"])


def extra_milli(device: Json) -> int:
    """What its tenant's guarantee adds to that, since no grant has asked for it."""
    return int(device["extra_milli"])


def guarantee(milli: int, extra: int) -> str:
    """What was asked for and granted, and what the tenant's guarantee adds: "guaranteed 5% and 95% extra"."""
    return f"guaranteed {format_time(milli)}{f' and {format_time(extra)} extra' if extra else ''}"


class DeviceTime(NamedTuple):
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
