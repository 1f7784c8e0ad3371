"""The connections of the node socket: who gets one, for how long, and whose call is next.

Members of the group may connect, so no connection is trusted. Each user has a bounded number of connections and of
unread answers, and users' calls are served in rotation. Root's connections are not counted, and it has descriptors in
reserve.
"""

import asyncio
import contextlib
import errno
import os
import re
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod

from gpushare.api import types
from gpushare.daemon.host.logs import Seldom
from gpushare.daemon.host.peer import Peer, credentials
from gpushare.daemon.http.routes import methods
from gpushare.daemon.timing import Timing
from gpushare.errors import FailedError, GpushareError, MakingRoomError, MethodError, UnreachableError, UsageError
from gpushare.processes import rights
from gpushare.processes.halfopen import HalfOpen

USER_CONNECTIONS = 64
ALL_CONNECTIONS = 256
"""Of all users but root, together."""
USER_ANSWERS = 8
ROOT_ANSWERS = 64
REFUSED_BY_KERNEL = True
"""Whether the kernel refuses descriptors that peers send, where it can; tests try the other way too."""

_BACKLOG = 64  # short: a new connection, also root's, waits behind all of it
_ACCEPTS_PER_TURN = 32
_READ_BYTES = 1 << 12  # parsed without a pause, for each connection in each turn: well below a millisecond
_ROOT_READ_BYTES = 1 << 16
_CALLS_PER_TURN = 16
_TURN_SECONDS = 1e-3
_SPARE = 8
_PAUSE_SECONDS = 0.2
_CLOSING_MAX = 256
_LINE_BYTES = 256
_LINE = re.compile(rb"[!#-'*+.^_`|~0-9A-Za-z-]+ ([!-~]+) HTTP/1\.[01]\r?\n", re.ASCII)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def refusal(error: GpushareError, headers: dict[str, str] | None = None) -> web.Response:
    """The HTTP response for an error."""
    estimate = error.estimate_seconds if isinstance(error, MakingRoomError) else None
    said = types.ErrorBody(code=error.code, message=one_line(str(error)), estimate_seconds=estimate)
    body = msgspec.json.encode(types.Error(error=said))
    return web.Response(body=body, status=error.http_status, content_type="application/json", headers=headers)


def one_line(text: str) -> str:
    """Makes a message one line of valid Unicode: messages contain text from requests."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\n", " ")


@dataclass(slots=True)
class User:
    """What one user has at the moment. `answers`: limits answers that are being made or not read yet."""

    peer: Peer
    answers: asyncio.Semaphore
    connections: int = 0


class Turns:
    """Limits the calls per turn of the loop, with users in rotation: whatever others have waiting, a user's next call
    waits for one call of each of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._taken = False
        self._at_once, self._since = 1, 0.0

    async def take(self, uid: int) -> None:
        """Returns when it is this user's turn."""
        if not self._taken:
            self._taken = True
            self._loop.call_soon(self._next)
            return
        future = self._loop.create_future()
        self._waiting.setdefault(uid, deque()).append(future)
        await future

    def _next(self) -> None:
        now = self._loop.time()
        # As many as take a millisecond together: calls of one turn share what they cause, such as new shares.
        self._at_once = min(2 * self._at_once, _CALLS_PER_TURN) if now - self._since < _TURN_SECONDS else 1
        self._since = now
        given = 0
        while self._waiting and given < self._at_once:
            uid, futures = next(iter(self._waiting.items()))
            del self._waiting[uid]
            future = futures.popleft()
            if futures:
                self._waiting[uid] = futures  # behind all others
            if not future.done():
                future.set_result(None)
                given += 1
        self._taken = given > 0
        if given:
            self._loop.call_soon(self._next)


