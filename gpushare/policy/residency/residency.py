"""The movable memory of one grant on one device as a pure state machine: an event in, the next state and instructions
out.

                 Suspend                 all have moved out              room found
    resident ---------------> suspending -------------------> suspended -------------> resuming ---> resident
                                  |  refused, deadline, Resume                            ^
                                  +-------------------------------------------------------+

Each change is recorded before the page's word tells the processes of it, and has an epoch: what a process reports of an
earlier epoch counts for nothing. Host memory is reserved before processes are told to move out and is given back once
all of it is on the device again; the room on the device is counted as free only after they have moved out, and is taken
back before they are told to come in. So a process is never without a place for its bytes.
"""

from dataclasses import replace

from gpushare.errors import RefusedError
from gpushare.policy.residency.states import (
    AskRoom,
    By,
    CopyAhead,
    Count,
    Event,
    Looked,
    News,
    Process,
    Record,
    Release,
    Reserve,
    Residency,
    Restarted,
    Resume,
    Room,
    Steps,
    Suspend,
    Taken,
    Tell,
    Where,
    Write,
)

STAY_NS = 200 * 10**6
"""For so long a grant that a call has brought back is not suspended by a person: its programs get on, however often
somebody asks."""
SLOWEST = 256 << 20
"""Bytes that are moved in a second at least, on whatever machine."""
PREPARED = 1 << 30
"""Bytes for which host memory is made in a second at least."""


def advance(now: Residency, event: Event, move_ns: int) -> tuple[Residency, Steps]:
    """The state after the event, and what to do. `move_ns`: how long a move may take, besides the time for its bytes.
    Raises RefusedError for a
    Suspend of a grant that has nothing to move."""
    match event:
        case Suspend():
            return _suspend(now, event, move_ns)
        case CopyAhead(movable):
            return _copy_ahead(now, movable)
        case Resume():
            return _resume(now, event, move_ns)
        case Room():
            return _room(now, event, move_ns)
        case Looked():
            return _look(now, event, move_ns)
        case Taken():
            return _taken(now, event, move_ns)
        case Restarted():
            return _restart(now, event, move_ns)


def _deadline(now_ns: int, move_ns: int, size: int) -> int:
    return now_ns + move_ns + size * 10**9 // SLOWEST


def _suspend(now: Residency, event: Suspend, move_ns: int) -> tuple[Residency, Steps]:
    if now.where is Where.SUSPENDED:
        if not event.hold or now.hold:
            return now, ()
        return replace(now, hold=True, back=False, waits=""), (Record(),)
    if now.where is Where.SUSPENDING:
        held = now if now.hold or not event.hold else replace(now, hold=True, back=False)
        return held, () if held == now else (Record(),)
    gets_on = now.woken and (now.where is Where.RESUMING or event.now_ns < (now.stays_ns or 0))
    if gets_on and event.by is By.PERSON and not event.hold:
        raise RefusedError("a call of its programs has just brought it back: ask again in a moment")
    if event.movable_bytes <= 0 and event.free_bytes <= 0:
        raise RefusedError("none of its memory can be moved" + (f": {event.fixed}" if event.fixed else ""))
    size = max(now.reserved_bytes, event.movable_bytes)
    leaving = Residency(
        where=Where.SUSPENDING,
        epoch=now.epoch + 1,
        by=event.by,
        hold=event.hold,
        reserved_bytes=size,
        told_ns=event.now_ns,
        deadline_ns=event.now_ns + move_ns + size * 10**9 // PREPARED,
    )
    return leaving, (Reserve(size), Record(), Write(hosted=True))


def _copy_ahead(now: Residency, movable: int) -> tuple[Residency, Steps]:
    if now.where is not Where.RESIDENT or (movable <= 0 and not now.ahead):
        return now, ()
    if movable <= 0:
        there = Residency(epoch=now.epoch + 1, by=now.by, why=now.why)
        return there, (Record(), Write(hosted=False), Release())
    if now.ahead and movable <= now.reserved_bytes:
        return now, ()
    copied = replace(now, epoch=now.epoch + (not now.ahead), ahead=True, reserved_bytes=movable)
    write = () if now.ahead else (Write(hosted=False, ahead=True),)
    return copied, (Reserve(movable), Record(), *write)


