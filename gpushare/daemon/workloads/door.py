"""The daemon's end of the door (gpushare/door), a process that starts with the daemon, and is killed and restarted when
it hangs.

When the door ends, the connections of all grants end with it. This is harmless: their processes go on, are watched by
pidfd, and join again with their slots.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpushare.daemon.host.outbox import Outbox
from gpushare.daemon.host.peer import Peer
from gpushare.door import messages
from gpushare.processes import helper, rights

log = logging.getLogger(__name__)

_BACKLOG = 128
_PING_S = 0.5
_PINGS_MISSED = 4
"""The door hangs if it misses this many pings in a row. They are counted in turns of the daemon's loop: on a busy
machine both are late. Time in which the door waited for a CPU does not count."""
_START_AGAIN_S = 1.0
"""Delay before a restart; a door that lived for longer is restarted at once."""
_AT_ONCE = 32
"""Messages that are handled before the loop serves others, for as long as these took."""


class Guests(Protocol):
    """One grant's side: handles what its processes ask."""

    def asked(self, connection: int, who: Peer, pidfd: int | None, message: bytes) -> None:
        """Handles a request, to be answered by `Door.answer`. Owns `pidfd`; None: the process is gone."""

    def ended(self, connection: int, *, delivered: bool) -> None:
        """A connection that was answered with a bell has ended. `delivered`: the answer was."""

    def lost(self) -> None:
        """All connections are gone, including unanswered ones."""

    def bind(self) -> socket.socket:
        """Returns a bound socket for its processes to connect to, for each new door. Raises OSError."""


@dataclass(slots=True)
class _Entry:
    """One grant's entry. `connections`: those that wait for an answer or stayed open."""

    guests: Guests
    connections: set[int] = field(default_factory=set)


