"""Connections of a server that anybody on the machine can reach: few, and none lasts without a page that reads."""

import asyncio
from typing import Any

from aiohttp import web

CONNECTIONS_MAX = 96
CONNECTION_SECONDS = 15.0
"""From the connection to the end of its answer, but for streams."""


class Connections:
    """Makes the protocols of `server`. Where there are too many, the one that is open longest makes room: who opens
    many without a token ends his own."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._open: dict[Any, asyncio.TimerHandle] = {}
        """In the order in which they came; those that have ended stay until their time is over."""

    def __call__(self) -> asyncio.Protocol:
        """Of a connection that has come."""
        handler = self._server()
        loop = asyncio.get_running_loop()
        self._open[handler] = loop.call_later(CONNECTION_SECONDS, self._end, handler)
        if len(self._open) > CONNECTIONS_MAX:
            self._end(next(iter(self._open)))
        return handler

    def keep(self, request: web.Request) -> None:
        """Its connection lasts: a page reads from it. Whoever calls this ends it."""
        timer = self._open.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()

    def _end(self, handler: Any) -> None:
        self._open.pop(handler).cancel()
        if handler.transport is not None:
            handler.transport.abort()
