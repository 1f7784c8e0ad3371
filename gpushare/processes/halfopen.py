"""HTTP for clients that close their sending half after the request, as socat and `nc -N` do: aiohttp would drop the
answer. Used by all servers that aiohttp makes."""

import select
import socket
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler


def has_gone(connection: socket.socket) -> bool:
    """Whether nobody can read what is written to it any more. False for a peer that only sends no more."""
    if connection.fileno() < 0:
        return True  # already closed on this side too
    poll = select.poll()
    poll.register(connection, select.POLLHUP)  # not POLLRDHUP: a peer that sends no more may still read
    return bool(poll.poll(0))


class HalfOpen(RequestHandler):
    """A connection that ends, once the peer sends no more, after the answers to what it has sent."""

    __slots__ = ("_ended",)

    def __init__(self, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._ended = False

    @property
    def gone(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.transport is None or has_gone(self.transport.get_extra_info("socket"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """See asyncio.Protocol: whether the connection stays open."""
        waits = self._waiter is not None or not self._request_count  # for a request, which does not come any more
        if self.gone or (waits and not self._messages):
            return False
        self._ended = True
        if self._current_request is not None:
            _cut(self._current_request.content)
        if not self._messages:
            self.close()
        return True

    def begins(self, request: web.BaseRequest) -> None:
        """To be called when a request begins to be served."""
        if self._ended:
            _cut(request.content)
            if not self._messages:
                self.close()


def _cut(body: Any) -> None:
    """The rest of a request's body, if any, does not come."""
    if not body.is_eof():
        body.set_exception(web.RequestPayloadError("the connection ended in it"))
        body.feed_eof()