class Door:
    """Made and used in the loop's thread. Messages that a dead door does not get are dropped: the next one serves each
    grant anew."""

    def __init__(self, *, guarded: bool = False) -> None:
        """Starts the door. `guarded`: as on kernels before 6.16, for tests (processes/rights.py). Raises OSError."""
        self._guarded = guarded
        self._loop = asyncio.get_running_loop()
        self._guests: dict[int, _Entry] = {}
        self._entries: dict[int, _Entry] = {}
        """By connection, from its request until its end."""
        self._dying: list[subprocess.Popen[bytes]] = []
        self._looks: dict[int, list[asyncio.Future[str]]] = {}
        self._numbers = 0
        self._closed = False
        self.restarts = 0
        self._begin()

    # What grants want.

    def open(self, guests: Guests) -> int:
        """Serves a grant from now on, and returns its number. Raises OSError."""
        number = self._numbers + 1
        self._serve(number, guests)
        self._numbers = number
        self._guests[number] = _Entry(guests)
        return number

    def shut(self, grant: int) -> None:
        """Closes a grant's listener and all its connections."""
        for connection in self._guests.pop(grant).connections:
            del self._entries[connection]
        self._send(messages.Shut(grant))

    def answer(self, connection: int, message: bytes, bell: int | None = None) -> None:
        """Answers a request. With a bell the connection stays open, without one it is closed."""
        if connection in self._entries:
            if bell is None:
                self._forget(connection)
            self._send(messages.Answer(connection, message), bell)

    def hang_up(self, connection: int) -> None:
        """Closes a connection that stayed open."""
        if self._forget(connection) is not None:
            self._send(messages.HangUp(connection))

    async def system_call(self, pid: int) -> str:
        """The number of the system call that a process is in, or `running`; empty: not known."""
        answer: asyncio.Future[str] = self._loop.create_future()
        self._looks.setdefault(pid, []).append(answer)
        self._send(messages.Look(pid))
        return await answer

    def close(self) -> None:
        """Ends the door; connections are closed, processes stay."""
        self._closed = True
        self._end()
        for process in self._dying:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PING_S)

    # The process.

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = helper.command("door", "guarded" if self._guarded else "")
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", env=helper.ENVIRONMENT
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self._outbox = Outbox(ours)
        self._missed = 0
        self._delay_ns = 0
        """`_run_delay_ns` when the first missed ping was noticed."""
        self._began = self._loop.time()
        self._loop.add_reader(ours, self._receive)
        self._timer = self._loop.call_later(_PING_S, self._ping)

    def _end(self) -> None:
        self._timer.cancel()
        if self._socket.fileno() < 0:
            return  # it has ended, and is not started again yet
        self._loop.remove_reader(self._socket)
        unsent = self._outbox.close()
        self._socket.close()
        self._dispose(unsent)
        self._process.kill()
        self._dying.append(self._process)  # one that sleeps in the kernel ends later
        for answers in self._looks.values():
            for answer in answers:
                if not answer.done():
                    answer.set_result("")
        self._looks.clear()
        self._entries.clear()
        for entry in self._guests.values():
            entry.connections.clear()

    def _gone(self, why: str) -> None:
        log.warning("the door %s: it is started again, and processes join again", why)
        lived = self._loop.time() - self._began
        self._end()
        for entry in list(self._guests.values()):
            try:
                entry.guests.lost()
            except Exception:
                log.exception("a grant was not notified that its connections are gone")
        self.restarts += 1
        if lived > _START_AGAIN_S:
            self._again()
        else:
            self._timer = self._loop.call_later(_START_AGAIN_S, self._again)

    def _again(self) -> None:
        if self._closed:
            return
        try:
            self._begin()
        except OSError as error:
            log.error("the door cannot be started: %s", error.strerror)  # noqa: TRY400 - the reason is in the line
            self._timer = self._loop.call_later(_START_AGAIN_S, self._again)
            return
        for number in list(self._guests):
            self._serve_again(number, self._socket)

    def _serve(self, number: int, guests: Guests) -> None:
        listener = rights.refuse(guests.bind(), by_kernel=not self._guarded)
        listener.listen(_BACKLOG)
        self._send(messages.Open(number), listener.fileno())
        os.close(listener.detach())  # the door has a copy, so the listener stays open

    def _serve_again(self, number: int, door: socket.socket) -> None:
        """Serves a grant by a new door. A failure is retried for as long as the grant and this door live; other grants
        do not wait for it."""
        entry = self._guests.get(number)
        if entry is None or door is not self._socket:
            return
        try:
            self._serve(number, entry.guests)
        except OSError as error:
            log.error("a grant's socket cannot be made: %s", error)  # noqa: TRY400 - the reason is in the line
            self._loop.call_later(_START_AGAIN_S, self._serve_again, number, door)

    def _ping(self) -> None:
        if self._missed == 1:
            self._delay_ns = self._run_delay_ns()
        if self._missed >= _PINGS_MISSED:
            delay_ns = self._run_delay_ns()
            if delay_ns - self._delay_ns < _PING_S * _PINGS_MISSED / 2 * 1e9:
                self._gone("hangs")
                return
            self._missed = 0
        self._missed += 1
        self._dying = [process for process in self._dying if process.poll() is None]
        self._send(messages.Ping())
        self._timer = self._loop.call_later(_PING_S, self._ping)

    def _run_delay_ns(self) -> int:
        """For how long in its life the door could have run but had no CPU."""
        try:
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return self._delay_ns

    def _forget(self, connection: int) -> Guests | None:
        entry = self._entries.pop(connection, None)
        if entry is None:
            return None
        entry.connections.discard(connection)
        return entry.guests

    # Messages.

    def _send(self, message: messages.FromDaemon, descriptor: int | None = None) -> None:
        if self._socket.fileno() >= 0:
            self._outbox.send(messages.encode(message), descriptor)

    @staticmethod
    def _dispose(unsent: list[int]) -> None:
        for descriptor in unsent:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                rights.GuardedSocket(fileno=descriptor).close()  # tenants may have connected to this listener
            else:
                os.close(descriptor)

    def _receive(self) -> None:
        began = self._loop.time()
        for _ in range(_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, messages.MESSAGE_MAX, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._gone("has ended")
                return
            self._handle(messages.from_door(data), descriptors[0] if descriptors else None)
        # A flood of requests takes at most half of the loop's time.
        self._loop.remove_reader(self._socket)
        reader = self._socket
        self._loop.call_later(self._loop.time() - began, self._read_on, reader)

    def _read_on(self, reader: socket.socket) -> None:
        if reader is self._socket and reader.fileno() >= 0:
            self._loop.add_reader(reader, self._receive)

    def _handle(self, message: messages.FromDoor, descriptor: int | None) -> None:
        match message:
            case messages.Asked(grant, connection, pid, uid, gid, request):
                if (entry := self._guests.get(grant)) is not None:
                    self._entries[connection] = entry
                    entry.connections.add(connection)
                    entry.guests.asked(connection, Peer(pid, uid, gid), descriptor, request)
                elif descriptor is not None:
                    os.close(descriptor)
            case messages.Ended(connection, delivered):
                if (guests := self._forget(connection)) is not None:
                    guests.ended(connection, delivered=delivered)
            case messages.Looked(pid, word):
                for answer in self._looks.pop(pid, ()):
                    if not answer.done():
                        answer.set_result(word)
            case messages.Pong():
                self._missed = 0
