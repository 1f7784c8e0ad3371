"""Serves the page, the data that it reads and, if allowed, the changes that it makes."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from gpushare import __version__
from gpushare.dashboard import guard, usage
from gpushare.dashboard.connections import Connection, Connections
from gpushare.dashboard.guard import Refusal
from gpushare.dashboard.node import Node
from gpushare.dashboard.readers import Reader, Readers, encoded
from gpushare.errors import GpushareError, UsageError
from gpushare.policy.usage.billing import Prices

BODY_MAX = 4096
_SEND_SECONDS = 10.0
"""A page that reads nothing for this long is disconnected."""
_BEAT_SECONDS = 15.0
_ASKING = 4
"""Maximum concurrent queries about single grants, of all pages together."""

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PAGE = Path(__file__).with_name("page")


def assets() -> dict[str, tuple[str, bytes]]:
    """Reads the page's files; returns media type and content by path. To be called before root's rights are given up:
    the files may not be readable afterwards."""
    found = {f"/{path.name}": (_TYPES[path.suffix], path.read_bytes()) for path in _PAGE.iterdir() if path.is_file()}
    found["/"] = found.pop("/index.html")
    return found


class Site:
    """The site of one dashboard."""

    def __init__(
        self,
        nodes: Sequence[Node],
        readers: Readers,
        token: str,
        pages: dict[str, tuple[str, bytes]],
        prices: Prices | None = None,
        **about: Any,
    ) -> None:
        """`about`: `changes`: whether the page may release and resize grants; `user`: name of this process's user."""
        self._nodes, self._readers, self._token, self._pages = nodes, readers, token, pages
        self._about, self._prices = about, prices
        self._asking = asyncio.Semaphore(_ASKING)
        self._connections: Connections | None = None

    async def start(self, listener: Any) -> web.AppRunner:
        """Serves on a bound socket. The caller must call `cleanup` of the result."""
        application = web.Application(client_max_size=BODY_MAX, middlewares=[self._checked])
        application.on_response_prepare.append(guard.with_headers)
        application.router.add_get("/api/stream", self._stream, allow_head=False)
        application.router.add_get("/api/grant", self._grant, allow_head=False)
        application.router.add_get("/api/usage", self._usage, allow_head=False)
        application.router.add_post("/api/release", self._release)
        application.router.add_post("/api/resize", self._resize)
        application.router.add_get("/{name:.*}", self._page)
        runner = web.AppRunner(application, shutdown_timeout=1.0)
        await runner.setup()
        server = runner.server
        assert server is not None
        self._connections = Connections(lambda: Connection(server))
        await asyncio.get_running_loop().create_server(self._connections, sock=listener, backlog=64)
        return runner

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Checks a request and turns errors into one-line answers. Every answer closes its connection."""
        assert isinstance(request.protocol, Connection)
        request.protocol.begins(request)
        try:
            _check_plain(request)
            if not request.path.startswith("/api/"):
                guard.check_page(request.headers)
            elif request.method == "POST":
                guard.check_change(request.headers, self._token, allowed=self._about["changes"])
            else:
                guard.check_call(request.headers, self._token)
            response: web.StreamResponse = await handler(request)
        except Refusal as error:
            response = _error(error.status, str(error))
        except GpushareError as error:
            response = _error(error.http_status, str(error))
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        response.force_close()
        return response

    async def _page(self, request: web.Request) -> web.Response:
        if request.path not in self._pages:
            return _error(404, "there is no such page")
        media, body = self._pages[request.path]
        return web.Response(body=body, content_type=media, charset="utf-8")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._readers.full:
            raise Refusal(503, "too many pages are open: close some")
        assert self._connections is not None
        self._connections.keep(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        reader = self._readers.join()
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await response.prepare(request)
                await response.write(self._first())
            await _send(response, reader)
        except (OSError, TimeoutError):
            pass
        finally:
            self._readers.leave(reader)
            if request.transport is not None:
                request.transport.abort()
        return response

    def _first(self) -> bytes:
        """Returns the whole state, for a page that has just opened."""
        nodes = [{"name": node.source.name, "host": node.source.host} for node in self._nodes]
        hello = encoded({"hello": {"nodes": nodes, "version": __version__, **self._about}})
        return hello + b"".join(message for node in self._nodes for message in node.snapshot())

    def _node(self, number: str | int) -> Node:
        """Returns the node of this number. Raises UsageError if there is none."""
        with contextlib.suppress(ValueError, IndexError):
            if (found := int(number)) >= 0:
                return self._nodes[found]
        raise UsageError("there is no such node")

    async def _grant(self, request: web.Request) -> web.Response:
        node, name = self._node(request.query.get("node", "")), request.query.get("id", "")
        async with self._asking:
            return web.json_response(await node.about(name))

    async def _usage(self, request: web.Request) -> web.Response:
        query = request.query
        nodes = self._nodes if query.get("node", "all") == "all" else [self._node(query["node"])]
        question = usage.Question(query, self._prices)
        async with self._asking:
            found, missing = await usage.answers(nodes, question)
            if query.get("format") == "csv":
                return web.Response(text=usage.as_csv(found, question), content_type="text/csv", charset="utf-8")
            return web.json_response(usage.shown(found, missing, question))

    async def _release(self, request: web.Request) -> web.Response:
        body = await _body(request, {"node": int, "grant": str})
        await self._node(body["node"]).client.release(body["grant"])
        return web.json_response({})

    async def _resize(self, request: web.Request) -> web.Response:
        body = await _body(request, {"node": int, "grant": str, "memory": str, "time": str})
        change = {name: body[name] for name in ("memory", "time") if body.get(name)}
        await self._node(body["node"]).client.resize(body["grant"], **change)
        return web.json_response({})


def _check_plain(request: web.Request) -> None:
    """Raises Refusal for a body in chunks: one-byte chunks cost a hundred times what they carry."""
    if "Transfer-Encoding" in request.headers:
        assert isinstance(request.protocol, Connection)
        request.protocol.do_not_linger()
        raise Refusal(411, "the request's body is in chunks: send it with a Content-Length")


async def _send(response: web.StreamResponse, reader: Reader) -> None:
    """Sends messages until the page is gone or too slow. Raises OSError or TimeoutError."""
    while text := await reader.take(_BEAT_SECONDS):
        async with asyncio.timeout(_SEND_SECONDS):
            await response.write(text)


async def _body(request: web.Request, fields: dict[str, type]) -> Any:
    """Parses the body: an object with only these fields, of which the first two are required. Raises UsageError."""
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise UsageError("the body is no JSON") from None
    first, second, *_ = fields
    known = isinstance(body, dict) and all(type(value) is fields.get(name) for name, value in body.items())
    if not known or first not in body or second not in body:
        raise UsageError(f"the body has to be an object with {', '.join(fields)}")
    return body


def _error(status: int, why: str) -> web.Response:
    return web.json_response({"error": why}, status=status)
