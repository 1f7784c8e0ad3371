"""Connections that have not shown a ticket: a bounded crowd of strangers, each with little time and few bytes."""

import contextlib
import errno
import ipaddress
import select
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.relay import limits, tcp
from gpushare.relay.loop import IN, OUT, Loop
from gpushare.relay.streams import Plain, Tls
from gpushare.relay.wire import MAGIC, PREAMBLE, Preamble

_ACCEPTS_PER_TURN = 2
_STRANGERS_PER_TURN = 8
"""A part of a handshake takes as long as a hundred small messages of those who are inside, so few are served at once.
Many more than are accepted: who has a ticket shows it before newer ones have pushed him out."""
_PAUSE_SECONDS = 0.05
"""For which nothing is accepted when no descriptor is left."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TLS_RECORD = b"\x16"


@dataclass(slots=True, eq=False)
class Arrival:
    """A connection that has sent a preamble. `address`: the client's host."""

    preamble: Preamble
    stream: Plain
    address: str

    @property
    def link(self) -> str:
        """`tls` or `plain`."""
        return "tls" if isinstance(self.stream, Tls) else "plain"


@dataclass(slots=True, eq=False)
class _Stranger:
    socket: socket.socket
    address: str
    source: str
    since: float
    stream: Plain | None = None
    came: bytes = b""
    events: int = IN


class Arrivals:
    """Takes connections from a listener until they have sent a preamble."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        context: ssl.SSLContext,
        times: limits.Times,
        arrived: Callable[[Arrival], None],
    ) -> None:
        """`arrived` owns the stream; nothing watches it."""
        self._loop, self._listener, self._context, self._times = loop, listener, context, times
        self._arrived = arrived
        self._strangers: dict[_Stranger, None] = {}
        """The oldest first."""
        self._sources: dict[str, dict[_Stranger, None]] = {}
        self._by_descriptor: dict[int, _Stranger] = {}
        self._poll = select.epoll()
        """Of the strangers alone: it hands out the next few, in turn."""
        loop.watch(self._poll.fileno(), IN, self._some)
        listener.setblocking(False)
        loop.watch(listener.fileno(), IN, self._accept)
        self._sweep()

    def close(self) -> None:
        """Takes no more, and closes those that are here."""
        for stranger in list(self._strangers):
            self._close(stranger)
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener.fileno())
            self._listener.close()

    def _accept(self, _: int) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if error.errno in _FULL:
                    self._pause()
                return
            try:
                tcp.prepare(sock, self._times.silent)
            except OSError:
                sock.close()
                continue
            host = tcp.host_of(address)
            self._take(_Stranger(sock, host, _source(host), self._loop.now()))

    def _pause(self) -> None:
        if self._strangers:
            self._close(next(iter(self._strangers)))
        self._loop.forget(self._listener.fileno())
        self._loop.after(_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), IN, self._accept)

    def _take(self, stranger: _Stranger) -> None:
        neighbours = self._sources.get(stranger.source, {})
        if len(neighbours) >= limits.STRANGERS_OF_ONE_MAX:
            self._close(next(iter(neighbours)))
        elif len(self._strangers) >= limits.STRANGERS_MAX:
            # A crowd has few addresses. A client with a ticket has one of its own, and may be slower than the crowd.
            largest = max(self._sources.values(), key=len)
            self._close(next(iter(largest)))
        stranger.socket.setblocking(False)
        self._strangers[stranger] = self._sources.setdefault(stranger.source, {})[stranger] = None
        self._by_descriptor[stranger.socket.fileno()] = stranger
        self._poll.register(stranger.socket, IN)

    def _some(self, _: int) -> None:
        for descriptor, events in self._poll.poll(0, _STRANGERS_PER_TURN):
            stranger = self._by_descriptor.get(descriptor)
            if stranger is None:
                continue
            try:
                self._serve(stranger, events)
            except Exception:  # a defect, or no memory: the loop would look at no stranger any more
                if stranger in self._strangers:
                    self._close(stranger)
                sys.excepthook(*sys.exc_info())

    def _serve(self, stranger: _Stranger, events: int) -> None:
        try:
            arrival = self._read(stranger, events)
        except BlockingIOError:
            return
        except OSError:
            self._close(stranger)
            return
        if arrival is not None:
            self._forget(stranger)
            self._arrived(arrival)

    def _read(self, stranger: _Stranger, events: int) -> Arrival | None:
        stream = stranger.stream
        if stream is None:
            stream = stranger.stream = self._begin(stranger.socket)
        if events & OUT:
            stream.flush()
        if isinstance(stream, Tls):
            came = stream.take(limits.STRANGER_BYTES_MAX - stream.received + 1)
        else:
            came = stream.take(PREAMBLE.size - len(stranger.came))
        stranger.came += came
        if len(stranger.came) >= PREAMBLE.size:
            preamble = Preamble.unpack(stranger.came[: PREAMBLE.size])
            if preamble is None:
                raise ConnectionError("no preamble of this version")
            stream.rest = stranger.came[PREAMBLE.size :]
            return Arrival(preamble, stream, stranger.address)
        if stream.over or stream.received > limits.STRANGER_BYTES_MAX:
            raise ConnectionError("it has ended, or sent too much")
        wanted = IN | OUT if stream.unsent else IN
        if wanted != stranger.events:
            stranger.events = wanted
            self._poll.modify(stranger.socket, wanted)
        return None

    def _begin(self, sock: socket.socket) -> Plain:
        first = sock.recv(1, socket.MSG_PEEK)
        if first == _TLS_RECORD:
            return Tls(sock, self._context, server=True)
        if first == MAGIC[:1]:
            return Plain(sock)
        raise ConnectionError("neither TLS nor a preamble")

    def _sweep(self) -> None:
        before = self._loop.now() - self._times.preamble
        for stranger in list(self._strangers):
            if stranger.since > before:
                break
            self._close(stranger)
        self._loop.after(self._times.preamble / 10, self._sweep)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger]
        neighbours = self._sources[stranger.source]
        del neighbours[stranger]
        if not neighbours:
            del self._sources[stranger.source]
        del self._by_descriptor[stranger.socket.fileno()]
        self._poll.unregister(stranger.socket)

    def _close(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        with contextlib.suppress(OSError):
            stranger.socket.close()


def _source(host: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 of an IPv6 one, which a host may have all of."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host, 64), strict=False))
