"""The life of a grant as a pure state machine: an event and a time in, the next state and instructions out.

    reserved -> bound -> active <-> suspended -> released
        |         |        |
        +---------+--------+--> expired (its time to bind ran out) or failed

The daemon carries instructions out in order and feeds what happens back as events; replaying the events of the ledger
gives the same states. Events that arrive late, from the kernel or a hook, find an ended grant and change nothing.
"""

import enum
from dataclasses import dataclass, replace

from gpushare.errors import RefusedError


class Phase(enum.StrEnum):
    RESERVED = "reserved"
    BOUND = "bound"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RELEASED = "released"
    EXPIRED = "expired"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (Phase.RELEASED, Phase.EXPIRED, Phase.FAILED)


class Kind(enum.StrEnum):
    PROCESS = "process"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Life:
    """Where a grant stands. `expires_ns`: when it ends if nothing happens, None: never."""

    grant: str
    phase: Phase
    ttl_ns: int
    expires_ns: int | None
    kind: Kind | None = None
    pid: int | None = None
    reason: str = ""


# Events.


@dataclass(frozen=True, slots=True)
class Reserved:
    """Admission said yes."""

    now_ns: int
    grant: str
    ttl_ns: int


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
class Suspend:
    now_ns: int


@dataclass(frozen=True, slots=True)
class Resume:
    now_ns: int


@dataclass(frozen=True, slots=True)
class Emptied:
    """The last process is gone (pidfd or empty cgroup; poststop says it sooner)."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Release:
    """Somebody asked for its end."""

    now_ns: int
    reason: str = "released by request"


@dataclass(frozen=True, slots=True)
class Break:
    """It cannot go on: preparation failed, its page was truncated, its device is lost."""

    now_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Clock:
    now_ns: int


Event = Reserved | Bound | Started | Suspend | Resume | Emptied | Release | Break | Clock


# Instructions, to be carried out in the order given.


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the grant's directory with pages and socket, and its CDI spec."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Give it to the arbiter."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Take a pidfd (and the cgroup) of this process."""

    pid: int


@dataclass(frozen=True, slots=True)
class Park:
    """Take its leases away and keep its memory."""


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
    reason: str = ""


Instruction = Prepare | Serve | Watch | Park | StopServing | EndProcesses | Remove | WakeAt | Record


def begin(event: Reserved) -> tuple[Life, tuple[Instruction, ...]]:
    expires = event.now_ns + event.ttl_ns
    life = Life(event.grant, Phase.RESERVED, event.ttl_ns, expires)
    return life, (Record(Phase.RESERVED), Prepare(), WakeAt(expires))


def advance(life: Life, event: Event) -> tuple[Life, tuple[Instruction, ...]]:
    """Raises RefusedError for a request that this phase does not allow; the state is then as before."""
    match event:
        case Bound():
            return _bind(life, event)
        case Started():
            return _start(life, event)
        case Suspend() | Resume():
            return _pause(life, suspend=isinstance(event, Suspend))
        case Emptied():
            if life.phase in (Phase.ACTIVE, Phase.SUSPENDED):
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
        case Reserved():
            raise RefusedError(f"grant {life.grant} is reserved already")


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
        return active, (Watch(event.pid), Record(Phase.ACTIVE), WakeAt(None))
    if life.phase is Phase.ACTIVE:
        return life, (Watch(event.pid),)  # one more process of the same grant
    raise RefusedError(f"grant {life.grant} is {life.phase}: no process can start in it")


def _pause(life: Life, *, suspend: bool) -> tuple[Life, tuple[Instruction, ...]]:
    source, target = (Phase.ACTIVE, Phase.SUSPENDED) if suspend else (Phase.SUSPENDED, Phase.ACTIVE)
    if life.phase is target:
        return life, ()
    if life.phase is not source:
        raise RefusedError(f"grant {life.grant} is {life.phase} and cannot be {'suspended' if suspend else 'resumed'}")
    step: Instruction = Park() if suspend else Serve()
    return replace(life, phase=target), (step, Record(target))


def _end(life: Life, phase: Phase, reason: str, *, kill: bool) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase.ended:
        return life, ()
    steps: list[Instruction] = []
    if kill and life.phase in (Phase.ACTIVE, Phase.SUSPENDED):
        steps.append(EndProcesses())
    if life.phase in (Phase.BOUND, Phase.ACTIVE, Phase.SUSPENDED):
        steps.append(StopServing())
    steps += [Remove(), Record(phase, reason), WakeAt(None)]
    return replace(life, phase=phase, reason=reason, expires_ns=None), tuple(steps)
