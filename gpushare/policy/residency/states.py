"""The states of a grant's movable memory, what happens to it, and what is to be done: the words of
gpushare.policy.residency.residency."""

import enum
from dataclasses import dataclass


class Where(enum.StrEnum):
    """A grant's state; the values are those of the ledger and of the node API."""

    RESIDENT = "resident"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"


class By(enum.StrEnum):
    """Why it is to leave: a person wants it, an owner reclaims what it has on loan, others want room while its programs
    do nothing, or its turn is over."""

    PERSON = "person"
    RUNG = "reclaim"
    WANT = "want"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Residency:
    """`epoch`: of the page's word that goes with this state. `reserved_bytes`: of the host pool. `hosted_bytes`: what
    is counted as gone from the device. `hold`: only a person brings it back. `back`: it is to come back as soon as
    there is room. `ahead`: while its programs do nothing, its memory is copied to the host ahead of any move. `why`:
    why it did not leave when that was last wanted. `waits`: what it waits for to be back. `deadline_ns`: monotonic, of
    the move in progress. `woken`: a call brings it back, and `stays_ns`: until when, monotonic, it stays for that.
    `told_ns`: monotonic, when its processes were told to move it out. `leaving`: while suspending, all of it is on its
    way out: others may begin to come in where it was; `early`: it comes in where others were leaving. `since_ns`: wall
    time of the last change of `where`, which whoever carries the steps out writes; 0: never."""

    where: Where = Where.RESIDENT
    epoch: int = 0
    by: By = By.PERSON
    hold: bool = False
    back: bool = False
    ahead: bool = False
    reserved_bytes: int = 0
    hosted_bytes: int = 0
    deadline_ns: int | None = None
    woken: bool = False
    stays_ns: int | None = None
    told_ns: int | None = None
    leaving: bool = False
    early: bool = False
    why: str = ""
    waits: str = ""
    since_ns: int = 0


RESIDENT = Residency()


@dataclass(frozen=True, slots=True)
class Process:
    """What a process reports; nothing of it is trusted. `epoch`: the last that it carried out, or could not: then
    `failed` says why. `trying`: it goes on trying by itself. `wants`: a call of its program waits for its memory.
    `leaves`: what can be moved is on its way out, and only the driver can stop that."""

    pid: int
    epoch: int
    failed: str = ""
    trying: bool = False
    movable_bytes: int = 0
    hosted_bytes: int = 0
    wants: bool = False
    leaves: bool = False


# Events. Times are monotonic.


@dataclass(frozen=True, slots=True)
class Suspend:
    """Its memory is to leave. `movable_bytes`: how much of it can. `free_bytes`: what of its room is free even so, if
    that is reason enough. `fixed`: what cannot be moved, in words."""

    now_ns: int
    by: By
    hold: bool
    movable_bytes: int
    fixed: str = ""
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CopyAhead:
    """Its programs have done nothing for long: what can be moved of its memory is to be copied to the host. With 0
    bytes: no more, and the host memory is needed elsewhere."""

    movable_bytes: int


@dataclass(frozen=True, slots=True)
class Resume:
    """A person wants its memory back on the device."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Room:
    """The answer to AskRoom. `why`: why there is none; empty: there is, and it is the grant's from now on. `early`: not
    all of it is free yet, others are leaving it."""

    now_ns: int
    why: str = ""
    early: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """What all of its living processes report now: one has said that it changed, one has ended, or time has passed.
    `free_bytes`: how much of its limit nothing of it takes on the device. `leave_ns`: how long its memory takes at most
    to leave, once it does."""

    now_ns: int
    processes: tuple[Process, ...]
    free_bytes: int = 0
    leave_ns: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """Others whose room it was coming in to have not left after all. `movable_bytes`: how much of its memory can go
    back."""

    now_ns: int
    movable_bytes: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The daemon was started. `epoch`, `hosted`, `ahead`: of the page's word. `returned`: processes have come back by
    themselves, to room that was left free for them."""

    now_ns: int
    epoch: int
    hosted: bool
    returned: bool
    ahead: bool = False


Event = Suspend | CopyAhead | Resume | Room | Looked | Taken | Restarted


# Instructions, to be carried out in the order given.


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve host memory; where that fails, the event has not happened."""

    size: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give all of the reserved host memory back."""


@dataclass(frozen=True, slots=True)
class Record:
    """Write the new state to the ledger."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the page's word with the state's epoch. `hosted`: memory is to leave the device; else to be there, and with
    `ahead` in host memory too."""

    hosted: bool
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """Count so many bytes of the grant as gone from its device."""

    hosted_bytes: int


@dataclass(frozen=True, slots=True)
class AskRoom:
    """Look for room on the device, now and whenever there may be some, until it is found: Room is the answer."""


class News(enum.Enum):
    """What has become of a move."""

    LEAVING = enum.auto()
    """It is on its way out, and will be away soon."""
    MOVED = enum.auto()
    FAILED = enum.auto()
    RETURNED = enum.auto()
    CALLED_BACK = enum.auto()
    """What had moved before it failed is back."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell whoever waits for it."""

    news: News


Instruction = Reserve | Release | Record | Write | Count | AskRoom | Tell
Steps = tuple[Instruction, ...]
