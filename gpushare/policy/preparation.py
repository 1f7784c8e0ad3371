"""The life of a gang's part on this node, as a pure state machine: a state and a time in, the next state out.

    prepared -> committed -> over
        |                     ^
        +--> aborted, expired-+

A cluster's scheduler prepares a part on each node, then commits all of them, or aborts them. What is prepared has its
capacity and runs nothing. A part that has ended is remembered for a while: a message that comes late, twice or after
another finds what became of it and makes nothing anew.
"""

import enum
from dataclasses import dataclass, replace

from gpushare.errors import GoneError, RefusedError

SECOND_NS = 1_000_000_000
REMEMBERED_NS = 3600 * SECOND_NS
"""How long a part that is over is known: longer than any scheduler repeats a message."""


class Stage(enum.StrEnum):
    """Where a part stands; the values are those of the ledger and of the node API."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on both clocks, ns. `boot`: the machine's id of this boot; `since_boot_ns` counts from there and cannot be
    set."""

    boot: str
    since_boot_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Deadline:
    """`span_ns` after a moment. Whatever is done to the wall clock, it is that long while the machine runs, and no
    longer than that after it was restarted."""

    boot: str
    since_boot_ns: int
    wall_ns: int
    span_ns: int

    def left_ns(self, now: Moment) -> int:
        """0: it has come."""
        left = self.since_boot_ns - now.since_boot_ns if now.boot == self.boot else self.wall_ns - now.wall_ns
        return min(self.span_ns, max(0, left))


def deadline(now: Moment, span_ns: int) -> Deadline:
    """That long from now."""
    return Deadline(now.boot, now.since_boot_ns + span_ns, now.wall_ns + span_ns, span_ns)


@dataclass(frozen=True, slots=True)
class Preparation:
    """`until`: of one that is prepared, when it expires; of one that is over, until when it is remembered; None: a
    committed one with grants that live. `reason`: why it was aborted or expired."""

    stage: Stage
    until: Deadline | None
    reason: str = ""

    @property
    def over(self) -> bool:
        """It holds nothing any more, and is only remembered."""
        return self.stage in (Stage.ABORTED, Stage.EXPIRED) or (
            self.stage is Stage.COMMITTED and self.until is not None
        )


def prepared(now: Moment, ttl_ns: int) -> Preparation:
    """One that admission has just accepted."""
    return Preparation(Stage.PREPARED, deadline(now, ttl_ns))


def never(now: Moment, reason: str) -> Preparation:
    """One that is aborted before anybody prepared it: a request to prepare it that comes later is refused."""
    return _ended(Stage.ABORTED, now, reason)


def at(life: Preparation, now: Moment) -> Preparation:
    """As it is at this moment."""
    if life.stage is not Stage.PREPARED or life.until is None or life.until.left_ns(now):
        return life
    return _ended(Stage.EXPIRED, now, f"not committed within {life.until.span_ns // SECOND_NS} s")


def resumed(life: Preparation, now: Moment) -> Preparation:
    """The same for a daemon that takes it over: from now on this boot's clock counts what is left."""
    life = at(life, now)
    if life.until is None or life.until.boot == now.boot:
        return life
    left = life.until.left_ns(now)
    until = replace(deadline(now, left), span_ns=life.until.span_ns)
    return replace(life, until=until)


def commit(life: Preparation, name: str, now: Moment) -> Preparation:
    """Its grants may be used. `name`: in words. Raises GoneError where it has ended; one that is committed stays so."""
    life = at(life, now)
    if life.stage in (Stage.ABORTED, Stage.EXPIRED):
        raise gone(life, name)
    return life if life.stage is Stage.COMMITTED else Preparation(Stage.COMMITTED, None)


def abort(life: Preparation, name: str, now: Moment, reason: str) -> Preparation:
    """It gives everything back. Raises RefusedError where it is committed: what runs in it is not ended by a message
    that was under way. One that has ended stays as it is."""
    life = at(life, now)
    if life.stage is Stage.COMMITTED:
        raise RefusedError(f"{name} is committed: release its grants")
    return _ended(Stage.ABORTED, now, reason) if life.stage is Stage.PREPARED else life


def lost(life: Preparation, now: Moment, reason: str) -> Preparation:
    """A grant of it has ended: of one that is prepared all do; of one that is committed the last one did."""
    if life.stage is Stage.PREPARED:
        return _ended(Stage.ABORTED, now, reason)
    return life if life.until is not None else replace(life, until=deadline(now, REMEMBERED_NS))


def forgotten(life: Preparation, now: Moment) -> bool:
    """It is over, and nobody asks for it any more."""
    return life.over and life.until is not None and not life.until.left_ns(now)


def gone(life: Preparation, name: str) -> GoneError:
    """To who asks for more of a part that was aborted or expired."""
    return GoneError(f"{name} was {life.stage} ({life.reason}): prepare anew under another id")


def _ended(stage: Stage, now: Moment, reason: str) -> Preparation:
    return Preparation(stage, deadline(now, REMEMBERED_NS), reason)
