"""What moving a grant's memory costs, on one device: bytes copied, by cause, and how long its programs waited for
their memory, by whose memory stood in the way. Pure: times are arguments, ns of a clock that nobody sets."""

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpushare.policy.residency.residency import By, Residency, Where


class Cause(enum.StrEnum):
    """Why bytes were copied: a person asked, a loan was wanted back, another grant wanted the room, it was the other's
    turn, a call of its programs woke it, or it was idle and was copied ahead of any move. The values are those of the
    ledger and of metrics."""

    PERSON = "person"
    RECLAIM = "reclaim"
    WANT = "want"
    TURN = "turn"
    WAKE = "wake"
    AHEAD = "ahead"


class Way(enum.StrEnum):
    """From the device or to it."""

    OUT = "out"
    IN = "in"


def cause(now: Residency) -> tuple[Way, Cause]:
    """Which way bytes go in a state, and why."""
    if now.where is Where.RESIDENT:
        return Way.OUT, Cause.AHEAD
    if now.where is not Where.RESUMING:
        return Way.OUT, _out(now.by)
    if now.woken:
        return Way.IN, Cause.WAKE
    return Way.IN, _out(now.by) if now.why else Cause.PERSON  # those that are called back had not to leave


def _out(by: By) -> Cause:
    return Cause(by.value)


Member = tuple[int, int]
"""A process of a grant: its slot, and the slot's generation."""


class Holder(NamedTuple):
    """Whose memory stands in the way of a grant's: a grant and its tenant; empty: nobody's."""

    grant: str = ""
    tenant: str = ""


NOBODY = Holder()


class Stall(NamedTuple):
    """Time for which calls waited. `over`, `longest_ns`: how many waits are over, and the longest of them."""

    ns: int = 0
    over: int = 0
    longest_ns: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """What there was since the last cut."""

    copied: Mapping[tuple[Way, Cause], int]
    stalled: Mapping[Holder, Stall]


@dataclass(slots=True)
class Copies:
    """Turns the counters of processes, which may say anything, into bytes: none is counted twice, one that goes
    backwards counts nothing, and each look takes at most what the grant may have."""

    _seen: dict[Member, int] = field(default_factory=dict)

    def carry(self, now: Mapping[Member, int], counted: int | None) -> int:
        """Goes on after a restart, and returns what was copied and never counted. `now`: by process, what it says that
        it has copied since it joined. `counted`: what was counted of the grant before; None: not known."""
        self._seen = dict(now)
        return max(0, sum(now.values()) - counted) if counted is not None else 0

    def look(self, now: Mapping[Member, int], most: int) -> int:
        """Bytes copied since the last look. `most`: bytes that the grant may have."""
        before, self._seen = self._seen, dict(now)
        return min(most, sum(max(0, said - before.get(process, 0)) for process, said in now.items()))


@dataclass(slots=True)
class Account:
    """Of one grant."""

    copies: Copies = field(default_factory=Copies)
    _copied: Counter[tuple[Way, Cause]] = field(default_factory=Counter)
    _stalled: dict[Holder, Stall] = field(default_factory=dict)
    _holder: Holder = NOBODY
    _began_ns: int | None = None
    """Since when a call waits."""
    _until_ns: int = 0
    """Up to when that is counted."""

    @property
    def waits(self) -> bool:
        """Whether a call waits."""
        return self._began_ns is not None

    def copied(self, now: Residency, size: int) -> None:
        """Counts bytes, by the state in which they were copied."""
        if size > 0:
            self._copied[cause(now)] += size

    def wait(self, now_ns: int, *, waits: bool) -> None:
        """Calls of its programs wait for its memory, or none does any more."""
        if waits and self._began_ns is None:
            self._began_ns = self._until_ns = now_ns
        elif not waits and self._began_ns is not None:
            self._settle(now_ns)
            spent = self._stalled.get(self._holder, Stall())
            longest = max(spent.longest_ns, now_ns - self._began_ns)
            self._stalled[self._holder] = Stall(spent.ns, spent.over + 1, longest)
            self._began_ns = None

    def blocked(self, now_ns: int, holder: Holder) -> None:
        """From now on this is in the way of its memory."""
        if holder != self._holder:
            self._settle(now_ns)
            self._holder = holder

    def waited_before(self, now_ns: int, ns: int, holder: Holder) -> None:
        """A call waits that has waited for `ns` already, without being counted."""
        self._holder = holder
        self._began_ns = self._until_ns = now_ns - ns

    def _settle(self, now_ns: int) -> None:
        if self._began_ns is not None and now_ns > self._until_ns:
            spent = self._stalled.get(self._holder, Stall())
            self._stalled[self._holder] = spent._replace(ns=spent.ns + now_ns - self._until_ns)
            self._until_ns = now_ns

    def cut(self, now_ns: int) -> Cut:
        """What there was since the last cut, of a wait that is not over too."""
        self._settle(now_ns)
        found = Cut(dict(self._copied), dict(self._stalled))
        self._copied.clear()
        self._stalled.clear()
        return found


class Loan(NamedTuple):
    """What a grant has of a device now: on the device, and of that on loan."""

    grant: str
    tenant: str
    here_bytes: int
    on_loan_bytes: int


def in_the_way(others: Collection[Loan]) -> Holder:
    """Who stands in the way of memory for which there is no room: who has most on loan of the device, or where nobody
    has, who has most of it. Ties by name."""
    most = max(others, key=lambda one: (one.on_loan_bytes, one.here_bytes, one.grant), default=None)
    return Holder(most.grant, most.tenant) if most is not None and most.here_bytes > 0 else NOBODY
