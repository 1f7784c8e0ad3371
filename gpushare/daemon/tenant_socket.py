"""The processes of one grant: they join over its grant.sock (gpushare/wire.py), and their end is seen by pidfd.

A pidfd says that a process is dead; the end of its connection alone does not: a program may close all descriptors and
go on, or exec another. So the connection's end asks /proc whether the usage page is still mapped.
Which process holds which slot is remembered here (and in the ledger), never read back from the page, which tenants can
write.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from gpushare import wire
from gpushare.daemon import peer
from gpushare.errors import GpushareError, RefusedError
from gpushare.pages import LimitsPage, UsagePage
from gpushare.wire import JoinError, JoinRequest

log = logging.getLogger(__name__)

# Every process of a full grant twice over (an exec joins before the old image's connection was seen to end).
_CONNECTIONS_MAX = 2048


class MemberRecord(Struct, kw_only=True):
    """A joined process as the ledger keeps it.

    `started`: its start time in clock ticks since boot, which with the pid identifies it even after the pid is reused.
    """

    pid: int
    started: int
    slot: int
    generation: int


# While an exec is under way the driver may still hold the old program's memory. The process is examined at this
# interval, and the exec is taken to be over after the deadline. (A daemon that may not examine other processes always
# waits for the deadline.)
_EXEC_LOOK_S = 0.01
_EXEC_DEADLINE_S = 5.0


# The list of members is written at once, and then not again for this many seconds per member: a thousand processes
# that join or die together cause a few writes, not one each, and a few processes never wait.
_WRITE_S = 50e-6


@dataclass(slots=True)
class _Member:
    record: MemberRecord
    pidfd: int
    connection: socket.socket | None = None
    exec_timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Callbacks into the grant.

    `admit` decides on a join: an answer and a line for the process. `clear` empties the slot of a process that has
    died. `changed` is called whenever a process joins or leaves, and `write` shortly after, to make that durable.
    """

    admit: Callable[[peer.Peer], tuple[JoinError, str]]
    clear: Callable[[int], None]
    changed: Callable[[], None]
    write: Callable[[], None]


