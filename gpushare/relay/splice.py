"""Joins two connections: what comes from one goes to the other, both ways, until both halves have ended.

Nothing is read from a connection while the other has not taken what came before, so each direction holds at most what
one read gives. An end of one half is passed on; a connection that breaks breaks the other.
"""

import socket
from collections.abc import Callable

from gpushare.relay.loop import ERR, IN, OUT, Loop
from gpushare.relay.streams import CHUNK, Data, Plain

_LEAST = 16 << 10
"""Bytes that a connection may always have read in a turn, however many others there are."""
_HELD_MAX = 256 << 20
"""About what all connections together hold at most, unless each holds _LEAST only."""


class Splice:
    """Owns both streams. `there`: bytes from the first to the second so far; `back`: the other way."""

    def __init__(
        self,
        loop: Loop,
        one: Plain,
        other: Plain,
        ended: Callable[["Splice"], None],
        greeting: bytes = b"",
    ) -> None:
        """Both are connected, a TLS stream established. `ended` is called once when it is over, whichever way, in the
        loop's thread, but not from here. `greeting`: what the first gets before all else; it is not counted."""
        self._loop, self._ended = loop, ended
        self.one, self.other = one, other
        self.there = self.back = 0
        self.broken = False
        """It did not end by the ends of both halves."""
        self._closed = False
        loop.splices += 1
        self._events = {one: 0, other: 0}
        try:
            for stream in (one, other):
                stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if greeting:
                one.put(greeting)
            for source, sink in ((one, other), (other, one)):
                self._hand_on(source, sink, source.rest)
        except OSError:
            loop.after(0, self.close)
        else:
            loop.after(0, self._watch)

    def close(self) -> None:
        """Cuts both connections, unless it is over."""
        self._finish(broken=True)

    # Events.

    def _one(self, events: int) -> None:
        self._happened(events, self.one, self.other)

    def _two(self, events: int) -> None:
        self._happened(events, self.other, self.one)

    def _happened(self, events: int, mine: Plain, theirs: Plain) -> None:
        try:
            if events & OUT:
                mine.flush()
            if events & ~OUT and not theirs.unsent and not mine.over:
                self._hand_on(mine, theirs, mine.take(self._share()))
                if events == IN and not (theirs.unsent or mine.unsent or mine.over):
                    return  # nothing to change: the usual case
            elif events & ERR:
                raise ConnectionError
        except OSError:
            self._finish(broken=True)
            return
        self._watch()

    def _share(self) -> int:
        loop = self._loop
        return max(_LEAST, min(CHUNK // loop.events, _HELD_MAX // (2 * loop.splices)))

    def _hand_on(self, source: Plain, sink: Plain, data: Data) -> None:
        if data:
            if source is self.one:
                self.there += len(data)
            else:
                self.back += len(data)
            sink.put(data)
        if source.over:
            sink.end()

    def _watch(self) -> None:
        """Watches for what can be done next."""
        if self._closed:
            return
        one, other = self.one, self.other
        if one.over and other.over and not one.unsent and not other.unsent:
            self._finish(broken=False)
            return
        for mine, theirs, happened in ((one, other, self._one), (other, one, self._two)):
            events = (OUT if mine.unsent else 0) | (0 if mine.over or theirs.unsent else IN)
            if events != self._events[mine]:
                self._events[mine] = events
                self._loop.watch(mine.fileno(), events, happened)

    def _finish(self, *, broken: bool) -> None:
        if self._closed:
            return
        self._closed, self.broken = True, broken
        self._loop.splices -= 1
        for stream in (self.one, self.other):
            self._loop.forget(stream.fileno())
            if broken:
                stream.abort()
            else:
                stream.close()
        self._ended(self)
