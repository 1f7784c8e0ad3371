"""The sockets of grants and the connections to them, without the daemon: accepts, reads one request, answers, watches.

A connection is `waiting` until its request has come, `asked` until the daemon answers, and `answered` from then on:
nothing more is read from it, and only its end matters.
"""

import contextlib
import os
import resource
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare.door.messages import REQUEST_MAX, Asked, Ended, FromDoor

_SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module

# Per grant: twice as many as a full grant has processes (an exec joins before the old image's connection has ended).
_CONNECTIONS_MAX = 2048
# Requests of one grant that the daemon has not answered: bounds how long its crowd delays the other grants.
_ASKED_MAX = 64
# Rate limit of a grant's connections: a burst, since a full grant joins all its processes at once, then per second.
_CROWD, _PER_SECOND = 2048, 200
_SILENT_S = 10.0
"""The interposer sends its request at once: a connection without one is closed after this time."""
_TICK_S = 1.0
_PAUSE_S = 0.1
"""How long a listener is left alone after a failed accept(), as when no descriptors are left."""

Send = Callable[[FromDoor, int | None], None]


@dataclass(slots=True, eq=False)
class _Connection:
    number: int
    socket: socket.socket
    grant: "_Grant"
    since: float
    answered: bool = False


@dataclass(slots=True, eq=False)
class _Grant:
    number: int
    listener: socket.socket
    connections: dict[int, _Connection] = field(default_factory=dict)
    asked: int = 0
    ready: deque[_Connection] = field(default_factory=deque)
    """Connections whose requests are not read yet, since the daemon has _ASKED_MAX of this grant's."""
    credit: float = _CROWD
    credited_at: float = 0.0


