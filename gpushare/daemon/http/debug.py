"""The internals of a grant, for debugging: the words of its pages, and the last events of its processes."""

import time
from typing import Literal

from gpushare.api import debug as debug_types
from gpushare.binding.page_words import Slot
from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.daemon.residency import reports
from gpushare.daemon.state.live import Live


def grant(live: Live, limits: LimitsPage, usage: UsagePage) -> debug_types.GrantDebug:
    """Shows a living grant from its pages."""
    leases = [limits.lease(ordinal) for ordinal in range(limits.ndevices)]
    return debug_types.GrantDebug(
        grant=live.id,
        daemon_epoch=limits.daemon_epoch,
        leases=[
            debug_types.DebugLease(
                ordinal=ordinal,
                epoch=lease.epoch,
                held=lease.held,
                contended=lease.contended,
                bound_ns=lease.inflight_bound_ns,
                residency=_residency(limits.residency(ordinal)),
                residency_epoch=reports.epoch_of(limits.residency(ordinal)),
                room=limits.room(ordinal),
            )
            for ordinal, lease in enumerate(leases)
        ],
        processes=[_process(limits, usage, slot) for slot in usage.taken()],
    )


def _residency(word: int) -> Literal["resident", "prepared", "hosted"]:
    return "hosted" if reports.is_hosted(word) else "prepared" if reports.is_prepared(word) else "resident"


def _process(limits: LimitsPage, usage: UsagePage, slot: Slot) -> debug_types.DebugProcess:
    now_ns, wall_now_ns = time.monotonic_ns(), time.time_ns()
    return debug_types.DebugProcess(
        pid=slot.pid,
        slot=slot.index,
        devices=[_device(usage, slot, ordinal) for ordinal in range(limits.ndevices)],
        events=[
            debug_types.DebugEvent(
                # a process cannot have done it later than now, whatever it wrote
                at_ns=wall_now_ns - max(0, now_ns - event.time_ns),
                area=event.area,
                device=event.device,
                text=event.text,
            )
            for event in usage.trace(slot)
        ],
    )


def _device(usage: UsagePage, slot: Slot, ordinal: int) -> debug_types.DebugDevice:
    words = usage.usage(slot.index, ordinal)
    return debug_types.DebugDevice(
        ordinal=ordinal,
        memory_bytes=words.memory_bytes,
        memory_pending_bytes=words.memory_pending,
        busy_ns=words.busy_ns,
        launches=words.launches,
        wait_ns=words.wait_ns,
        waiting=words.waiting,
        inflight=words.inflight,
        queue_ns=max(0, words.queue_end_ns - time.monotonic_ns()),
        drained_epoch=words.drained >> 1,
        dependent=words.dependent,
        movable_bytes=words.movable_bytes,
        hosted_bytes=words.hosted_bytes,
        clean_bytes=words.clean_bytes,
        residency_epoch=reports.epoch_of(words.residency),
        move=words.move,
        wants_memory=words.wants,
    )
