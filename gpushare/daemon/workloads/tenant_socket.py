"""The processes of one grant: they join over its grant.sock (gpushare/binding/wire.py), and their end is seen by pidfd.

The sockets themselves are the door's (daemon/workloads/door.py). A pidfd says that a process is dead; the end of its
connection alone does not: a program may close all descriptors and go on, or exec another. What it runs then is compared
with what it ran when it joined.
Which process holds which slot is remembered here (and in the ledger), never read back from the page, which tenants can
write.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpushare.binding import wire
from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.binding.wire import JoinError, JoinRequest, SegmentRequest, Yield
from gpushare.daemon.host import peer
from gpushare.daemon.state.records import MemberRecord
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.segment_desk import Pool, SegmentDesk
from gpushare.daemon.workloads.yield_desk import YieldDesk
from gpushare.errors import GpushareError, RefusedError

log = logging.getLogger(__name__)


# While an exec is under way the driver may still hold the old program's memory. The process is examined at this
# interval, and the exec is taken to have ended after the deadline. (A daemon that may not examine other processes
# always waits for the deadline.)
_EXEC_LOOK_S = 0.01
_EXEC_DEADLINE_S = 5.0


# The list of members is written at once, and then not again for this many seconds per member: a thousand processes
# that join or die together cause a few writes, not one each, and a few processes never wait.
_WRITE_S = 50e-6

_BEFORE = 0
"""`answered_over` of a process that joined an earlier run of the daemon or of its door: no connection has it."""


@dataclass(slots=True, eq=False)
class _Member:
    """`connection`: the door's number for it. `answered_over`: the one over which the process was given its slot;
    None: it was not given it yet."""

    record: MemberRecord
    pidfd: int
    connection: int | None = None
    answered_over: int | None = None
    exec_end: "asyncio.Task[None] | None" = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Callbacks into the grant.

    `admit` decides on a join: an answer and a line for the process. `clear` empties the slot of a process that has
    died. `changed` is called whenever a process joins or leaves, and `write` shortly after, to make that durable.
    `looked` is called when a process says that its words in the page have to be read. `said`: as YieldDesk takes it.
    `pool`: the grant's part of the host pool; None: there is none.
    """

    admit: Callable[[peer.Peer], tuple[JoinError, str]]
    clear: Callable[[int], None]
    changed: Callable[[], None]
    write: Callable[[], None]
    pool: Pool | None = None
    looked: Callable[[], None] = lambda: None
    said: Callable[[Yield], None] = lambda _: None