class Grants:
    """All open sockets, in one epoll."""

    def __init__(self, poll: select.epoll, send: Send) -> None:
        """`send`: passes a message to the daemon, with a descriptor that stays the caller's."""
        self._poll, self._send = poll, send
        self._grants: dict[int, _Grant] = {}
        self._connections: dict[int, _Connection] = {}
        self._by_descriptor: dict[int, _Grant | _Connection] = {}
        self._numbers = 0
        self._resting: dict[_Grant, float] = {}
        """Paused listeners' grants, and until when."""
        self._silent_checked = time.monotonic()
        # Half of the descriptors stay free for listeners and for what the daemon passes.
        self._connections_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    # What the daemon asks for.

    def open(self, number: int, listener: socket.socket) -> None:
        """Serves a listener from now on, and owns it."""
        listener.setblocking(False)
        grant = self._grants[number] = _Grant(number, listener, credited_at=time.monotonic())
        self._watch(grant, listener, select.EPOLLIN)

    def shut(self, number: int) -> None:
        """Closes a grant's listener and connections. An unknown number is ignored."""
        grant = self._grants.pop(number, None)
        if grant is None:
            return
        for connection in list(grant.connections.values()):
            self._close(connection)
        self._unwatch(grant.listener)
        grant.listener.close()

    def answer(self, number: int, message: bytes, bell: int | None) -> None:
        """Sends an answer. `bell`: a descriptor to send with it; without one the connection is closed afterwards."""
        connection = self._connections.get(number)
        if connection is None:
            return
        connection.grant.asked -= 1
        self._read_on(connection.grant)
        try:
            if bell is None:
                connection.socket.send(message)
            else:
                socket.send_fds(connection.socket, [message], [bell])
        except OSError:
            self._close(connection)
            self._send(Ended(number, answered=False), None)
            return
        if bell is None:
            self._close(connection)
            return
        # A process has nothing more to say: later sends fail at its end, what it has already sent is dropped.
        connection.answered = True
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RD)
            while connection.socket.recv(REQUEST_MAX):
                pass
        self._watch(connection, connection.socket, 0)  # its end is reported all the same (EPOLLHUP)

    def hang_up(self, number: int) -> None:
        """Closes a connection, which had an answer or waits for one. An unknown number is ignored."""
        connection = self._connections.get(number)
        if connection is None:
            return
        self._close(connection)
        if not connection.answered:
            connection.grant.asked -= 1
            self._read_on(connection.grant)

    # What tenants do.

    def happened(self, descriptor: int) -> None:
        """Handles an event of a watched descriptor."""
        found = self._by_descriptor.get(descriptor)
        if isinstance(found, _Grant):
            self._accept(found)
        elif found is not None and found.answered:
            self._close(found)
            self._send(Ended(found.number, answered=True), None)
        elif found is not None:
            self._read(found)

    def _accept(self, grant: _Grant) -> None:
        now = time.monotonic()
        grant.credit = min(_CROWD, grant.credit + (now - grant.credited_at) * _PER_SECOND)
        grant.credited_at = now
        if grant.credit < 1:
            self._rest(grant, now + 1 / _PER_SECOND)
            return
        try:
            connection, _ = grant.listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._rest(grant, now + _PAUSE_S)
            return
        grant.credit -= 1
        if len(grant.connections) >= _CONNECTIONS_MAX or len(self._connections) >= self._connections_max:
            connection.close()
            return
        connection.setblocking(False)
        self._numbers += 1
        made = _Connection(self._numbers, connection, grant, now)
        grant.connections[made.number] = self._connections[made.number] = made
        self._watch(made, connection, select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        grant = connection.grant
        if grant.asked >= _ASKED_MAX:
            self._unwatch(connection.socket)
            grant.ready.append(connection)
            return
        try:
            message = connection.socket.recv(REQUEST_MAX)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._close(connection)
            self._read_on(grant)
            return
        self._unwatch(connection.socket)
        grant.asked += 1
        self._ask(connection, message)

    def _ask(self, connection: _Connection, message: bytes) -> None:
        pid, uid, gid = struct.unpack("iII", connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        pidfd = _pidfd(connection.socket, pid)
        self._send(Asked(connection.grant.number, connection.number, pid, uid, gid, message), pidfd)
        if pidfd is not None:
            os.close(pidfd)

    def _read_on(self, grant: _Grant) -> None:
        """Watches this grant's `ready` connections again, as many as the daemon takes more requests."""
        for _ in range(_ASKED_MAX - grant.asked):
            if not grant.ready:
                break
            connection = grant.ready.popleft()
            if connection.number in self._connections:
                self._watch(connection, connection.socket, select.EPOLLIN)

    # Time.

    def tick(self) -> float:
        """Resumes paused listeners whose time has come, and closes silent connections. Returns the seconds until the
        next call."""
        now = time.monotonic()
        for grant in [grant for grant, until in self._resting.items() if until <= now]:
            del self._resting[grant]
            if grant.number in self._grants:
                self._watch(grant, grant.listener, select.EPOLLIN)
        if now >= self._silent_checked + _TICK_S:
            self._silent_checked = now
            self._close_silent(now - _SILENT_S)
        return max(0.0, min([*self._resting.values(), now + _TICK_S]) - now)

    def _close_silent(self, before: float) -> None:
        for grant in self._grants.values():
            silent = [each for each in grant.connections.values() if each.since < before]
            for connection in silent:
                if connection.socket.fileno() in self._by_descriptor and not connection.answered:
                    self._close(connection)

    def _rest(self, grant: _Grant, until: float) -> None:
        self._unwatch(grant.listener)
        self._resting[grant] = until

    # Descriptors.

    def _watch(self, which: _Grant | _Connection, watched: socket.socket, events: int) -> None:
        self._by_descriptor[watched.fileno()] = which
        self._poll.register(watched, events)

    def _unwatch(self, watched: socket.socket) -> None:
        if self._by_descriptor.pop(watched.fileno(), None) is not None:
            self._poll.unregister(watched)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.number]
        connection.grant.connections.pop(connection.number, None)
        self._unwatch(connection.socket)
        connection.socket.close()


def _pidfd(connection: socket.socket, pid: int) -> int | None:
    """A pidfd of the connecting process; None when it is gone.

    The kernel's own descriptor of the peer where it has one (SO_PEERPIDFD, Linux 6.5). Otherwise opened by pid, which
    is another process only if the peer has ended and its pid was reused while the connection was still unread.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