def _resume(now: Residency, event: Resume, move_ns: int) -> tuple[Residency, Steps]:
    if now.where is Where.SUSPENDING and now.leaving:
        return replace(now, hold=False, back=True), (Record(),)  # once it is away: others may be coming in
    if now.where is Where.SUSPENDING:
        return _give_up(now, event.now_ns, "it was resumed meanwhile", move_ns)
    if now.where is not Where.SUSPENDED or (now.back and not now.hold):
        return now, ()
    return replace(now, hold=False, back=True), (Record(), AskRoom())


def _room(now: Residency, event: Room, move_ns: int) -> tuple[Residency, Steps]:
    if now.where is not Where.SUSPENDED or not now.back:
        return now, ()
    if event.why:
        return replace(now, waits=event.why), ()
    return _come_in(replace(now, early=event.early), event.now_ns, move_ns)


def _come_in(now: Residency, now_ns: int, move_ns: int) -> tuple[Residency, Steps]:
    coming = replace(
        now,
        where=Where.RESUMING,
        epoch=now.epoch + 1,
        hold=False,
        back=False,
        leaving=False,
        hosted_bytes=0,
        deadline_ns=_deadline(now_ns, move_ns, now.reserved_bytes),
        waits="",
    )
    return coming, (Count(0), Record(), Write(hosted=False))


def _taken(now: Residency, event: Taken, move_ns: int) -> tuple[Residency, Steps]:
    """Goes back to where it was, and looks for room anew."""
    if now.where is not Where.RESUMING or not now.early:
        return now, ()
    size = max(now.reserved_bytes, event.movable_bytes)
    away = replace(
        now,
        where=Where.SUSPENDING,
        epoch=now.epoch + 1,
        by=By.WANT,
        back=True,
        early=False,
        reserved_bytes=size,
        told_ns=event.now_ns,
        deadline_ns=_deadline(event.now_ns, move_ns, size),
    )
    return away, (Reserve(size), Record(), Write(hosted=True))


def _give_up(
    now: Residency, now_ns: int, why: str, move_ns: int, event: Looked | None = None
) -> tuple[Residency, Steps]:
    """Calls processes back whose room on the device was never counted as free. Where others may have begun to come in,
    what has left counts as away, and its room has to be found again first."""
    if now.leaving and event is not None:
        hosted = sum(one.hosted_bytes for one in event.processes)
        away = replace(
            now, where=Where.SUSPENDED, leaving=False, hosted_bytes=hosted, back=True, why=why, deadline_ns=None
        )
        return away, (Count(event.free_bytes), Record(), Tell(News.FAILED), AskRoom())
    coming, steps = _come_in(replace(now, why=why), now_ns, move_ns)
    return coming, (*steps, Tell(News.FAILED))


def _look(now: Residency, event: Looked, move_ns: int) -> tuple[Residency, Steps]:
    match now.where:
        case Where.RESIDENT:
            return now, ()
        case Where.SUSPENDING:
            return _look_suspending(now, event, move_ns)
        case Where.SUSPENDED:
            wanted = any(one.wants or _is_not_away(one, now) for one in event.processes) and not now.hold
            if now.back or wanted or not event.processes:
                return replace(now, back=True, hold=False, woken=now.woken or wanted), (AskRoom(),)
            return now, ()
        case Where.RESUMING:
            return _look_resuming(now, event, move_ns)


def _is_not_away(one: Process, now: Residency) -> bool:
    """Whether a process of a suspended grant could not leave after all, having had nothing to move at first, or has
    come back by itself."""
    return one.epoch == now.epoch and (bool(one.failed) or one.movable_bytes > one.hosted_bytes)


