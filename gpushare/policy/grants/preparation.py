"""The life of a gang's part on this node, as a pure state machine: a state and a time in, the next state out.

    prepared -> committed -> over
        |                     ^
        +--> aborted, expired-+

A cluster's scheduler prepares a part on each node, then commits all of them, or aborts them. A prepared part holds its
capacity and runs nothing. A part that has ended is remembered for a while: a late, repeated or reordered message finds
what became of it and creates nothing.
"""

import enum
from dataclasses import dataclass, replace

from gpushare.errors import GoneError, RefusedError

SECOND_NS = 1_000_000_000
REMEMBERED_NS = 3600 * SECOND_NS
"""How long an ended part is remembered: longer than any scheduler repeats a message."""


class Stage(enum.StrEnum):
    """The stage of a part; the values are those of the ledger and of the node API."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on both clocks, ns. `boot`: id of the machine's boot; `since_boot_ns` counts from there and cannot be
    set."""

    boot: str
    since_boot_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Deadline:
    """`span_ns` after a moment. The span holds while the machine runs, whatever is done to the wall clock, and is no
    longer than that after a restart."""

    boot: str
    since_boot_ns: int
    wall_ns: int
    span_ns: int

    def left_ns(self, now: Moment) -> int:
        """Time left; 0: the deadline has come."""
        left = self.since_boot_ns - now.since_boot_ns if now.boot == self.boot else self.wall_ns - now.wall_ns
        return min(self.span_ns, max(0, left))


def deadline(now: Moment, span_ns: int) -> Deadline:
    """The deadline `span_ns` from now."""
    return Deadline(now.boot, now.since_boot_ns + span_ns, now.wall_ns + span_ns, span_ns)


@dataclass(frozen=True, slots=True)
class Preparation:
    """`until`: when a prepared part expires, or until when an ended one is remembered; None: a committed one with
    grants that live. `reason`: why it was aborted or expired."""

    stage: Stage
    until: Deadline | None
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether it holds nothing any more, and is only remembered."""
        return self.stage in (Stage.ABORTED, Stage.EXPIRED) or (
            self.stage is Stage.COMMITTED and self.until is not None
        )


def prepared(now: Moment, ttl_ns: int) -> Preparation:
    """A part that admission has just accepted."""
    return Preparation(Stage.PREPARED, deadline(now, ttl_ns))


def never(now: Moment, reason: str) -> Preparation:
    """A part that is aborted before anybody prepared it: a later request to prepare it is refused."""
    return _ended(Stage.ABORTED, now, reason)


def at(life: Preparation, now: Moment) -> Preparation:
    """The part at this moment: expired where it was not committed in time."""
    if life.stage is not Stage.PREPARED or life.until is None or life.until.left_ns(now):
        return life
    return _ended(Stage.EXPIRED, now, f"not committed within {life.until.span_ns // SECOND_NS} s")


def resumed(life: Preparation, now: Moment) -> Preparation:
    """The part for a daemon that takes it over: what is left is counted by this boot's clock from now on."""
    life = at(life, now)
    if life.until is None or life.until.boot == now.boot:
        return life
    left = life.until.left_ns(now)
    until = replace(deadline(now, left), span_ns=life.until.span_ns)
    return replace(life, until=until)


def commit(life: Preparation, name: str, now: Moment) -> Preparation:
    """Its grants may be used. `name`: for the message. Raises GoneError where it has ended; one that is committed stays
    so."""
    life = at(life, now)
    if life.stage in (Stage.ABORTED, Stage.EXPIRED):
        raise gone(life, name)
    return life if life.stage is Stage.COMMITTED else Preparation(Stage.COMMITTED, None)


def abort(life: Preparation, name: str, now: Moment, reason: str) -> Preparation:
    """It gives everything back. Raises RefusedError where it is committed: a message that was under way must not end
    what runs in it. One that has ended stays as it is."""
    life = at(life, now)
    if life.stage is Stage.COMMITTED:
        raise RefusedError(f"{name} is committed: release its grants")
    return _ended(Stage.ABORTED, now, reason) if life.stage is Stage.PREPARED else life


def lost(life: Preparation, now: Moment, reason: str) -> Preparation:
    """A grant of it has ended. A prepared part is aborted; of a committed one it was the last grant."""
    if life.stage is Stage.PREPARED:
        return _ended(Stage.ABORTED, now, reason)
    return life if life.until is not None else replace(life, until=deadline(now, REMEMBERED_NS))


def forgotten(life: Preparation, now: Moment) -> bool:
    """Whether it has ended, and is not remembered any longer."""
    return life.over and life.until is not None and not life.until.left_ns(now)


def gone(life: Preparation, name: str) -> GoneError:
    """The error for a request about a part that was aborted or expired."""
    return GoneError(f"{name} was {life.stage} ({life.reason}): prepare anew under another id")


def _ended(stage: Stage, now: Moment, reason: str) -> Preparation:
    return Preparation(stage, deadline(now, REMEMBERED_NS), reason)
