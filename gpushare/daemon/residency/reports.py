"""What the processes of a grant report about their movable memory, checked: nothing in the usage page is trusted."""

from collections import Counter
from dataclasses import dataclass

from gpushare._native import lib
from gpushare.binding import pages
from gpushare.binding.page_words import Move, SlotUsage
from gpushare.daemon.state.live import Live
from gpushare.policy.residency.states import Process
from gpushare.text.fixed import DRIVERS, fixed_in_words

ORDINAL = 0
"""Of the device whose memory is moved: grants that lend have one."""

_FAILED = {
    Move.WORKING: "work is waiting: process {pid} still computes, or records a graph",
    Move.NO_HOST: "there is no host memory for what process {pid} has",
    Move.NO_DEVICE: "the device has no room for what process {pid} has: somebody without a grant uses it",
    Move.FAILED: "the driver refused a step to process {pid}",
    Move.UNSEEN: "process {pid} has submitted work that cannot be followed, or cannot be stopped",
}


def processes(live: Live) -> tuple[Process, ...]:
    """All of the grant's processes. A process that lies harms only its own memory: what it says is capped at the
    grant's limit, and only the present word of the page counts as carried out."""
    if live.limits is None or live.usage is None:
        return ()
    word, limit = live.limits.residency(ORDINAL), live.record.places[ORDINAL].memory_bytes
    return tuple(
        _process(member.pid, live.usage.usage(member.slot, ORDINAL), word, live.record.residency.epoch, limit)
        for member in live.record.members
    )


def _process(pid: int, said: SlotUsage, word: int, epoch: int, limit: int) -> Process:
    movable = min(said.movable_bytes, said.memory_bytes, limit)
    failed = ""
    if said.residency == word and said.move != Move.MOVED:
        known = said.move in _FAILED
        failed = _FAILED[Move(said.move)].format(pid=pid) if known else f"process {pid} gives no reason"
    return Process(
        pid=pid,
        epoch=epoch if said.residency == word else -1,
        failed=failed,
        trying=said.move == Move.NO_DEVICE,
        movable_bytes=movable,
        hosted_bytes=min(said.hosted_bytes, movable),
        wants=said.wants,
        leaves=said.leaves,
    )


def work(live: Live) -> int:
    """A number that changes with whatever the grant's programs submit or allocate."""
    return sum(one.launches + one.touched for one in said(live))


@dataclass(frozen=True, slots=True)
class Sums:
    """Bytes of all processes of a grant: what can be moved; of that, what is in host memory, and what is on the device
    with a current copy there. `fixed`: what processes say that they have of what cannot
    be moved."""

    movable_bytes: int = 0
    hosted_bytes: int = 0
    clean_bytes: int = 0
    fixed: tuple[tuple[str, int], ...] = ()


def said(live: Live) -> list[SlotUsage]:
    """What each of the grant's processes says, unchecked."""
    if live.usage is None:
        return []
    return [live.usage.usage(member.slot, ORDINAL) for member in live.record.members]


def sums(live: Live) -> Sums:
    """For display. Each number is capped at the grant's limit."""
    if live.limits is None or live.usage is None:
        return Sums()
    limit = live.record.places[ORDINAL].memory_bytes
    words = said(live)
    movable = min(limit, sum(one.movable_bytes for one in words))
    hosted = min(movable, sum(one.hosted_bytes for one in words))
    clean = min(movable - hosted, sum(one.clean_bytes for one in words))
    fixed: Counter[str] = Counter()
    for member in live.record.members:
        fixed.update({kind.name.lower(): size for kind, size in live.usage.fixed(member.slot).items()})
    return Sums(movable, hosted, clean, tuple(fixed.items()))


def free(live: Live) -> int:
    """How much of its limit nothing of a grant takes on its device, by what its processes say."""
    return max(0, _limit(live) - _held(live) + sum(min(one.hosted_bytes, one.memory_bytes) for one in said(live)))


def leaving(live: Live) -> int:
    """How much of its limit is free once its movable memory is away: all but what stays. No call takes more of the
    device until its memory is wanted back."""
    return max(0, _limit(live) - _held(live) + sum(min(one.movable_bytes, one.memory_bytes) for one in said(live)))


def _limit(live: Live) -> int:
    return live.record.places[ORDINAL].memory_bytes


def _held(live: Live) -> int:
    """With what calls in progress may take, and what the driver counts besides."""
    if live.limits is None or live.usage is None:
        return 0
    return pages.held(live.limits, live.usage, ORDINAL)[1] + live.uncharged(ORDINAL)


def divided(sums: Sums, held_bytes: int) -> dict[str, int]:
    """What of the memory of a grant cannot be moved, by reason: what its processes say; the rest is the driver's."""
    size, known = max(0, held_bytes - sums.movable_bytes), {}
    for reason, said in sums.fixed:
        known[reason] = min(said, size)
        size -= known[reason]
    return {reason: held for reason, held in [*known.items(), (DRIVERS, size)] if held}


def returned(live: Live) -> bool:
    """Whether processes of a grant whose memory is to be away have come back by themselves, or are about to; not those
    that have not left yet."""
    if live.limits is None:
        return False
    word = live.limits.residency(ORDINAL)
    return any(one.returns or (one.residency == word and one.movable_bytes > one.hosted_bytes) for one in said(live))


def fixed_now(live: Live) -> str:
    """What `divided` says, in words."""
    return fixed_in_words(divided(sums(live), sum(one.memory_bytes for one in said(live))))


def epoch_of(word: int) -> int:
    """The epoch of a residency word."""
    return word >> int(lib.GS_RESIDENCY_SHIFT)


def is_hosted(word: int) -> bool:
    """Whether a residency word tells processes to move out."""
    return word & ((1 << int(lib.GS_RESIDENCY_SHIFT)) - 1) == lib.GS_HOSTED


def is_prepared(word: int) -> bool:
    """Whether a residency word tells processes to copy ahead."""
    return word & ((1 << int(lib.GS_RESIDENCY_SHIFT)) - 1) == lib.GS_PREPARED
