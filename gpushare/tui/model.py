"""The data of `gpushare top`, from answers of the node API: rows with recent history, sorted and filtered. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, TypeAlias

from gpushare.text import links
from gpushare.text.overview import DeviceTime, device_time, guaranteed_milli, short_id, tree
from gpushare.tui import processes
from gpushare.tui.processes import Host, Process

Json: TypeAlias = Any
"""A Grant, Device or Tenant of gpushare.api as a plain dict."""

KEPT = 120
"""Number of looks kept in a history: more than the widest column shows."""
LATELY = 5
"""Number of looks that the order by GOT is of: by the last alone, rows would change places at each look."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has of a device. `got_milli`: device time since the last look; None at the first."""

    memory_bytes: int
    got_milli: int | None


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one look at the node. `at_ns`: wall time. `host`: the machine this runs on. `users`:
    names by uid. `processes`: those of this machine that were looked at, by pid. `uses`: by grant, device and pid, of
    the grants whose processes are shown and may be asked for."""

    grants: list[Json]
    devices: list[Json]
    tenants: list[Json]
    at_ns: int = 0
    host: Host | None = None
    users: Mapping[int, str] = field(default_factory=dict)
    processes: Mapping[int, Process] = field(default_factory=dict)
    uses: Mapping[tuple[str, int, int], Use] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device. `fault`: why it does not work, else empty. `note`: why it takes no new grants and what its hardware
    reports, else empty. `sensors`: as in gpushare.api.sensors."""

    id: str
    index: int
    name: str
    time: DeviceTime
    memory_used_bytes: int
    memory_bytes: int
    fault: str
    note: str
    sensors: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A grant on one of its devices. `program`, `user`: of its first process, empty where there is none. `place`: its
    pod or container. Times are milli of the last second. `entitled_milli`: what it should get now. `guaranteed_milli`:
    the guarantee that is or will be in force; `extra_milli`: what its tenant's adds to that. `lately_milli`: what it
    got over the last LATELY looks together. `history`: what it got at each look, oldest first. `pids`: of its
    processes. `may_move`: its memory can be moved to host memory. `held`: it stays there until it is resumed. `hosts`:
    the machines whose programs use it over a carrier, empty: none; `link`: how their links do, `link_class`: the worst
    class that one had. `words`: texts that the filter searches."""

    id: str
    device: int
    tenant: str
    phase: str
    program: str
    user: str
    place: str
    asked_milli: int
    limit_milli: int
    got_milli: int
    entitled_milli: int
    guaranteed_milli: int
    extra_milli: int
    borrowed_milli: int
    lent_milli: int
    waited_milli: int
    waits: int
    memory_bytes: int
    memory_away_bytes: int
    memory_limit_bytes: int
    pids: tuple[int, ...]
    notice: str
    created_ns: int
    age_seconds: float
    may_move: bool
    held: bool
    hosts: str
    link: str
    link_class: str
    lately_milli: int
    history: Sequence[int]
    words: tuple[str | int, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the row across looks."""
        return self.id, self.device

    @property
    def idle(self) -> bool:
        """Whether it neither worked nor waited to."""
        return not self.got_milli and not self.waited_milli


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process of a grant. `branch`: drawn before it. `process`: None where /proc does not show it. `use`: of the
    device of the row above it; None where it is not known."""

    pid: int
    branch: str
    process: Process | None
    use: Use | None


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant including all below it. `level`: depth in the tree. Times are milli of the node in the last second."""

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
    answers: Answers

    @property
    def host(self) -> Host | None:
        """The machine, where it was looked at."""
        return self.answers.host

    def below(self, row: GrantRow) -> list[ProcessRow]:
        """Returns the rows of a grant's processes, as a tree."""
        known, uses = self.answers.processes, self.answers.uses
        parents = {pid: known[pid].parent for pid in row.pids if pid in known}
        return [
            ProcessRow(pid, branch, known.get(pid), uses.get((row.id, row.device, pid)))
            for pid, branch in processes.tree(row.pids, parents)
        ]


