"""Bounds the connections of a server that any user of the machine can reach: their number, and their duration except
for streams to a page."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gpushare.processes.halfopen import HalfOpen

CONNECTIONS_MAX = 96
CONNECTION_SECONDS = 15.0
"""Maximum time from connecting to the end of the answer, except for streams."""
HEADER_MAX = 4096
_READ_BYTES = 1 << 12  # parsed without a pause, for each connection in each turn: well below a millisecond


class Connection(HalfOpen):
    """One connection. Its bodies are not decompressed: a small one could become an endless one."""

    __slots__ = ()

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            max_line_size=HEADER_MAX,
            max_field_size=HEADER_MAX,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        super().connection_made(transport)

    def do_not_linger(self) -> None:
        """Leaves the rest of this request's body unread: the connection ends after the answer."""
        self._lingering_time = 0.0

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Logs an error of ours. What is not valid HTTP is its sender's mistake: anybody could fill the log with it."""
        if not isinstance(kw.get("exc_info"), HttpProcessingError):
            super().log_exception(*args, **kw)


class Connections:
    """Protocol factory. `make`: makes a connection. Above CONNECTIONS_MAX the oldest connection without a stream is
    closed: a client that opens many without a token closes its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._open: dict[Any, asyncio.TimerHandle] = {}
        """In order of arrival; connections that have ended stay until their timers fire."""

    def __call__(self) -> asyncio.Protocol:
        """Makes the protocol of a new connection."""
        handler: asyncio.Protocol = self._make()
        loop = asyncio.get_running_loop()
        self._open[handler] = loop.call_later(CONNECTION_SECONDS, self._end, handler)
        if len(self._open) > CONNECTIONS_MAX:
            self._end(next(iter(self._open)))
        return handler

    def keep(self, request: web.Request) -> None:
        """Exempts the request's connection from the bounds, for a stream. The caller must close it."""
        timer = self._open.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()

    def _end(self, handler: Any) -> None:
        self._open.pop(handler).cancel()
        if handler.transport is not None:
            handler.transport.abort()
