"""What `gpushare top` shows, out of answers of the node API: rows, what they had lately; sorted and filtered. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from gpushare.overview import DeviceTime, device_time

Json: TypeAlias = Any
"""A Grant, Device or Tenant of gpushare.api as a plain dict."""

KEPT = 120
"""Looks that a history remembers: more than the widest column shows."""


@dataclass(frozen=True, slots=True)
class Answers:
    """One look at the node."""

    grants: list[Json]
    devices: list[Json]
    tenants: list[Json]


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """`fault`: why it does not work. `note`: why it takes no new grants. Either is empty where that is not so."""

    id: str
    index: int
    name: str
    time: DeviceTime
    memory_used_bytes: int
    memory_bytes: int
    fault: str
    note: str


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A grant on one of its devices. Times are milli of the last second. `entitled_milli`: what it should get now.
    `guaranteed_milli`: what it is served with, or will be. `history`: what it got at each look, oldest
    first. `words`: what it may be found by."""

    id: str
    device: int
    tenant: str
    phase: str
    asked_milli: int
    limit_milli: int
    got_milli: int
    entitled_milli: int
    guaranteed_milli: int
    borrowed_milli: int
    lent_milli: int
    waited_milli: int
    waits: int
    memory_bytes: int
    memory_limit_bytes: int
    processes: int
    notice: str
    created_ns: int
    history: Sequence[int]
    words: tuple[str | int, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Tells it from all others, at every look."""
        return self.id, self.device


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant and all below it, `level` steps below the top. Times are milli of the node in the last second."""

    name: str
    level: int
    state: str
    guarantee_milli: int
    entitled_milli: int
    used_milli: int
    borrowed_milli: int
    lent_milli: int
    waited_milli: int
    grants: int


@dataclass(frozen=True, slots=True)
class Picture:
    """All rows of one look. `grants` are in the daemon's order, `tenants` each below its parent."""

    devices: list[DeviceRow]
    grants: list[GrantRow]
    tenants: list[TenantRow]


class Model:
    """Remembers of earlier looks what a row needs of them."""

    def __init__(self) -> None:
        self._devices: dict[str, Json] = {}
        self._history: dict[tuple[str, int], deque[int]] = {}

    def look(self, answers: Answers) -> Picture:
        """The rows of these answers, the newest so far."""
        grants = [self._grant(grant, device) for grant in answers.grants for device in grant["devices"]]
        self._history = {row.key: self._history[row.key] for row in grants}
        devices = [self._device(device, answers.grants) for device in answers.devices]
        self._devices = {device["id"]: device for device in answers.devices}
        return Picture(devices, grants, list(_tree(answers.tenants, None, 0)))

    def _grant(self, grant: Json, device: Json) -> GrantRow:
        history = self._history.setdefault((grant["id"], device["index"]), deque(maxlen=KEPT))
        history.append(device["used_milli"])
        served = device["served_limit_milli"]
        gang = (grant.get("gang") or {}).get("id") or ""
        named = (grant["id"], grant["tenant"], grant["phase"], grant["class"], gang, grant["notice"])
        return GrantRow(
            id=grant["id"],
            device=device["index"],
            tenant=grant["tenant"],
            phase=grant["phase"],
            asked_milli=device["time_milli"],
            limit_milli=device["time_limit_milli"],
            got_milli=device["used_milli"],
            entitled_milli=device["entitled_milli"],
            guaranteed_milli=device["served_milli"] if served else device["guaranteed_milli"],
            borrowed_milli=device["borrowed_milli"],
            lent_milli=device["lent_milli"],
            waited_milli=device["waited_milli"],
            waits=device["waits"],
            memory_bytes=device["memory_bytes"],
            memory_limit_bytes=device["memory_limit_bytes"],
            processes=len(grant["processes"]),
            notice=grant["notice"],
            created_ns=grant["created_ns"],
            history=history,
            words=(*named, *grant["processes"]),
        )

    def _device(self, device: Json, grants: Sequence[Json]) -> DeviceRow:
        well, open_ = device["health"] == "healthy", device["state"] == "ready"
        return DeviceRow(
            id=device["id"],
            index=device["index"],
            name=device["name"],
            time=device_time(device, self._devices.get(device["id"]), grants),
            memory_used_bytes=device["memory_used_bytes"],
            memory_bytes=device["capacity"]["memory"],
            fault="" if well else f"does not work: {device['health_reason']}",
            note="" if open_ else f"{device['state']}: {device['drain_reason']}".removesuffix(": "),
        )


def _tree(tenants: Sequence[Json], parent: str | None, level: int) -> Iterable[TenantRow]:
    for tenant in tenants:
        if tenant["parent"] == parent:
            now = tenant["now"]
            yield TenantRow(
                name=tenant["name"],
                level=level,
                state=now["state"].replace("_", " "),
                guarantee_milli=tenant["guarantee"]["time"],
                entitled_milli=now["entitlement_milli"],
                used_milli=now["used_milli"],
                borrowed_milli=now["borrowed_milli"],
                lent_milli=now["lent_milli"],
                waited_milli=now["waited_milli"],
                grants=tenant["grants"],
            )
            yield from _tree(tenants, tenant["name"], level + 1)


SortKey: TypeAlias = Callable[[GrantRow], Any]


def chosen(rows: Sequence[GrantRow], wanted: str, by: SortKey, *, down: bool) -> list[GrantRow]:
    """Those that have every word of `wanted` somewhere, sorted; rows that are the same in that stay in their order."""
    words = wanted.casefold().split()
    found = [row for row in rows if _has(row, words)] if words else rows
    return sorted(found, key=by, reverse=down)


def _has(row: GrantRow, words: Sequence[str]) -> bool:
    text = " ".join(map(str, row.words)).casefold()
    return all(word in text for word in words)


_STEPS = "·▁▂▃▄▅▆▇█"


def history_line(history: Sequence[int], guaranteed_milli: int, width: int) -> str:
    """The newest `width` looks as columns, the newest at the right. A full one is what it is guaranteed, or the most
    that it got in that time: a small share would show nothing against a whole device. A point: it got nothing."""
    newest = list(history)[-width:] if width > 0 else []
    full = max(guaranteed_milli, *newest, 1) if newest else 1
    return "".join(_STEPS[-(-milli * 8 // full)] for milli in newest).rjust(width)


def widths(time: DeviceTime, width: int) -> tuple[int, int, int, int]:
    """Of a bar of `width` characters, in the order of the fields of DeviceTime. Together they are `width`, and each
    ends within half a character of where it should."""
    edges = [0]
    upto = 0
    for milli in (time.guaranteed, time.borrowed, time.switching):
        upto += milli
        edges.append((upto * width + 500) // 1000)
    edges.append(width)
    guaranteed, borrowed, switching, idle = (end - begin for begin, end in pairwise(edges))
    return guaranteed, borrowed, switching, idle