def _look_suspending(now: Residency, event: Looked, move_ns: int) -> tuple[Residency, Steps]:
    failed = next((one.failed for one in event.processes if one.failed and one.epoch == now.epoch), "")
    if failed:
        return _give_up(now, event.now_ns, failed, move_ns, event)
    left = [one for one in event.processes if one.epoch != now.epoch and (one.movable_bytes or one.hosted_bytes)]
    if left:
        if now.deadline_ns is not None and event.now_ns < now.deadline_ns:
            if now.leaving or not all(one.leaves for one in left):
                return now, ()
            going = sum(one.movable_bytes for one in event.processes) - sum(one.hosted_bytes for one in event.processes)
            most = event.leave_ns or move_ns + now.reserved_bytes * 10**9 // SLOWEST
            leaving = replace(now, leaving=True, hosted_bytes=event.free_bytes + going, deadline_ns=event.now_ns + most)
            return leaving, (Record(), Tell(News.LEAVING))
        pids = ", ".join(str(one.pid) for one in left[:3])
        return _give_up(now, event.now_ns, f"not all of its processes answered in time ({pids})", move_ns, event)
    hosted = min(now.reserved_bytes, sum(one.hosted_bytes for one in event.processes))
    if not hosted and not (event.free_bytes and now.by is not By.PERSON):
        return _give_up(now, event.now_ns, "none of its memory can be moved any more", move_ns, event)
    away = replace(now, where=Where.SUSPENDED, leaving=False, hosted_bytes=hosted, deadline_ns=None)
    again = (AskRoom(),) if now.back else ()
    return away, (Count(max(hosted, event.free_bytes)), Record(), Tell(News.MOVED), *again)


def _look_resuming(now: Residency, event: Looked, move_ns: int) -> tuple[Residency, Steps]:
    left = [one for one in event.processes if one.hosted_bytes and (one.failed or one.epoch != now.epoch)]
    if not left:
        stays = event.now_ns + STAY_NS if now.woken else None
        there = Residency(epoch=now.epoch, by=now.by, why=now.why, woken=now.woken, stays_ns=stays)
        return there, (Record(), Release(), Tell(News.CALLED_BACK if now.why else News.RETURNED))
    stuck = next((one for one in left if one.failed and one.epoch == now.epoch), None)
    waiting = replace(now, waits=stuck.failed) if stuck is not None else now
    if now.deadline_ns is not None and event.now_ns < now.deadline_ns:
        return waiting, ()
    waiting = replace(waiting, deadline_ns=event.now_ns + move_ns)
    if stuck is not None and stuck.trying:
        return waiting, ()
    return replace(waiting, epoch=now.epoch + 1), (Record(), Write(hosted=False))


def _restart(now: Residency, event: Restarted, move_ns: int) -> tuple[Residency, Steps]:
    seen = replace(now, epoch=event.epoch, stays_ns=None)
    reserve = (Reserve(now.reserved_bytes),) if now.reserved_bytes else ()
    if now.where is Where.RESIDENT and not event.hosted:
        if event.ahead == now.ahead:
            return seen, reserve
        # The daemon was killed before it told the processes.
        told = replace(seen, epoch=event.epoch + 1)
        return told, (*reserve, Record(), Write(hosted=False, ahead=now.ahead), *(() if now.ahead else (Release(),)))
    if now.where is Where.SUSPENDING and not event.hosted:
        # The daemon was killed before it told the processes. Some may still be coming in from the time before.
        coming, steps = _give_up(seen, event.now_ns, "the daemon was restarted", move_ns)
        return coming, (*reserve, *steps)
    if now.where is Where.SUSPENDING and not event.returned:
        return replace(seen, deadline_ns=_deadline(event.now_ns, move_ns, now.reserved_bytes)), reserve
    if now.where is Where.SUSPENDED and event.hosted and not event.returned:
        return seen, reserve
    coming, steps = _come_in(seen, event.now_ns, move_ns)
    return coming, (*reserve, *steps)
