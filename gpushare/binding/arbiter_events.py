"""The events of the arbiter (native/arbiter/gs_arbiter.h) as typed objects."""

import enum
from dataclasses import dataclass
from typing import Any

from gpushare._native import ffi, lib
from gpushare.binding.page_words import Refusal


class EventKind(enum.IntEnum):
    """What happened; api.types.LeaseEvent explains each."""

    LEASE = lib.GS_EVENT_LEASE
    REVOKE = lib.GS_EVENT_REVOKE
    HANDOVER = lib.GS_EVENT_HANDOVER
    WAKE = lib.GS_EVENT_WAKE
    LATE = lib.GS_EVENT_LATE
    BESIDE = lib.GS_EVENT_BESIDE
    DRAINED = lib.GS_EVENT_DRAINED
    LEFT = lib.GS_EVENT_LEFT
    LIE = lib.GS_EVENT_LIE
    REFUSED = lib.GS_EVENT_REFUSED


class Rule(enum.IntEnum):
    """Why a lease was given or revoked; enum gs_rule in gs_arbiter.h explains each."""

    NONE = lib.GS_RULE_NONE
    IDLE = lib.GS_RULE_IDLE
    SLEEPING = lib.GS_RULE_SLEEPING
    GONE = lib.GS_RULE_GONE
    UNUSED = lib.GS_RULE_UNUSED
    LIMIT = lib.GS_RULE_LIMIT
    WAKE = lib.GS_RULE_WAKE
    GUARANTEE = lib.GS_RULE_GUARANTEE
    TIER = lib.GS_RULE_TIER
    TERM = lib.GS_RULE_TERM
    EXCESS = lib.GS_RULE_EXCESS
    GANG = lib.GS_RULE_GANG
    ENDED = lib.GS_RULE_ENDED
    FREE = lib.GS_RULE_FREE
    ROOM = lib.GS_RULE_ROOM
    AWAY = lib.GS_RULE_AWAY


class Word(enum.IntEnum):
    """A word of a slot in the usage page."""

    STATE = lib.GS_WORD_STATE
    GENERATION = lib.GS_WORD_GENERATION
    PID = lib.GS_WORD_PID
    MEMORY = lib.GS_WORD_MEMORY
    BUSY = lib.GS_WORD_BUSY
    QUEUE_END = lib.GS_WORD_QUEUE_END
    LAUNCHES = lib.GS_WORD_LAUNCHES
    COLLECTIVES = lib.GS_WORD_COLLECTIVES
    WAITING = lib.GS_WORD_WAITING
    INFLIGHT = lib.GS_WORD_INFLIGHT


class Level(enum.IntEnum):
    """What a lease is given for."""

    NONE = lib.GS_LEVEL_NONE
    GUARANTEE = lib.GS_LEVEL_GUARANTEE
    SLACK = lib.GS_LEVEL_SLACK
    SURPLUS = lib.GS_LEVEL_SURPLUS


@dataclass(frozen=True, slots=True)
class Lie:
    """An impossible value in a usage page (`struct gs_lie` in gs_arbiter.h). `pid`: the process that owns the slot."""

    word: Word
    slot: int
    pid: int
    value: int


@dataclass(frozen=True, slots=True)
class Refusals:
    """Calls that were refused for want of device memory (`struct gs_refused` in gs_arbiter.h)."""

    calls: int
    asked_bytes: int
    left_bytes: int
    limit_bytes: int
    why: Refusal


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the arbiter, with its receipt (`struct gs_event` and `struct gs_receipt` in gs_arbiter.h).

    `grant` and `other` are handles; `other` is -1 where there is none. Times in ns of the monotonic clock."""

    sequence: int
    t_ns: int
    kind: EventKind
    device: int
    grant: int
    other: int
    rule: Rule
    level: Level
    woke: bool
    running: bool
    guarantee_milli: int
    had_milli: int
    wait_ns: int
    reclaim_ns: int
    lie: Lie | None = None
    refused: Refusals | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events to read; a field that is None matches all. `handles` match the grant of an event or the other
    one."""

    handles: frozenset[int] | None = None
    device: int | None = None
    kind: EventKind | None = None

    def matches(self, row: Any) -> bool:
        """Whether a row of the record (`struct gs_event`) is wanted."""
        return (
            (self.kind is None or row.kind == self.kind)
            and (self.device is None or row.device == self.device)
            and (self.handles is None or row.grant in self.handles or row.other in self.handles)
        )


_NO_RECEIPT = ffi.new("struct gs_receipt *")


def event_of(sequence: int, row: Any) -> Event:
    """A row of the record (`struct gs_event`)."""
    lie = row.lie if row.kind == EventKind.LIE else None
    refused = row.refused if row.kind == EventKind.REFUSED else None
    receipt = row.receipt if lie is None and refused is None else _NO_RECEIPT
    return Event(
        sequence=sequence,
        t_ns=row.t_ns,
        kind=EventKind(row.kind),
        device=row.device,
        grant=row.grant,
        other=row.other,
        rule=Rule(receipt.rule),
        level=Level(receipt.level),
        woke=bool(receipt.flags & lib.GS_RECEIPT_WOKE),
        running=bool(receipt.flags & lib.GS_RECEIPT_RUNNING),
        guarantee_milli=receipt.guarantee_milli,
        had_milli=receipt.had_milli,
        wait_ns=receipt.wait_ns,
        reclaim_ns=receipt.reclaim_ns,
        lie=Lie(Word(lie.word), lie.slot, lie.pid, lie.value) if lie is not None else None,
        refused=_refusals(refused) if refused is not None else None,
    )


def _refusals(row: Any) -> Refusals:
    return Refusals(row.calls, row.asked_bytes, row.left_bytes, row.limit_bytes, Refusal(row.why))
