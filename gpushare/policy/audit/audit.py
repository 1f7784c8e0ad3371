"""Compares what the driver says of a device with the grants' books. No clock, no I/O: times and facts are arguments."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Act(Enum):
    """What is done to a process with a finding."""

    TELL = "tell"
    FREEZE = "freeze"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Rules:
    """The administrator's choices. `evader`, `outside`: by kind of finding. `grace_ns`: how long a process that is to
    be killed stays frozen first."""

    evader: Act = Act.FREEZE
    outside: Act = Act.TELL
    grace_ns: int = 30_000_000_000


@dataclass(frozen=True, slots=True)
class Program:
    """A process that runs one program: `started` tells it from others with its pid, `image` from what it runs after an
    exec."""

    pid: int
    started: int
    image: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process that a driver lists on a device, and that has joined no grant. `grant`: the one that it belongs to by
    its cgroup; empty: none."""

    program: Program
    device: int
    grant: str
    memory_bytes: int | None = field(compare=False)
    busy_ns: int = field(compare=False)


def confirmed(first: Iterable[Stranger], then: Iterable[Stranger], joined: Collection[int]) -> list[Stranger]:
    """Those of `first` that a second look finds again, the same program in the same grant; it began after it was known
    that they had not joined. `joined`: current pids.

    One look is not enough: a process may end, join or execute another program between the driver's answer and the look
    at our own books.
    """
    again = {(one.program, one.grant) for one in then}
    found: dict[Program, Stranger] = {}
    for one in first:
        if one.program.pid not in joined and (one.program, one.grant) in again:
            found.setdefault(one.program, one)
    return list(found.values())


def act(stranger: Stranger, rules: Rules, age_ns: int) -> Act:
    """What to do to it, `age_ns` after it was found."""
    wanted = rules.evader if stranger.grant else rules.outside
    if wanted is Act.KILL and age_ns < rules.grace_ns:
        return Act.FREEZE
    return wanted


def outcome(
    program: Program,
    grant: str,
    *,
    grants: Collection[str],
    joined: Mapping[int, int],
    alive: bool,
    listed: bool,
) -> str:
    """How a finding ended; empty: it lasts. `joined`: start times of processes that have joined, by pid. `alive`: the
    process still exists. `listed`: the driver still lists it on the device, or does not say."""
    if grant and grant not in grants:
        return "released"
    if joined.get(program.pid) == program.started:
        return "joined"
    if not alive:
        return "ended"
    return "" if listed else "left"


EXCESS_NS = 1_000_000_000
"""How long a grant has to hold too much, in each look: books and driver are not read at one instant, and a process that
ends has its memory for a moment longer than its slot."""
SLACK_BYTES = 256 << 20
"""How far each process may take the grant over its limit: code that the driver loads once all is taken is not limited
by gpushare. PyTorch had 170 MiB in all that was in no book, on an H200."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one grant has on one device. `limit_bytes`: what it may hold. `processes`: how many of its processes have
    some there. `largest`: the process that has most."""

    grant: str
    device: int
    held_bytes: int
    limit_bytes: int
    processes: int
    largest: Program


def exceeds(held: Held) -> bool:
    """Whether the driver counts more for the grant than it may hold, by more than SLACK_BYTES for each process."""
    return held.held_bytes > held.limit_bytes + SLACK_BYTES * held.processes


class Excesses:
    """Which grants hold too much, and since when. The interposer refuses what goes beyond the limit: one that holds
    more has bypassed the interposer, or falsified its books."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], int] = {}

    def follow(self, rows: Iterable[Held], now_ns: int) -> list[Held]:
        """Those that have held too much in every call for EXCESS_NS. `rows`: of all current grants and devices."""
        over = {(row.grant, row.device): row for row in rows if exceeds(row)}
        self._since = {key: self._since.get(key, now_ns) for key in over}
        return [row for key, row in over.items() if now_ns - self._since[key] >= EXCESS_NS]


UNOWNED_BYTES = 256 << 20
"""How much a driver may use itself beyond what it reserves."""


class Unowned:
    """Devices whose memory in use is more than what their processes have: shared memory that outlives its owner is
    charged to nobody."""

    def __init__(self, after_ns: int) -> None:
        """`after_ns`: how long a device has to hold it."""
        self._after_ns = after_ns
        self._since: dict[int, int] = {}

    def follow(self, extra: Mapping[int, int], now_ns: int) -> dict[int, int]:
        """Unowned bytes by device, for devices with more than UNOWNED_BYTES in every call for so long. `extra`: in use
        on each device beyond what it reserves and its processes have."""
        over = {device: size for device, size in extra.items() if size > UNOWNED_BYTES}
        self._since = {device: self._since.get(device, now_ns) for device in over}
        return {device: size for device, size in over.items() if now_ns - self._since[device] >= self._after_ns}
