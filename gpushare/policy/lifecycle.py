"""The life of a grant as a pure state machine: an event and a time in, the next state and instructions out.

    reserved -> bound -> active -> released
        |         |        |
        +---------+--------+--> released or failed; before it is active also expired (its time to live ran out)

The daemon carries instructions out in order and feeds what happens back as events. Events that arrive late, from the
kernel or a hook, find an ended grant and change nothing.
"""

import enum
from dataclasses import dataclass, replace

from gpushare.errors import RefusedError


class Phase(enum.StrEnum):
    """Where a grant stands; the values are those of the ledger and of the node API."""

    RESERVED = "reserved"
    BOUND = "bound"
    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """No event changes it any more."""
        return self in (Phase.RELEASED, Phase.EXPIRED, Phase.FAILED)


class Kind(enum.StrEnum):
    """What a grant is bound to."""

    PROCESS = "process"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Life:
    """All that decides what comes next.

    `ttl_ns`: how long it may stay reserved, and then bound. `expires_ns`: wall time at which it ends if nothing
    happens, None: never. `pid`: the host's, of its first process. `reason`: why it ended.
    """

    grant: str
    phase: Phase
    ttl_ns: int
    expires_ns: int | None
    kind: Kind | None = None
    pid: int | None = None
    reason: str = ""


# Events. `now_ns`: wall time.


@dataclass(frozen=True, slots=True)
class Bound:
    """A workload was chosen for it: its container's configuration is made, or the process that will exec asked."""

    now_ns: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Started:
    """Its first process is known by its host pid."""

    now_ns: int
    pid: int


@dataclass(frozen=True, slots=True)
class Emptied:
    """The last process is gone (pidfd or empty cgroup; poststop says it sooner)."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Release:
    """Somebody asked for its end."""

    now_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Break:
    """It cannot go on: preparation failed, its page was truncated, its device is lost."""

    now_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of WakeAt has come."""

    now_ns: int


Event = Bound | Started | Emptied | Release | Break | Clock


# Instructions, to be carried out in the order given.


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the grant's directory with pages, and its CDI spec."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Let its processes join, and give it to the arbiter."""


@dataclass(frozen=True, slots=True)
class StopServing:
    """Take it from the arbiter; its last numbers go to the ledger."""


@dataclass(frozen=True, slots=True)
class EndProcesses:
    """End what still runs in it, by pidfd or cgroup."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove its CDI spec, socket, pages and directory."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Clock at this time, in place of any time set before; None: never."""

    t_ns: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """Write the new phase to the ledger and tell the watchers."""

    phase: Phase


Instruction = Prepare | Serve | StopServing | EndProcesses | Remove | WakeAt | Record


def begin(now_ns: int, grant: str, ttl_ns: int) -> tuple[Life, tuple[Instruction, ...]]:
    """The life of a grant that admission has just accepted, and its first instructions. `now_ns`: wall time."""
    expires = now_ns + ttl_ns
    life = Life(grant, Phase.RESERVED, ttl_ns, expires)
    return life, (Record(Phase.RESERVED), Prepare(), WakeAt(expires))


def advance(life: Life, event: Event) -> tuple[Life, tuple[Instruction, ...]]:
    """The state after the event, and what to do. Raises RefusedError for an event that this phase does not allow."""
    match event:
        case Bound():
            return _bind(life, event)
        case Started():
            return _start(life, event)
        case Emptied():
            if life.phase is Phase.ACTIVE:
                return _end(life, Phase.RELEASED, "its processes have ended", kill=False)
            return life, ()
        case Release():
            return _end(life, Phase.RELEASED, event.reason, kill=True)
        case Break():
            return _end(life, Phase.FAILED, event.reason, kill=True)
        case Clock():
            if life.expires_ns is None or event.now_ns < life.expires_ns:
                return life, ()
            verb = "bound" if life.phase is Phase.RESERVED else "started"
            return _end(life, Phase.EXPIRED, f"not {verb} within {life.ttl_ns // 1_000_000_000} s", kill=False)


def _bind(life: Life, event: Bound) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is Phase.BOUND and life.kind is event.kind and life.pid is None:
        return life, ()  # an engine that repeats its call
    if life.phase is not Phase.RESERVED:
        raise RefusedError(f"grant {life.grant} is {life.phase} and cannot be bound: create another")
    # The time to live starts again: an engine that dies between bind and start must not hold the share for ever.
    expires = event.now_ns + life.ttl_ns
    bound = replace(life, phase=Phase.BOUND, kind=event.kind, expires_ns=expires)
    return bound, (Record(Phase.BOUND), Serve(), WakeAt(expires))


def _start(life: Life, event: Started) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is Phase.BOUND:
        active = replace(life, phase=Phase.ACTIVE, pid=event.pid, expires_ns=None)
        return active, (Record(Phase.ACTIVE), WakeAt(None))
    if life.phase is Phase.ACTIVE:
        return life, ()  # one more process of the same grant
    raise RefusedError(f"grant {life.grant} is {life.phase}: no process can start in it")


def _end(life: Life, phase: Phase, reason: str, *, kill: bool) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase.ended:
        return life, ()
    steps: list[Instruction] = []
    if kill and life.phase is Phase.ACTIVE:
        steps.append(EndProcesses())
    if life.phase in (Phase.BOUND, Phase.ACTIVE):
        steps.append(StopServing())
    steps += [Remove(), Record(phase), WakeAt(None)]
    return replace(life, phase=phase, reason=reason, expires_ns=None), tuple(steps)
