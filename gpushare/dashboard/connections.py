"""Bounds the connections of a server that any user of the machine can reach: their number, and their duration except
for streams to a page."""

import asyncio
from typing import Any

from aiohttp import web

CONNECTIONS_MAX = 96
CONNECTION_SECONDS = 15.0
"""Maximum time from connecting to the end of the answer, except for streams."""


class Connections:
    """Protocol factory for `server`. Above CONNECTIONS_MAX the oldest connection without a stream is closed: a client
    that opens many without a token closes its own."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._open: dict[Any, asyncio.TimerHandle] = {}
        """In order of arrival; connections that have ended stay until their timers fire."""

    def __call__(self) -> asyncio.Protocol:
        """Makes the protocol of a new connection."""
        handler = self._server()
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
