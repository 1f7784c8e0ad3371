"""The handlers of the node API: decode, call, encode. The connection, never the body, says which user asks."""

import asyncio
import contextlib
import logging
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from gpushare import __version__
from gpushare.api import engines, types
from gpushare.api import events as event_types
from gpushare.daemon import debug, metrics, openapi, placement, receipts, view
from gpushare.daemon.node import NodeContext
from gpushare.daemon.peer import Peer
from gpushare.daemon.reception import SEND_SECONDS, Connection, Turns, refusal
from gpushare.daemon.routes import ROUTES, Route
from gpushare.daemon.state import GrantRecord, Live, decode
from gpushare.errors import FailedError, ForbiddenError, GpushareError, MethodError, NotFoundError, UsageError

BODY_SECONDS = 20.0
LARGE_BYTES = 1 << 20
LARGE_AT_ONCE = 1  # of bodies larger than LARGE_BYTES; the others wait unread
ENDED_SHOWN = 100
API_VERSION = "v1"
FEATURES = ["grants", "resize", "oci", "hooks", "watch", "events", "metrics", "tenants"]

_BODY = web.RequestKey("body", bytearray)

log = logging.getLogger(__name__)

T = TypeVar("T")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _socket(request: web.Request) -> Any:
    if request.transport is None:
        raise UsageError("the connection is gone")
    return request.transport.get_extra_info("socket")


def _connection(request: web.Request) -> Connection:
    assert isinstance(request.protocol, Connection)
    return request.protocol


def _peer(request: web.Request) -> Peer:
    return _connection(request).peer


