"""The handlers of the node API: decode, call, encode. The connection, never the body, says which user asks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from gpushare import __version__
from gpushare.api import events as event_types
from gpushare.api import types
from gpushare.daemon import debug, metrics, openapi, placement, receipts, view
from gpushare.daemon.node import NodeContext
from gpushare.daemon.peer import Peer, credentials
from gpushare.daemon.routes import ROUTES
from gpushare.daemon.state import GrantRecord, Live, decode
from gpushare.errors import FailedError, ForbiddenError, GpushareError, NotFoundError, UsageError

BODY_MAX = 16 << 20  # a config.json with thousands of mounts is below 1 MiB
ENDED_SHOWN = 100
API_VERSION = "v1"
FEATURES = ["grants", "resize", "oci", "hooks", "watch", "events", "metrics", "tenants"]

log = logging.getLogger(__name__)

T = TypeVar("T")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _refusal(error: GpushareError) -> web.Response:
    return _json(types.Error(error=types.ErrorBody(code=error.code, message=str(error))), error.http_status)


def _socket(request: web.Request) -> Any:
    if request.transport is None:
        raise UsageError("the connection is gone")
    return request.transport.get_extra_info("socket")


def _peer(request: web.Request) -> Peer:
    return credentials(_socket(request))


def _root(request: web.Request) -> Peer:
    peer = _peer(request)
    if not peer.is_root:
        raise ForbiddenError(f"uid {peer.uid} may not do this: ask root")
    return peer


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"the request's body is not what {request.path} takes: {error}") from None
    except RecursionError:
        raise UsageError(f"the request's body is nested deeper than {request.path} takes") from None


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise UsageError(f"{name}={text[:40]!r} is not a number")
    return int(text)


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turns every exception of a handler into an answer with the error tree's status and one line."""
    try:
        return await handler(request)
    except GpushareError as error:
        log.debug("refuse call=%s path=%r code=%s reason=%r", request.method, request.path, error.code, str(error))
        return _refusal(error)
    except web.HTTPException as error:
        return _refusal(_http_error(request, error))
    except web.RequestPayloadError:
        return _refusal(UsageError("the request's body does not arrive as its header says"))
    except Exception:
        log.exception("%s %s", request.method, request.path)
        return _refusal(FailedError("internal error: the daemon's log says which"))


def _http_error(request: web.Request, error: web.HTTPException) -> GpushareError:
    path = request.path[:80]
    match error:
        case web.HTTPRequestEntityTooLarge():
            return UsageError(f"the request's body is larger than {BODY_MAX} bytes")
        case web.HTTPNotFound():
            return NotFoundError(f"no such call: {path}: GET /openapi.json lists them")
        case web.HTTPMethodNotAllowed():
            return UsageError(f"{path} has no {request.method[:10]}: GET /openapi.json lists the calls")
        case _:
            return UsageError(f"{path}: {error.reason}")


class Api:
    """A method per route; routes.py says what each is for, takes and answers."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._state, self._grants = context.state, context.grants

    def application(self) -> web.Application:
        """The application with all routes."""
        application = web.Application(middlewares=[errors], client_max_size=BODY_MAX)
        for route in ROUTES:
            application.router.add_route(route.method, route.path, getattr(self, route.handler))
        return application

    def _grant(self, record: GrantRecord, live: Live | None) -> types.Grant:
        return view.grant_view(self._state, record, live, self._context.arbiter)

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
        _root(request)
        asked = await _body(request, types.SimDevice)
        await self._context.set_sim_lost(request.match_info["index"], lost=asked.lost)
        return web.Response(status=204)

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        text = metrics.text(self._context, await self._context.device_views())
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
        _root(request)
        policy = await _body(request, types.TenantPolicy)
        return _json(self._context.set_tenant(request.match_info["name"], policy))

    async def remove_tenant(self, request: web.Request) -> web.Response:
        _root(request)
        name = request.match_info["name"]
        self._context.remove_tenant(name)
        return web.Response(status=204)

    # Grants.

    async def grants(self, request: web.Request) -> web.Response:
        watch = self._state.watch
        stands, arbiter = placement.standing(self._state), self._context.arbiter
        found = [view.grant_view(self._state, live.record, live, arbiter, stands) for live in self._state]
        if _number(request, "ended"):
            rows = self._state.ledger.ended_grants(ENDED_SHOWN)
            found += [self._grant(decode(text), None) for text in rows]
        return _json(types.Grants(epoch=watch.epoch, rv=watch.rv, grants=found))

    async def create_grant(self, request: web.Request) -> web.Response:
        live, new = self._grants.create(_peer(request), await _body(request, types.GrantRequest))
        return _json(self._grant(live.record, live), 201 if new else 200)

    async def grant(self, request: web.Request) -> web.Response:
        grant_id = request.match_info["id"]
        if grant_id not in self._state and (ended := self._state.ended(grant_id)) is not None:
            return _json(self._grant(ended, None))
        live = self._state.live(grant_id)
        return _json(self._grant(live.record, live))

    async def debug_grant(self, request: web.Request) -> web.Response:
        return _json(debug.grant(self._grants.owned(_peer(request), request.match_info["id"])))

    async def resize_grant(self, request: web.Request) -> web.Response:
        change = await _body(request, types.GrantChange)
        live = self._grants.resize(_peer(request), request.match_info["id"], change)
        return _json(self._grant(live.record, live))

    async def release_grant(self, request: web.Request) -> web.Response:
        record = self._grants.release(_peer(request), request.match_info["id"])
        await self._context.serving.settled()
        return _json(self._grant(record, None))

    async def bind_grant(self, request: web.Request) -> web.Response:
        asked = await _body(request, types.BindRequest)
        live = self._grants.bind(_peer(request), request.match_info["id"], asked, _socket(request))
        await self._context.serving.settled()
        granted = self._context.resources.granted(live.record)
        return _json(view.binding(self._state.layout, live.id, asked.kind, self._context.inject, granted))

    # What engines call.

    async def oci_edit(self, request: web.Request) -> web.Response:
        peer = _root(request)
        asked = await _body(request, types.OciEditRequest)
        answer = await self._context.containers.edit(peer, asked, _socket(request))
        await self._context.serving.settled()
        return _json(answer)

    async def hook_create_runtime(self, request: web.Request) -> web.Response:
        _root(request)
        live = self._context.containers.created(_grant_of(request), await _body(request, dict))
        await self._context.serving.settled()
        return _json(self._grant(live.record, live))

    async def hook_poststop(self, request: web.Request) -> web.Response:
        _root(request)
        self._context.containers.stopped(_grant_of(request))
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
                await response.write(line)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the reader left, or the daemon stops
        except GpushareError as error:
            # The reader is slower than the ring and has to list again, as after a 410.
            body = types.Error(error=types.ErrorBody(code=error.code, message=str(error)))
            await response.write(msgspec.json.encode(body) + b"\n")
        return response


def _grant_of(request: web.Request) -> str:
    grant_id = request.query.get("grant")
    if not grant_id:
        raise UsageError(f"{request.path} needs ?grant=ID")
    return grant_id
