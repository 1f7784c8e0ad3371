"""The life of a grant as a pure state machine: an event and a time in, the next state and instructions out.

    prepared -> reserved -> bound -> active -> released
        |           |         |        |
        +-----------+---------+--------+--> released or failed; before it is active also expired (its time to live ran
                                            out)

A grant of a gang that has parts on other nodes begins as prepared: it holds all that was asked for, and nothing can be
bound to it before the gang is committed (policy/grants/preparation.py).

A grant with `keep` outlives its workloads: from active it goes back to bound when the last of them has ended, and takes
more of them, concurrently or in turn, until somebody releases it.

The daemon carries instructions out in order and feeds what happens back as events. Events that arrive late, from the
kernel or a hook, find an ended grant and change nothing.
"""

import enum
from dataclasses import dataclass, replace

from gpushare.errors import RefusedError


class Phase(enum.StrEnum):
    """The phase of a grant; the values are those of the ledger and of the node API."""

    PREPARED = "prepared"
    RESERVED = "reserved"
    BOUND = "bound"
    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    FAILED = "failed"

    @property
    def unused(self) -> bool:
        """Whether nothing was bound to it yet."""
        return self in (Phase.PREPARED, Phase.RESERVED)

    @property
    def ended(self) -> bool:
        """Whether no event changes it any more."""
        return self in (Phase.RELEASED, Phase.EXPIRED, Phase.FAILED)


class Kind(enum.StrEnum):
    """What a grant is bound to."""

    PROCESS = "process"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Life:
    """All that decides what comes next.

    `ttl_ns`: how long it may stay reserved, and then bound, None: for ever. `expires_ns`: wall time at which it ends if
    nothing happens, None: never. `pid`: the host's, of its first process. `reason`: why it ended. `keep`: it ends only
    when it is released.
    """

    grant: str
    phase: Phase
    ttl_ns: int | None
    expires_ns: int | None
    kind: Kind | None = None
    pid: int | None = None
    reason: str = ""
    keep: bool = False


# Events. `now_ns`: wall time.