class Connection(HalfOpen):
    """One connection of `peer`, whose requests are served one after the other. `waiting`: the task of a call that has
    done nothing yet, or only writes. It is cancelled with the connection, or abandoned calls would pile up."""

    __slots__ = ("_late", "_reception", "_start", "peer", "user", "waiting")

    def __init__(self, reception: "Reception", user: User, peer: Peer, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=reception.timing.idle,
            tcp_keepalive=False,
            access_log=None,
            lingering_time=reception.timing.linger,
            read_bufsize=_ROOT_READ_BYTES if user.peer.is_root else _READ_BYTES,
            auto_decompress=False,
        )
        self._reception, self.user, self.peer = reception, user, peer
        self.waiting: asyncio.Task[Any] | None = None
        self._start = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        size = _ROOT_READ_BYTES if self.user.peer.is_root else _READ_BYTES
        transport.max_size = size  # type: ignore[attr-defined]
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._start = data[:_LINE_BYTES]  # for an error that ends the connection
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        self._in_time()
        if self.waiting is not None:
            self.waiting.cancel()
        self._reception.left(self.user)

    def pause_writing(self) -> None:
        """See asyncio.Protocol. The write buffer is full: the connection is aborted unless the peer reads soon."""
        super().pause_writing()
        assert self.transport is not None
        self._late = self._loop.call_later(self._reception.timing.send, self.transport.abort)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        self._in_time()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def do_not_linger(self) -> None:
        """Leaves the rest of this request's body unread: the connection ends after the answer."""
        self._lingering_time = 0.0

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers what is not valid HTTP. That is its sender's mistake: it is not logged, or anybody could fill the
        log."""
        del request, message
        if status >= 500:
            if not isinstance(exc, ConnectionError):  # else the caller has gone
                self._reception.seldom.warning("request", "a request failed: %r", exc)
            answer = refusal(FailedError("internal error"))
        elif isinstance(exc, BadHttpMethod) and (allowed := self._methods()):
            answer = refusal(MethodError("no call has this method"), {"Allow": ", ".join(allowed)})
        else:
            answer = refusal(UsageError("the request is not HTTP/1.1 as it should be"))
        answer.force_close()
        return answer

    def _methods(self) -> list[str]:
        """The methods of the path, if the connection's last data begin as a request with a method that HTTP does not
        have."""
        line = _LINE.match(self._start)
        return methods(line[1].decode()) if line is not None else []


@dataclass(slots=True)
class Reception:
    """Accepts connections on a bound socket, which it takes over. `server`: aiohttp's, makes the answers."""

    listener: socket.socket
    server: web.Server
    timing: Timing
    seldom: Seldom = field(default_factory=Seldom)
    _users: dict[int, User] = field(default_factory=dict)
    _spare: list[int] = field(default_factory=list)
    _starting: set["asyncio.Task[Any]"] = field(default_factory=set)
    _pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listens. Descriptors that peers send are refused (gpushare/processes/rights.py)."""
        self.listener = rights.refuse(self.listener, by_kernel=REFUSED_BY_KERNEL)
        self.listener.setblocking(False)
        self.listener.listen(_BACKLOG)
        self._refill()
        self._listen()

    def close(self) -> None:
        """Accepts no more; connections go on."""
        loop = asyncio.get_running_loop()
        if self._pause is not None:
            self._pause.cancel()
        loop.remove_reader(self.listener)
        self.listener.close()
        self._release_spare(len(self._spare))

    def left(self, user: User) -> None:
        """A connection has ended."""
        user.connections -= 1
        if not user.connections:
            self._users.pop(user.peer.uid, None)
        self._refill()

    def _listen(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection = self._next()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Waiting connections stay in the queue, which would wake the loop again at once: accepting pauses.
                loop = asyncio.get_running_loop()
                self.seldom.warning("accept", "the node socket takes no connections for now: %s", error.strerror)
                loop.remove_reader(self.listener)
                self._pause = loop.call_later(_PAUSE_SECONDS, self._listen)
                self._refill()
                return
            if connection is not None:
                self._admit(connection, exhausted=rights.waiting() >= _CLOSING_MAX)

    def _next(self) -> socket.socket | None:
        """Returns the next connection. If there are no descriptors left, it is accepted with one in reserve, admitted
        if it is root's and refused otherwise, and None is returned."""
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED or not self._spare:
                raise
        else:
            return connection
        self._release_spare(1)
        try:
            connection, _ = self.listener.accept()
            self._admit(connection, exhausted=True)
        finally:
            self._refill()
        return None

    def _admit(self, connection: socket.socket, *, exhausted: bool) -> None:
        """`exhausted`: only root gets in."""
        connection.setblocking(False)
        try:
            peer = credentials(connection)
        except OSError:
            connection.close()
            return
        user = self._users.get(peer.uid)
        if not peer.is_root and (full := self._full(peer, user, exhausted)):
            self._refuse(connection, *full)
            return
        if user is None:
            user = User(peer, asyncio.Semaphore(ROOT_ANSWERS if peer.is_root else USER_ANSWERS))
            self._users[peer.uid] = user
        user.connections += 1
        loop = asyncio.get_running_loop()
        made = loop.connect_accepted_socket(lambda: Connection(self, user, peer, self.server), connection)
        task = loop.create_task(made)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _full(self, peer: Peer, user: User | None, exhausted: bool) -> tuple[str, str] | None:
        """Why this peer gets no connection now: a word for the log, and the sentence."""
        if exhausted:
            return "descriptors", "the daemon is short of descriptors: try again later, or ask root what has them"
        if user is not None and user.connections >= USER_CONNECTIONS:
            return "user", f"uid {peer.uid} has {USER_CONNECTIONS} connections: close some, or try again later"
        if sum(one.connections for one in self._users.values() if not one.peer.is_root) >= ALL_CONNECTIONS:
            return "all", f"there are {ALL_CONNECTIONS} connections of users: try again later"
        return None

    def _refuse(self, connection: socket.socket, cause: str, reason: str) -> None:
        self.seldom.warning(cause, "a connection to the node socket is refused: %s", reason)
        answer = refusal(UnreachableError(reason))
        body = bytes(answer.body)  # type: ignore[arg-type]
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
        with contextlib.suppress(OSError):
            connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.close()

    def _refill(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < _SPARE:
                self._spare.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def _release_spare(self, count: int) -> None:
        for _ in range(count):
            os.close(self._spare.pop())