class TenantSocket:
    """grant.sock of one grant, and the processes that joined over it."""

    def __init__(
        self, directory: Path, limits: LimitsPage, usage: UsagePage, bell: int, rules: Rules, door: Door
    ) -> None:
        """`directory`: the grant's self/. Pages, bell and door stay the caller's."""
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._limits, self._usage, self._bell = limits, usage, bell
        self._rules, self._door = rules, door
        self._number: int | None = None
        self._members: dict[int, _Member] = {}
        self._answers: list[tuple[int, _Member]] = []
        """Connections and members whose join is answered once it is written."""
        self._segments = SegmentDesk(door, rules.pool, self._changed)
        self._yields = YieldDesk(door, rules.admit, rules.said)
        self._write_timer: asyncio.TimerHandle | None = None
        self._write_from = 0.0

    @property
    def records(self) -> list[MemberRecord]:
        """The present members, for the ledger."""
        return [member.record for member in self._members.values()]

    def listen(self) -> None:
        """Serves the grant's processes from now on. Raises OSError."""
        self._number = self._door.open(self)

    def adopt(self, records: list[MemberRecord]) -> None:
        """After a restart: adopts the members that live and clears every other slot that the page marks as taken."""
        for record in records:
            pidfd = peer.reopen_pidfd(record.pid, record.started)
            if pidfd is not None and record.slot not in self._members:
                self._add(_Member(record, pidfd, answered_over=_BEFORE))
                self._segments.adopt(record)
        for slot in list(self._usage.live_slots(self._limits)):
            if slot.index not in self._members:
                self._rules.clear(slot.index)

    def close(self) -> None:
        """Stops listening and watching; the processes are left alone."""
        if self._number is not None:
            self._door.shut(self._number)
            self._number = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._answers.clear()
        for member in self._members.values():
            self._stop_waiting(member)
            self._loop.remove_reader(member.pidfd)
            os.close(member.pidfd)
        self._members.clear()

    # What the door reports (daemon/workloads/door.py: Guests).

    def bind(self) -> socket.socket:
        """Binds a temporary name and renames it: a process that joins meanwhile finds the old socket or the new one."""
        return bind_unix(self._directory / "grant.sock", socket.SOCK_SEQPACKET, 0o666)

    def asked(self, connection: int, who: peer.Peer, pidfd: int | None, message: bytes) -> None:
        """Handles the request of a process to join, for the usage page, or for a segment of the host pool."""
        if (request := JoinRequest.parse(message)) is not None and request.wants_page:
            if pidfd is not None:
                os.close(pidfd)
            self._pass_page(connection, who)
            return
        if request is not None and request.looks:
            if pidfd is not None:
                os.close(pidfd)
            self._look(connection, who, request)
            return
        if request is not None and (says := request.yields) is not None:
            if pidfd is not None:
                os.close(pidfd)
            self._yields.asked(connection, who, says)
            return
        if (wanted := SegmentRequest.parse(message)) is not None:
            if pidfd is not None:
                os.close(pidfd)
            member = self._held(who.pid, peer.start_time(who.pid), wanted)
            self._segments.asked(connection, member.record if member is not None else None, wanted)
            return
        try:
            error, text, member = self._admit(who, pidfd, message)
        except Exception as failure:
            error, text, member = JoinError.REFUSED, self._reason(failure), None
        if pidfd is not None and (member is None or member.pidfd != pidfd):
            os.close(pidfd)
        if member is None:
            self._door.answer(connection, wire.reply(error, text))
            return
        # The ledger knows the process before the process knows its slot: a crash between the two loses nothing.
        self._answers.append((connection, member))
        self._changed()

    def _look(self, connection: int, who: peer.Peer, request: JoinRequest) -> None:
        """A process has moved memory, or wants it back."""
        if self._held(who.pid, peer.start_time(who.pid), request) is None:
            self._door.answer(connection, wire.reply(JoinError.REFUSED, "the process has not joined"))
            return
        self._rules.looked()
        self._door.answer(connection, wire.reply(JoinError.OK))

    def _pass_page(self, connection: int, who: peer.Peer) -> None:
        """Passes the usage page to a process of the grant that cannot open it, as in a read-only sandbox."""
        try:
            error, text = self._rules.admit(who)
            if error != JoinError.OK:
                self._door.answer(connection, wire.reply(error, text))
                return
            page = os.open(self._directory / "usage", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except Exception as failure:
            self._door.answer(connection, wire.reply(JoinError.REFUSED, self._reason(failure)))
            return
        try:
            self._door.answer(connection, wire.reply(JoinError.OK), page)
        finally:
            os.close(page)

    def ended(self, connection: int, *, delivered: bool) -> None:
        """Handles the end of a connection that stayed open."""
        self._segments.ended(connection, delivered=delivered)
        member = next((each for each in self._members.values() if each.connection == connection), None)
        if member is None:
            return
        member.connection = None
        if not delivered and member.answered_over == connection:
            self._dead(member)  # it does not know that it has a slot, and takes another when it asks again
            return
        now = peer.status(member.record.pid)
        # At an exit the driver may still hold the device memory: the pidfd tells when the process has ended.
        if now is not None and not now.ending and _is_other(member.record, now.image) and member.exec_end is None:
            member.exec_end = self._loop.create_task(self._await_exec(member, now))

    def lost(self) -> None:
        """The door has ended. Processes that know their slots present them to the next one."""
        self._answers.clear()
        self._segments.lost()
        untold = [member for member in self._members.values() if member.answered_over is None]
        for member in self._members.values():
            member.connection = None
            member.answered_over = _BEFORE  # the next door counts connections anew
        for member in untold:
            self._forget(member)
        if untold:
            self._changed()

    # Joining.

    def _changed(self) -> None:
        self._rules.changed()
        if self._write_timer is None:
            self._write_timer = self._loop.call_at(self._write_from, self._write)

    def _write(self) -> None:
        self._write_timer = None
        answers, self._answers = self._answers, []
        try:
            self._rules.write()
        except Exception as failure:
            text = self._reason(failure)
            for connection, member in answers:
                if member.answered_over is None:
                    self._forget(member)
                self._door.answer(connection, wire.reply(JoinError.REFUSED, text))
            self._segments.written(text)
            self._rules.changed()
            return
        finally:
            self._write_from = self._loop.time() + _WRITE_S * len(self._members)
        for connection, member in answers:
            self._answer(connection, member)
        self._segments.written()

    def _reason(self, failure: Exception) -> str:
        """The reason for a refusal. Every request is answered: with too many unanswered, the door takes no more."""
        if isinstance(failure, (GpushareError, OSError)):
            log.warning("%s: %s", self._directory, failure)
            return str(failure)
        log.error("%s: a process could not join", self._directory, exc_info=failure)
        return "internal error: the daemon's log says which"

    def _answer(self, connection: int, member: _Member) -> None:
        if self._members.get(member.record.slot) is not member:  # died meanwhile
            self._door.hang_up(connection)
            return
        record = member.record
        message = wire.reply(JoinError.OK, slot=record.slot, generation=record.generation, host_pid=record.pid)
        self._hang_up(member)
        member.connection = connection
        if member.answered_over is None:
            member.answered_over = connection
        self._door.answer(connection, message, self._bell)

    def _admit(self, who: peer.Peer, pidfd: int | None, message: bytes) -> tuple[JoinError, str, _Member | None]:
        request = JoinRequest.parse(message)
        if request is None:
            text = "the join message has another size: the library and the daemon differ in version"
            return JoinError.VERSION, text, None
        if not request.understood:
            text = f"the daemon speaks version {wire.VERSION} of the join protocol, the library {request.version}"
            return JoinError.VERSION, text, None
        if who.pid <= 0:
            return JoinError.REFUSED, "the process is in a pid namespace that the daemon cannot see", None
        error, text = self._rules.admit(who)
        if error != JoinError.OK:
            return error, text, None
        now = peer.status(who.pid)
        if now is None or pidfd is None:
            return JoinError.REFUSED, "the process is ending", None
        self._end_of_old_images(who.pid, now.image)
        if (held := self._held(who.pid, now.started, request)) is not None:
            return JoinError.OK, "", held
        try:
            claimed = self._usage.claim(self._limits, who.pid)
        except RefusedError as full:
            return JoinError.FULL, str(full), None
        if claimed.index in self._members:
            return JoinError.REFUSED, "the usage page says that a taken slot is free: it was tampered with", None
        record = MemberRecord(
            pid=who.pid,
            started=now.started,
            slot=claimed.index,
            generation=claimed.generation,
            image=(now.image.code, now.image.stack) if now.image.known else None,
        )
        member = _Member(record, pidfd)
        self._add(member)
        return JoinError.OK, "", member

    def _end_of_old_images(self, pid: int, image: peer.Image) -> None:
        """Ends the members of earlier programs of a process. It joins, so it is running, and an exec that it began has
        ended."""
        for member in [member for member in self._members.values() if member.record.pid == pid]:
            if member.exec_end is not None or _is_other(member.record, image):
                self._dead(member)

    def _held(self, pid: int, started: int | None, request: JoinRequest | SegmentRequest) -> _Member | None:
        """The member that this process is, by the slot and the generation that it was given."""
        member = self._members.get(request.slot)
        if member is None or member.record.pid != pid or member.record.started != started:
            return None
        return member if member.record.generation == request.generation else None

    def _add(self, member: _Member) -> None:
        self._members[member.record.slot] = member
        self._loop.add_reader(member.pidfd, self._dead, member)

    # Leaving.

    async def _await_exec(self, member: _Member, since: peer.Status) -> None:
        """Frees the slot once an exec has ended: the kernel closes our connection before the driver's files, and all
        must be closed."""
        pid, deadline = member.record.pid, self._loop.time() + _EXEC_DEADLINE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not peer.has_begun(pid, since, await self._door.system_call(pid)):
                    await asyncio.sleep(_EXEC_LOOK_S)
        member.exec_end = None
        self._dead(member)

    def _hang_up(self, member: _Member) -> None:
        if member.connection is not None:
            self._door.hang_up(member.connection)
            member.connection = None

    def _stop_waiting(self, member: _Member) -> None:
        if member.exec_end is not None:
            member.exec_end.cancel()
            member.exec_end = None

    def _forget(self, member: _Member) -> None:
        if self._members.get(member.record.slot) is not member:
            return
        del self._members[member.record.slot]
        self._hang_up(member)
        self._stop_waiting(member)
        self._loop.remove_reader(member.pidfd)
        os.close(member.pidfd)
        self._segments.gave_back(member.record)
        self._rules.clear(member.record.slot)

    def _dead(self, member: _Member) -> None:
        self._forget(member)
        self._changed()


def _is_other(record: MemberRecord, image: peer.Image) -> bool:
    """Whether the process has left the program that joined. False where that is not known: then its slot stays taken
    until the process ends. Without randomised addresses an exec of the same program looks the same."""
    return record.image is not None and record.image != (image.code, image.stack)


def bind_unix(path: Path, kind: socket.SocketKind, mode: int) -> socket.socket:
    """A bound, non-blocking socket at `path`, whatever was there before. Paths may be longer than sun_path holds."""
    temporary = f".{path.name}.new"
    bound = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        try:
            bound.bind(f"/proc/self/fd/{directory}/{temporary}")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # A file system without a free inode has one once the old socket is gone.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=directory)
            bound.bind(f"/proc/self/fd/{directory}/{temporary}")
        os.chmod(temporary, mode, dir_fd=directory)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        bound.close()
        raise
    finally:
        os.close(directory)
    return bound