@dataclass(frozen=True, slots=True)
class Committed:
    """Its gang has all its parts."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Its gang was not committed in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A workload was chosen for it: its container's configuration is made, or the process that will exec asked."""

    now_ns: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Started:
    """Its first process is known by its host pid. None: any of a user's may join."""

    now_ns: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class Emptied:
    """The last process is gone (pidfd or empty cgroup)."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Undone:
    """What was to be its first workload has failed to start, and nothing else may have run in it."""

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


@dataclass(frozen=True, slots=True)
class Rebooted:
    """The machine was restarted: no process and no run-time file is left."""

    now_ns: int


Event = Committed | Lapsed | Bound | Started | Emptied | Undone | Release | Break | Clock | Rebooted


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


def begin(now_ns: int, grant: str, ttl_ns: int | None, *, keep: bool = False) -> tuple[Life, tuple[Instruction, ...]]:
    """The life of a grant that admission has just accepted, and its first instructions. `now_ns`: wall time. `ttl_ns`,
    `keep`: as in Life."""
    expires = _after(now_ns, ttl_ns)
    life = Life(grant, Phase.RESERVED, ttl_ns, expires, keep=keep)
    return life, (Record(Phase.RESERVED), Prepare(), WakeAt(expires))


def prepare(
    until_ns: int, grant: str, ttl_ns: int | None, *, keep: bool = False
) -> tuple[Life, tuple[Instruction, ...]]:
    """As `begin`, for a grant of a gang, which ends it unless the gang is committed by `until_ns`. Its own time to live
    begins at the commit."""
    life = Life(grant, Phase.PREPARED, ttl_ns, until_ns, keep=keep)
    return life, (Record(Phase.PREPARED), Prepare())


def _after(now_ns: int, ttl_ns: int | None) -> int | None:
    return now_ns + ttl_ns if ttl_ns is not None else None


def advance(life: Life, event: Event) -> tuple[Life, tuple[Instruction, ...]]:
    """The state after the event, and what to do. Raises RefusedError for an event that this phase does not allow."""
    match event:
        case Committed():
            return _commit(life, event)
        case Lapsed():
            return _end(life, Phase.EXPIRED, event.reason, kill=False) if life.phase is Phase.PREPARED else (life, ())
        case Bound():
            return _bind(life, event)
        case Started():
            return _start(life, event)
        case Emptied():
            return _empty(life, event)
        case Undone():
            return _undo(life, event)
        case Release():
            return _end(life, Phase.RELEASED, event.reason, kill=True)
        case Break():
            return _end(life, Phase.FAILED, event.reason, kill=True)
        case Clock():
            if life.expires_ns is None or event.now_ns < life.expires_ns:
                return life, ()
            assert life.ttl_ns is not None
            verb = "bound" if life.phase is Phase.RESERVED else "started"
            return _end(life, Phase.EXPIRED, f"not {verb} within {life.ttl_ns // 1_000_000_000} s", kill=False)
        case Rebooted():
            return _reboot(life, event)


def _commit(life: Life, event: Committed) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is not Phase.PREPARED:
        return life, ()
    expires = _after(event.now_ns, life.ttl_ns)
    return replace(life, phase=Phase.RESERVED, expires_ns=expires), (Record(Phase.RESERVED), WakeAt(expires))


def _bind(life: Life, event: Bound) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is Phase.BOUND and life.kind is event.kind and life.pid is None:
        return life, ()  # an engine that repeats its call
    if life.keep and life.phase in (Phase.BOUND, Phase.ACTIVE):
        if life.kind is not event.kind:
            raise RefusedError(f"grant {life.grant} is for a {life.kind}, not for a {event.kind}: create another")
        return life, ()
    if life.phase is Phase.PREPARED:
        raise RefusedError(f"grant {life.grant} is prepared, and its gang is not committed: commit that first")
    if life.phase is not Phase.RESERVED:
        raise RefusedError(f"grant {life.grant} is {life.phase} and cannot be bound: create another")
    # The time to live starts again: an engine that dies between bind and start must not hold the share for ever.
    expires = _after(event.now_ns, life.ttl_ns)
    bound = replace(life, phase=Phase.BOUND, kind=event.kind, expires_ns=expires)
    return bound, (Record(Phase.BOUND), Serve(), WakeAt(expires))


def _start(life: Life, event: Started) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is Phase.BOUND:
        active = replace(life, phase=Phase.ACTIVE, pid=event.pid, expires_ns=None)
        return active, (Record(Phase.ACTIVE), WakeAt(None))
    if life.phase is Phase.ACTIVE:
        return life, ()  # one more process of the same grant
    raise RefusedError(f"grant {life.grant} is {life.phase}: no process can start in it")


def _empty(life: Life, event: Emptied) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is not Phase.ACTIVE:
        return life, ()
    if not life.keep:
        return _end(life, Phase.RELEASED, "its processes have ended", kill=False)
    expires = _after(event.now_ns, life.ttl_ns)
    idle = replace(life, phase=Phase.BOUND, pid=None, expires_ns=expires)
    return idle, (Record(Phase.BOUND), WakeAt(expires))


def _undo(life: Life, event: Undone) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase not in (Phase.BOUND, Phase.ACTIVE):
        return life, ()
    expires = _after(event.now_ns, life.ttl_ns)
    anew = replace(life, phase=Phase.RESERVED, kind=None, pid=None, expires_ns=expires)
    kill = (EndProcesses(),) if life.phase is Phase.ACTIVE else ()
    return anew, (*kill, StopServing(), Remove(), Record(Phase.RESERVED), Prepare(), WakeAt(expires))


def _reboot(life: Life, event: Rebooted) -> tuple[Life, tuple[Instruction, ...]]:
    if life.phase is Phase.PREPARED:
        return life, (Remove(), Record(Phase.PREPARED), Prepare())
    if not life.keep:
        return _end(life, Phase.FAILED, "the machine was restarted", kill=False)
    if life.phase.ended:
        return life, ()
    expires = _after(event.now_ns, life.ttl_ns)
    anew = replace(life, phase=Phase.RESERVED, kind=None, pid=None, expires_ns=expires)
    return anew, (Remove(), Record(Phase.RESERVED), Prepare(), WakeAt(expires))


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
