"""A request's terms for memory: how much, and how memory on loan may be reclaimed."""

import functools
from dataclasses import dataclass
from typing import cast

from gpushare.api.share import GRACE_SECONDS_MAX, PRIORITY_MAX, MaxRung
from gpushare.api.types import GrantRequest
from gpushare.errors import RefusedError, UsageError
from gpushare.policy.loans import reclaim
from gpushare.policy.loans.recall import Policy
from gpushare.policy.loans.reclaim import Rung
from gpushare.text.units import parse_memory


@functools.lru_cache(maxsize=256)
def memory(value: int | str) -> int | str:
    """Bytes, or a checked percentage as text: it applies to the device that is chosen later."""
    text = str(value)
    if text.strip().endswith("%"):
        parse_memory(text, 1 << 40)
        return text
    return parse_memory(text, 0)


@dataclass(frozen=True, slots=True)
class Terms:
    """`borrow`: bytes, or a percentage as text, per device; 0: it borrows none."""

    max_rung: Rung
    grace_ns: int
    borrow: int | str


def rung_word(rung: Rung) -> MaxRung:
    """The rung as on the wire."""
    return cast(MaxRung, rung.word)


def terms(request: GrantRequest, policy: Policy) -> Terms:
    """The terms of a request, limited to what this node allows. By default time is taken back from every grant, and
    memory is asked back from one that borrows it."""
    return _terms(request.max_rung, request.grace_seconds, request.borrow_memory, request.memory, policy)


@functools.lru_cache(maxsize=256, typed=True)  # called each time a grant is shown
def _terms(
    max_rung: str | None, grace_seconds: float | None, borrow: bool | int | str, size: int | str, policy: Policy
) -> Terms:
    asked = reclaim.rung_of(max_rung) if max_rung is not None else None
    grace_ns = policy.grace_ns if grace_seconds is None else round(grace_seconds * 1e9)
    return Terms(
        max_rung=min(policy.most, asked or (Rung.EVICT if borrow else Rung.THROTTLE)),
        grace_ns=min(policy.grace_ns, grace_ns),
        borrow=0 if borrow is False else memory(size if borrow is True else borrow),
    )


def check(request: GrantRequest, policy: Policy) -> None:
    """Raises UsageError for invalid values, RefusedError for what this node does not do."""
    grace, most = request.grace_seconds, policy.grace_ns / 1e9
    if grace is not None and not 0 <= grace <= GRACE_SECONDS_MAX:
        raise UsageError(f"grace_seconds {grace:g} is out of range: give 0 to {GRACE_SECONDS_MAX}")
    if not -PRIORITY_MAX <= request.priority <= PRIORITY_MAX:
        raise UsageError(f"priority {request.priority} is out of range: give {-PRIORITY_MAX} to {PRIORITY_MAX}")
    found = terms(request, policy)
    if grace is not None and grace > most:
        raise RefusedError(f"a grace of {grace:g} s is more than this node gives: ask for {most:g} s or less")
    if not found.borrow or policy.lends(found.max_rung):
        return
    least = max(policy.lend_to, Rung.EVICT)
    if policy.most < least:
        raise RefusedError(f"this node lends no memory: its [reclaim] max_rung is {policy.most.word}")
    words = f"{least.word} or {Rung.KILL.word}" if least < min(policy.most, Rung.KILL) else least.word
    raise RefusedError(
        f"memory is lent to grants that may be asked to give it back: ask with a max_rung of {words}, not"
        f" {request.max_rung or found.max_rung.word}"
    )