class TenantSocket:
    """grant.sock of one grant, and the processes that joined over it."""

    def __init__(self, directory: Path, limits: LimitsPage, usage: UsagePage, bell: int, rules: Rules) -> None:
        """`directory`: the grant's self/. Pages and bell stay the caller's."""
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._limits, self._usage, self._bell = limits, usage, bell
        self._usage_file = (directory / "usage").stat()
        self._rules = rules
        self._listener: socket.socket | None = None
        self._waiting: set[socket.socket] = set()
        self._members: dict[int, _Member] = {}
        self._answers: list[tuple[socket.socket, _Member]] = []
        """Members whose join is answered once it is written."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._write_from = 0.0

    @property
    def records(self) -> list[MemberRecord]:
        """The members of this moment, for the ledger."""
        return [member.record for member in self._members.values()]

    def listen(self) -> None:
        """Binds a temporary name and renames it: a process that joins meanwhile finds the old socket or the new one."""
        listener = bind_unix(self._directory / "grant.sock", socket.SOCK_SEQPACKET, 0o666)
        listener.listen(128)
        self._listener = listener
        self._loop.add_reader(listener, self._accept)

    def adopt(self, records: list[MemberRecord]) -> None:
        """After a restart: adopts the members that live and clears every other slot that the page marks as taken."""
        for record in records:
            pidfd = peer.reopen_pidfd(record.pid, record.started)
            if pidfd is not None and record.slot not in self._members:
                self._add(_Member(record, pidfd))
        for slot in list(self._usage.live_slots(self._limits)):
            if slot.index not in self._members:
                self._rules.clear(slot.index)

    def close(self) -> None:
        """Stops listening and watching; the processes are left alone."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._answers.clear()
        for connection in list(self._waiting):
            self._drop(connection)
        for member in self._members.values():
            self._hang_up(member)
            self._stop_waiting(member)
            self._loop.remove_reader(member.pidfd)
            os.close(member.pidfd)
        self._members.clear()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            log.warning("%s: accept: %s", self._directory, error)
            return
        if len(self._waiting) + len(self._members) >= _CONNECTIONS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        self._waiting.add(connection)
        self._loop.add_reader(connection, self._join, connection)

    def _drop(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._waiting.discard(connection)
        connection.close()

    def _join(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(wire.REQUEST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._drop(connection)
            return
        try:
            error, text, member = self._admit(connection, message)
        except (GpushareError, OSError) as failure:
            error, text, member = JoinError.REFUSED, str(failure), None
        if member is None:
            self._refuse(connection, error, text)
            return
        # The ledger knows the process before the process knows its slot: a crash between the two loses nothing.
        self._loop.remove_reader(connection)
        self._answers.append((connection, member))
        self._changed()

    def _refuse(self, connection: socket.socket, error: JoinError, text: str) -> None:
        with contextlib.suppress(OSError):
            connection.send(wire.reply(error, text))
        self._drop(connection)

    def _changed(self) -> None:
        self._rules.changed()
        if self._write_timer is None:
            self._write_timer = self._loop.call_at(self._write_from, self._write)

    def _write(self) -> None:
        self._write_timer = None
        answers, self._answers = self._answers, []
        try:
            self._rules.write()
        except GpushareError as failure:
            log.warning("%s: %s", self._directory, failure)
            for connection, member in answers:
                self._forget(member)
                self._refuse(connection, JoinError.REFUSED, str(failure))
            self._rules.changed()
            return
        finally:
            self._write_from = self._loop.time() + _WRITE_S * len(self._members)
        for connection, member in answers:
            self._answer(connection, member)

    def _answer(self, connection: socket.socket, member: _Member) -> None:
        if self._members.get(member.record.slot) is not member:  # died meanwhile
            self._drop(connection)
            return
        record = member.record
        message = wire.reply(JoinError.OK, slot=record.slot, generation=record.generation, host_pid=record.pid)
        try:
            socket.send_fds(connection, [message], [self._bell])
        except OSError:
            self._dead(member)
            self._drop(connection)
            return
        self._hang_up(member)
        self._waiting.discard(connection)
        member.connection = connection
        self._loop.add_reader(connection, self._on_message, member)

    def _admit(self, connection: socket.socket, message: bytes) -> tuple[JoinError, str, _Member | None]:
        request = JoinRequest.parse(message)
        if request is None:
            text = "the join message has another size: the library and the daemon differ in version"
            return JoinError.VERSION, text, None
        if not request.understood:
            text = f"the daemon speaks version {wire.VERSION} of the join protocol, the library {request.version}"
            return JoinError.VERSION, text, None
        who = peer.credentials(connection)
        if who.pid <= 0:
            return JoinError.REFUSED, "the process is in a pid namespace that the daemon cannot see", None
        error, text = self._rules.admit(who)
        if error != JoinError.OK:
            return error, text, None
        pidfd = peer.open_pidfd(connection, who.pid)
        member: _Member | None = None
        try:
            started = peer.start_time(who.pid)
            if started is None:
                return JoinError.REFUSED, "the process is ending", None
            self._end_of_old_images(who.pid)
            if (held := self._rejoin(who.pid, started, request)) is not None:
                return JoinError.OK, "", held
            claimed = self._usage.claim(self._limits, who.pid)
            if claimed.index in self._members:
                return JoinError.REFUSED, "the usage page says that a taken slot is free: it was tampered with", None
            record = MemberRecord(pid=who.pid, started=started, slot=claimed.index, generation=claimed.generation)
            member = _Member(record, pidfd)
        except RefusedError as full:
            return JoinError.FULL, str(full), None
        finally:
            if member is None:
                os.close(pidfd)
        self._add(member)
        return JoinError.OK, "", member

    def _end_of_old_images(self, pid: int) -> None:
        """An exec closed the old image's connection before the new one could join: read its end now, before the loop
        comes to it. A process that joins is running, so the exec is over."""
        for member in [member for member in self._members.values() if member.record.pid == pid]:
            if member.connection is not None:
                self._on_message(member)
            if member.exec_timer is not None:
                self._dead(member)

    def _rejoin(self, pid: int, started: int, request: JoinRequest) -> _Member | None:
        member = self._members.get(request.slot)
        if member is None or member.record.pid != pid or member.record.started != started:
            return None
        if member.record.generation != request.generation:
            return None
        self._hang_up(member)
        return member

    def _add(self, member: _Member) -> None:
        self._members[member.record.slot] = member
        self._loop.add_reader(member.pidfd, self._dead, member)

    def _on_message(self, member: _Member) -> None:
        """Nothing more is expected on it: anything but its end is ignored."""
        assert member.connection is not None
        try:
            if member.connection.recv(64):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._hang_up(member)
        # An exec frees the old image's slot. At an exit the driver may still hold the device memory: the pidfd tells.
        if not peer.maps_file(member.record.pid, self._usage_file) and not peer.is_ending(member.record.pid):
            image = peer.image(member.record.pid)
            if image is not None:
                self._await_exec(member, image, self._loop.time() + _EXEC_DEADLINE_S)

    def _await_exec(self, member: _Member, image: peer.Image, deadline: float) -> None:
        """The kernel ends our connection before it ends the driver's files: the slot is freed when all are gone."""
        if peer.has_begun(member.record.pid, image) or self._loop.time() >= deadline:
            self._dead(member)
        else:
            member.exec_timer = self._loop.call_later(_EXEC_LOOK_S, self._await_exec, member, image, deadline)

    def _hang_up(self, member: _Member) -> None:
        if member.connection is not None:
            self._loop.remove_reader(member.connection)
            member.connection.close()
            member.connection = None

    def _stop_waiting(self, member: _Member) -> None:
        if member.exec_timer is not None:
            member.exec_timer.cancel()
            member.exec_timer = None

    def _forget(self, member: _Member) -> None:
        if self._members.pop(member.record.slot, None) is None:
            return
        self._hang_up(member)
        self._stop_waiting(member)
        self._loop.remove_reader(member.pidfd)
        os.close(member.pidfd)
        self._rules.clear(member.record.slot)

    def _dead(self, member: _Member) -> None:
        self._forget(member)
        self._changed()


def bind_unix(path: Path, kind: socket.SocketKind, mode: int) -> socket.socket:
    """A bound, non-blocking socket at `path`, whatever was there before. Paths may be longer than sun_path holds."""
    temporary = f".{path.name}.new"
    bound = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        bound.bind(f"/proc/self/fd/{directory}/{temporary}")
        os.chmod(temporary, mode, dir_fd=directory)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        bound.close()
        raise
    finally:
        os.close(directory)
    return bound
