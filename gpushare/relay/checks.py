"""The relay's end of a connection for a link check (gpushare/relay/wire.py)."""

import math
import struct
from collections.abc import Callable

from gpushare.relay import wire
from gpushare.relay.loop import IN, OUT, Loop
from gpushare.relay.streams import CHUNK, Data, Plain

_ZEROS = bytes(CHUNK)
_REQUEST = struct.Struct("<B" + wire.CHECK_SECONDS_FORMAT.lstrip("<"))
_COUNT = struct.Struct("<Q")
_GRACE_SECONDS = 1.0
"""For the client to read the rest, and to close."""


class Check:
    """Owns the stream. `ended` is called once when it is over, not from the constructor. `greeting`: what the client
    gets first."""

    def __init__(self, loop: Loop, stream: Plain, ended: Callable[["Check"], None], greeting: bytes) -> None:
        self._loop, self._stream, self._ended = loop, stream, ended
        self._request = b""
        self._kind: wire.Check | None = None
        self._count = 0
        self._answered = self._closed = False
        loop.after(wire.CHECK_SECONDS_MAX + _GRACE_SECONDS, self.close)
        self._greeting = greeting
        loop.after(0, lambda: self._happened(0))

    def close(self) -> None:
        """Cuts it, unless it is over."""
        if not self._closed:
            self._closed = True
            self._loop.forget(self._stream.fileno())
            self._stream.abort()
            self._ended(self)

    def _happened(self, events: int) -> None:
        if self._closed:
            return
        try:
            if events & OUT:
                self._stream.flush()
            if self._greeting:
                greeting, self._greeting = self._greeting, b""
                self._stream.put(greeting)
            if self._stream.rest:
                rest, self._stream.rest = self._stream.rest, b""
                self._heard(rest)
            if events & ~OUT:
                self._heard(self._stream.take(max(16 << 10, CHUNK // self._loop.events)))
            if self._kind is wire.Check.SOURCE and not self._answered and not self._stream.unsent:
                self._stream.put(_ZEROS[: max(16 << 10, CHUNK // self._loop.events)])
            if self._stream.over:
                self._finish()
        except (OSError, ValueError):
            self.close()
            return
        self._watch()

    def _heard(self, data: Data) -> None:
        if self._kind is None:
            self._request += data
            if len(self._request) < _REQUEST.size:
                return
            data = self._request[_REQUEST.size :]
            self._begin(*_REQUEST.unpack_from(self._request))
        if self._kind is wire.Check.ECHO and data:
            self._stream.put(data)
        self._count += len(data)

    def _begin(self, kind: int, seconds: float) -> None:
        if not math.isfinite(seconds) or not 0 <= seconds <= wire.CHECK_SECONDS_MAX:
            raise ValueError("no such time")
        self._kind = wire.Check(kind)
        self._loop.after(seconds, self._time_over)

    def _time_over(self) -> None:
        if self._closed:
            return
        try:
            self._answer()
        except OSError:
            self.close()
            return
        self._watch()

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        if self._kind is wire.Check.SINK:
            self._stream.put(_COUNT.pack(self._count))
        if self._kind is not wire.Check.ECHO:
            self._stream.end()

    def _finish(self) -> None:
        """The client has ended its half."""
        if self._kind is not None:
            self._answer()
        if not self._stream.unsent:
            self._closed = True
            self._loop.forget(self._stream.fileno())
            self._stream.end()
            self._stream.close()
            self._ended(self)

    def _watch(self) -> None:
        if self._closed:
            return
        stream = self._stream
        sends = stream.unsent or (self._kind is wire.Check.SOURCE and not self._answered)
        jammed = stream.over or (self._kind is wire.Check.ECHO and stream.unsent)
        self._loop.watch(stream.fileno(), (OUT if sends else 0) | (0 if jammed else IN), self._happened)