def _decoded(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(request.pop(_BODY), type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"the request's body is not what {request.path} takes: {error}") from None
    except RecursionError:
        raise UsageError(f"the request's body is nested deeper than {request.path} takes") from None


async def _read(request: web.Request, limit: int) -> bytearray:
    too_large = UsageError(f"the request's body is larger than {limit} bytes")
    if (request.content_length or 0) > limit:
        raise too_large
    if "Transfer-Encoding" in request.headers:
        # Chunks of a byte cost a hundred times what they carry.
        _connection(request).do_not_linger()
        raise UsageError("the request's body is in chunks: send it with a Content-Length")
    if "Content-Encoding" in request.headers:
        raise UsageError("the request's body has a Content-Encoding: send it as it is")
    body = bytearray()
    try:
        async with asyncio.timeout(None if request.content.is_eof() else BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise UsageError(f"the request's body did not arrive within {BODY_SECONDS:g} s") from None
    return body


def _check_query(request: web.Request, route: Route) -> None:
    for name in request.query:
        if name not in route.query:
            raise UsageError(f"{request.path} takes no ?{name[:40]}=: GET /openapi.json lists what it takes")
        if len(request.query.getall(name)) > 1:
            raise UsageError(f"{request.path} takes {name} once")
    for name in route.required:
        if not request.query.get(name):
            raise UsageError(f"{request.path} needs ?{name}=")
    for name, schema in route.query.items():
        value = request.query.get(name)
        if value == "":
            raise UsageError(f"{name} is empty: leave it out")
        if value is not None and "enum" in schema and value not in schema["enum"]:
            raise UsageError(f"{value[:40]!r} is no {schema['title']}: {', '.join(schema['enum'])}")


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) >= 1 << 63:
        raise UsageError(f"{name}={text[:40]!r} is not a number")
    return int(text)


def _check_text(request: web.Request) -> None:
    """Headers, and the target with escapes undone, are UTF-8; the target has no control characters. Raises
    UsageError."""
    try:
        for _, value in request.raw_headers:
            value.decode()
        text = unquote_to_bytes(request.raw_path.encode()).decode()
    except UnicodeError:
        raise UsageError("the request's target and headers are not UTF-8") from None
    if not text.isprintable() and any(unicodedata.category(character) == "Cc" for character in text):
        raise UsageError("the request's target has control characters")


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turns every exception of a handler into an answer with the error tree's status and one line."""
    # No error is kept beyond its clause: its traceback and this frame would be a cycle that keeps the body.
    try:
        _check_text(request)
        return await handler(request)
    except GpushareError as error:
        log.debug("refuse call=%s path=%r code=%s reason=%r", request.method, request.path, error.code, str(error))
        answer = refusal(error)
    except web.HTTPMethodNotAllowed as error:
        answer = refusal(_http_error(request, error), {"Allow": ", ".join(sorted(error.allowed_methods))})
    except web.HTTPException as error:
        answer = refusal(_http_error(request, error))
    except web.RequestPayloadError:
        answer = refusal(UsageError("the request's body does not arrive as its header says"))
    except ConnectionResetError:
        raise  # of the caller: nobody is there to answer
    except Exception:
        log.exception("%s %r", request.method, request.path)
        answer = refusal(FailedError("internal error: the daemon's log says which"))
    await _send(request, answer)
    return answer


async def _expected(request: web.Request) -> web.Response | None:
    if request.headers.get("Expect", "").lower() != "100-continue":
        return refusal(UsageError("the request expects what is not there: send it without Expect"))
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None


def _http_error(request: web.Request, error: web.HTTPException) -> GpushareError:
    path = request.path[:80]
    match error:
        case web.HTTPNotFound():
            return NotFoundError(f"no such call: {path}: GET /openapi.json lists them")
        case web.HTTPMethodNotAllowed():
            return MethodError(f"{path} has no {request.method[:10]}: GET /openapi.json lists the calls")
        case _:
            return UsageError(f"{path}: {error.reason}")


async def _send(request: web.Request, answer: web.StreamResponse) -> None:
    """Sends the answer, or ends the connection of a reader that does not take it."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # nobody is there to read it


class Api:
    """A method per route; routes.py says what each is for, takes and answers."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._state, self._grants = context.state, context.grants

    def application(self) -> web.Application:
        """The application with all routes."""
        self._turns, self._large = Turns(), asyncio.Semaphore(LARGE_AT_ONCE)
        application = web.Application(middlewares=[errors])
        for route in ROUTES:
            application.router.add_route(route.method, route.path, self._served(route), expect_handler=_expected)
        return application

    def _served(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]] = getattr(self, route.handler)

        async def serve(request: web.Request) -> web.StreamResponse:
            peer = _peer(request)
            if route.root and not peer.is_root:
                raise ForbiddenError(f"uid {peer.uid} may not do this: ask root")
            _check_query(request, route)
            connection = _connection(request)
            connection.waiting = asyncio.current_task()
            async with contextlib.AsyncExitStack() as held:
                if route.body is not None:
                    if (request.content_length or route.body_max) > LARGE_BYTES:
                        await held.enter_async_context(self._large)
                    request[_BODY] = await _read(request, route.body_max)
                if not route.stream:
                    await held.enter_async_context(connection.user.answers)
                if not route.light:
                    await self._turns.take(peer.uid)
                if route.stream:
                    return await handler(request)
                connection.waiting = None
                answer = await handler(request)
                await _send(request, answer)
                return answer

        return serve

    def _grant(self, live: Live) -> types.Grant:
        return view.grant_view(self._state, live.record, live, self._context.arbiter)

    def _ended(self, record: GrantRecord) -> types.Grant:
        [shown] = view.ended_views(self._state, [record], self._context.arbiter)
        return shown

    # What the node is.

    async def version(self, request: web.Request) -> web.Response:
        del request
        return _json(types.Version(version=__version__, api=API_VERSION, features=FEATURES))

    async def node(self, request: web.Request) -> web.Response:
        del request
        return _json(self._context.facts())

    async def devices(self, request: web.Request) -> web.Response:
        del request
        watch = self._state.watch
        found = await self._context.device_views()
        return _json(types.Devices(epoch=watch.epoch, rv=watch.rv, devices=found))

    async def sim_stats(self, request: web.Request) -> web.Response:
        del request
        return _json(await self._context.sim_stats())

    async def set_sim_device(self, request: web.Request) -> web.Response:
        asked = _decoded(request, types.SimDevice)
        await self._context.set_sim_lost(request.match_info["index"], lost=asked.lost)
        return web.Response(status=204)

    async def metrics(self, request: web.Request) -> web.Response:
        found = await self._context.device_views()
        await self._turns.take(_peer(request).uid)
        text = await metrics.text(self._context, found)
        return web.Response(text=text, content_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})

    async def openapi(self, request: web.Request) -> web.Response:
        del request
        return _json(openapi.document())

    async def events(self, request: web.Request) -> web.Response:
        asked = receipts.Asked(
            after=_number(request, "after"),
            epoch=_number(request, "epoch"),
            limit=_number(request, "limit"),
            grant=request.query.get("grant"),
            tenant=request.query.get("tenant"),
            device=request.query.get("device"),
            kind=request.query.get("kind"),
        )
        return _json(self._context.receipts.events(asked))

    async def waits(self, request: web.Request) -> web.Response:
        del request
        return _json(event_types.Waits(tenants=await self._context.receipts.tenants()))

    # Tenants.

    async def tenants(self, request: web.Request) -> web.Response:
        del request
        watch = self._state.watch
        found = view.tenant_views(self._state)
        return _json(types.Tenants(epoch=watch.epoch, rv=watch.rv, tenants=found))

    async def set_tenant(self, request: web.Request) -> web.Response:
        policy = _decoded(request, types.TenantPolicy)
        return _json(self._context.set_tenant(request.match_info["name"], policy))

    async def remove_tenant(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._context.remove_tenant(name)
        return web.Response(status=204)

    # Grants.

    async def grants(self, request: web.Request) -> web.Response:
        watch = self._state.watch
        stands, arbiter = placement.standing(self._state), self._context.arbiter
        found = [view.grant_view(self._state, live.record, live, arbiter, stands) for live in self._state]
        if _number(request, "ended"):
            ended = self._state.ledger.ended_grants(ENDED_SHOWN, decode)
            found += view.ended_views(self._state, ended, arbiter)
        return _json(types.Grants(epoch=watch.epoch, rv=watch.rv, grants=found))

    async def create_grant(self, request: web.Request) -> web.Response:
        peer, asked = _peer(request), _decoded(request, types.GrantRequest)
        member = await self._context.is_member(peer, asked.tenant)
        live, new = self._grants.create(peer, asked, member=member)
        await self._state.ledger.written()
        return _json(self._grant(live), 201 if new else 200)

    async def grant(self, request: web.Request) -> web.Response:
        grant_id = request.match_info["id"]
        if grant_id not in self._state and (ended := self._state.ended(grant_id)) is not None:
            return _json(self._ended(ended))
        live = self._state.live(grant_id)
        return _json(self._grant(live))

    async def debug_grant(self, request: web.Request) -> web.Response:
        return _json(debug.grant(self._grants.owned(_peer(request), request.match_info["id"])))

    async def resize_grant(self, request: web.Request) -> web.Response:
        change = _decoded(request, types.GrantChange)
        live = self._grants.resize(_peer(request), request.match_info["id"], change)
        return _json(self._grant(live))

    async def release_grant(self, request: web.Request) -> web.Response:
        record = self._grants.release(_peer(request), request.match_info["id"])
        await self._context.serving.settled()
        return _json(self._ended(record))

    async def bind_grant(self, request: web.Request) -> web.Response:
        asked = _decoded(request, types.BindRequest)
        live = self._grants.bind(_peer(request), request.match_info["id"], asked, _socket(request))
        await self._context.serving.settled()
        granted = self._context.resources.granted(live.record)
        return _json(view.binding(self._state.layout, live.id, asked.kind, self._context.inject, granted))

    # What engines call.

    async def oci_edit(self, request: web.Request) -> web.Response:
        asked = _decoded(request, engines.OciEditRequest)
        answer = await self._context.containers.edit(_peer(request), asked, _socket(request))
        await self._context.serving.settled()
        return _json(answer)

    async def oci_attempt(self, request: web.Request) -> web.Response:
        await self._context.attempts.look(_decoded(request, engines.OciEditRequest))
        return _json({})

    async def attempts(self, _request: web.Request) -> web.Response:
        return _json(self._context.attempts.shown())

    async def hook_create_runtime(self, request: web.Request) -> web.Response:
        grant_id = request.query["grant"]
        self._state.live(grant_id)
        live = self._context.containers.created(grant_id, {"pid": _decoded(request, engines.ContainerState).pid})
        await self._context.serving.settled()
        return _json(self._grant(live))

    async def hook_poststop(self, request: web.Request) -> web.Response:
        self._context.containers.stopped(request.query["grant"])
        await self._context.serving.settled()
        return _json({})

    # What changes.

    async def watch(self, request: web.Request) -> web.StreamResponse:
        watch = self._state.watch
        since = _number(request, "since")
        if since is None:
            since = watch.rv
        watch.check(since)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        try:
            async for line in watch.lines(since):
                async with asyncio.timeout(SEND_SECONDS):
                    await response.write(line)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the reader left, or the daemon stops
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # it does not read: what waits for it would stay
        except GpushareError as error:
            # The reader is slower than the ring and has to list again, as after a 410.
            body = types.Error(error=types.ErrorBody(code=error.code, message=str(error)))
            await response.write(msgspec.json.encode(body) + b"\n")
        return response