class Model:
    """Keeps the data of earlier looks that rows need."""

    def __init__(self) -> None:
        self._devices: dict[str, Json] = {}
        self._history: dict[tuple[str, int], deque[int]] = {}

    def look(self, answers: Answers) -> Picture:
        """Returns the rows of the newest answers."""
        grants = [self._grant(grant, device, answers) for grant in answers.grants for device in grant["devices"]]
        self._history = {row.key: self._history[row.key] for row in grants}
        devices = [self._device(device, answers.grants) for device in answers.devices]
        self._devices = {device["id"]: device for device in answers.devices}
        return Picture(devices, grants, [_tenant(*one) for one in tree(answers.tenants)], answers)

    def _grant(self, grant: Json, device: Json, answers: Answers) -> GrantRow:
        history = self._history.setdefault((grant["id"], device["index"]), deque(maxlen=KEPT))
        history.append(device["used_milli"])
        gang = (grant.get("gang") or {}).get("id") or ""
        first = answers.processes.get(leader(grant))
        workload = grant.get("workload") or {}
        program = workload.get("program") or (first.program if first is not None else "")
        place = _place(workload)
        user = answers.users.get(grant["uid"], "")
        named = [grant["id"], grant["tenant"], grant["phase"], grant["class"], gang, grant["notice"]]
        attachments = grant.get("attachments") or []
        named += [program, user, place, *map(links.origin, attachments)]
        moves = grant["residency"]
        return GrantRow(
            id=grant["id"],
            device=device["index"],
            tenant=grant["tenant"],
            phase=grant["phase"],
            program=program,
            user=user,
            place=place or ("container" if grant["kind"] == "container" else ""),
            asked_milli=device["time_milli"],
            limit_milli=device["time_limit_milli"],
            got_milli=device["used_milli"],
            entitled_milli=device["entitled_milli"],
            guaranteed_milli=guaranteed_milli(device),
            extra_milli=device.get("extra_milli", 0),
            borrowed_milli=device["borrowed_milli"],
            lent_milli=device["lent_milli"],
            waited_milli=device["waited_milli"],
            waits=device["waits"],
            memory_bytes=max(0, device["memory_bytes"] - device["memory_hosted_bytes"]),
            memory_away_bytes=device["memory_hosted_bytes"],
            memory_limit_bytes=device["memory_limit_bytes"],
            pids=tuple(grant["processes"]),
            notice=grant["notice"],
            created_ns=grant["created_ns"],
            age_seconds=max(0, answers.at_ns - grant["created_ns"]) / 1e9,
            may_move=moves is not None,
            held=moves is not None and moves["hold"],
            hosts=links.hosts(attachments),
            link=links.brief(attachments),
            link_class=links.worst(attachments),
            lately_milli=sum(islice(reversed(history), LATELY)),
            history=history,
            words=(*named, *grant["processes"]),
        )

    def _device(self, device: Json, grants: Sequence[Json]) -> DeviceRow:
        well, sensors = device["health"] == "healthy", device.get("sensors") or {}
        notes = (
            [] if device["state"] == "ready" else [f"{device['state']}: {device['drain_reason']}".removesuffix(": ")]
        )
        if errors := sensors.get("ecc_errors"):
            notes.append(f"{errors} ECC error{'s' * (errors != 1)}")
        if "hardware" in sensors.get("slowed_by", ()):
            notes.append("slowed by its hardware")
        return DeviceRow(
            id=device["id"],
            index=device["index"],
            name=device["name"],
            time=device_time(device, self._devices.get(device["id"]), grants),
            memory_used_bytes=device["memory_used_bytes"],
            memory_bytes=device["capacity"]["memory"],
            fault="" if well else f"does not work: {device['health_reason']}",
            note=", ".join(notes),
            sensors=sensors,
        )


def _place(workload: Json) -> str:
    """Returns the pod or the container that a grant is used in; empty if it is neither or not known."""
    if pod := workload.get("pod"):
        return "/".join(filter(None, (pod["namespace"], pod["name"], pod["container"])))
    return short_id(workload.get("container", ""))


def leader(grant: Json) -> int:
    """Returns the process that stands for a grant: the first that it was given; 0 if it has none."""
    pids = grant["processes"]
    return grant["pid"] if grant["pid"] in pids else min(pids, default=0)


def _tenant(tenant: Json, level: int) -> TenantRow:
    now = tenant["now"]
    return TenantRow(
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


SortKey: TypeAlias = Callable[[GrantRow], Any]


def chosen(rows: Sequence[GrantRow], wanted: str, by: SortKey, *, down: bool) -> list[GrantRow]:
    """Returns the rows that contain every word of `wanted`, stably sorted."""
    words = wanted.casefold().split()
    found = [row for row in rows if _has(row, words)] if words else rows
    return sorted(found, key=by, reverse=down)


def _has(row: GrantRow, words: Sequence[str]) -> bool:
    text = " ".join(map(str, row.words)).casefold()
    return all(word in text for word in words)


_STEPS = "·▁▂▃▄▅▆▇█"


def history_line(history: Sequence[int], guaranteed_milli: int, width: int) -> str:
    """Draws the newest `width` looks as columns, newest at the right. A full column is the guarantee, or the most that
    was got if that is more: a small share would be invisible relative to a whole device. A point: nothing was got."""
    newest = list(history)[-width:] if width > 0 else []
    full = max(guaranteed_milli, *newest, 1) if newest else 1
    return "".join(_STEPS[-(-milli * 8 // full)] for milli in newest).rjust(width)


def widths(time: DeviceTime, width: int) -> tuple[int, int, int, int]:
    """Returns the widths of the parts of a bar of `width` characters, in the order of DeviceTime's fields. They add up
    to `width`, and each part ends within half a character of its exact position."""
    edges = [0]
    upto = 0
    for milli in (time.guaranteed, time.borrowed, time.switching):
        upto += milli
        edges.append((upto * width + 500) // 1000)
    edges.append(width)
    guaranteed, borrowed, switching, idle = (end - begin for begin, end in pairwise(edges))
    return guaranteed, borrowed, switching, idle
