"""The handlers of the node API: decode, call, encode. The connection, never the body, says which user asks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
from aiohttp import web

from gpushare import __version__
from gpushare.api import engines, types
from gpushare.api import events as event_types
from gpushare.api import gangs as gang_types
from gpushare.api import node as node_types
from gpushare.api import residency as residency_types
from gpushare.api import tenants as tenant_types
from gpushare.api import usage as usage_types
from gpushare.api.plan import PlanList, Plans
from gpushare.daemon.accounts import explaining, receipts, usage
from gpushare.daemon.grants import view
from gpushare.daemon.grants.gang_parts import PartRecord
from gpushare.daemon.http import debug, metrics, openapi, slowness
from gpushare.daemon.http import requests as http
from gpushare.daemon.http.reception import Connection, Turns
from gpushare.daemon.http.remote import RemoteCalls
from gpushare.daemon.http.route import Route
from gpushare.daemon.http.routes import ROUTES
from gpushare.daemon.node import NodeContext
from gpushare.daemon.state import placement
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord, decode
from gpushare.errors import ForbiddenError, GpushareError
from gpushare.ledger.slots import Cut
from gpushare.policy.residency.states import By
from gpushare.text.calendar import CUTS_MAX

LARGE_BYTES = 1 << 20
LARGE_AT_ONCE = 1  # bodies larger than LARGE_BYTES; others wait unread
ENDED_SHOWN = 100
USAGE_AT_ONCE = 1  # each reads the whole ledger, in a thread
API_VERSION = "v1"
FEATURES = [
    "grants",
    "resize",
    "oci",
    "hooks",
    "watch",
    "events",
    "metrics",
    "tenants",
    "plan",
    "explain",
    "usage",
    "gangs",
    "placement",
    "in_turn",
    "suspend",
    "remote",
]


class Api(RemoteCalls):
    """One method per route; routes.py describes each route's purpose, input and answer."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._state, self._grants, self._remote = context.state, context.grants, context.remote
        self._reads = asyncio.Semaphore(USAGE_AT_ONCE)

    def application(self) -> web.Application:
        """The application with all routes."""
        self._turns, self._large = Turns(), asyncio.Semaphore(LARGE_AT_ONCE)
        application = web.Application(middlewares=[http.errors])
        for route in ROUTES:
            application.router.add_route(route.method, route.path, self._served(route), expect_handler=http.expected)
        return application

    def _served(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]] = getattr(self, route.handler)

        async def serve(request: web.Request) -> web.StreamResponse:
            peer = http.peer_of(request)
            if route.root and not peer.is_root:
                raise ForbiddenError(f"uid {peer.uid} may not do this: ask root")
            http.check_query(request, route)
            connection = http.connection_of(request)
            connection.waiting = asyncio.current_task()
            if route.body is None or (request.content_length or route.body_max) <= LARGE_BYTES:
                return await answered(request, connection)
            async with self._large:
                return await answered(request, connection)

        async def answered(request: web.Request, connection: Connection) -> web.StreamResponse:
            if route.body is not None:
                request[http.BODY] = await http.read_body(request, route.body_max, self._state.timing.body)
            if route.stream:
                await self._turn(route, connection)
                return await handler(request)
            async with connection.user.answers:
                await self._turn(route, connection)
                connection.waiting = None
                answer = await handler(request)
                await http.send(request, answer)
                return answer

        return serve

    async def _turn(self, route: Route, connection: Connection) -> None:
        if not route.light:
            await self._turns.take(connection.peer.uid)

    def _grant(self, live: Live) -> types.Grant:
        return view.grant_view(self._state, live.record, live, self._context.arbiter)

    def _ended(self, record: GrantRecord) -> types.Grant:
        [shown] = view.ended_views(self._state, [record], self._context.arbiter)
        return shown

    # What the node is.

    async def version(self, request: web.Request) -> web.Response:
        del request
        return http.json_answer(types.Version(version=__version__, api=API_VERSION, features=FEATURES))

    async def node(self, request: web.Request) -> web.Response:
        del request
        return http.json_answer(self._context.facts())

    async def devices(self, request: web.Request) -> web.Response:
        del request
        watch = self._state.watch
        found = await self._context.devices.views()
        return http.json_answer(types.Devices(epoch=watch.epoch, rv=watch.rv, devices=found))

    async def sim_stats(self, request: web.Request) -> web.Response:
        del request
        return http.json_answer(await self._context.devices.sim_stats())

    async def set_sim_device(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, node_types.SimDevice)
        await self._context.devices.set_sim_lost(request.match_info["index"], lost=asked.lost)
        return web.Response(status=204)

    async def drain(self, request: web.Request) -> web.Response:
        return http.json_answer(await self._context.devices.drain(http.decoded(request, node_types.DrainRequest)))

    async def undrain(self, request: web.Request) -> web.Response:
        return http.json_answer(
            await self._context.devices.undrain(http.decoded(request, node_types.UndrainRequest).device)
        )

    async def metrics(self, request: web.Request) -> web.Response:
        found = await self._context.devices.views()
        await self._turns.take(http.peer_of(request).uid)
        text = await metrics.text(self._context, found)
        return web.Response(text=text, content_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})

    async def openapi(self, request: web.Request) -> web.Response:
        del request
        return http.json_answer(openapi.document())

    async def events(self, request: web.Request) -> web.Response:
        asked = receipts.Asked(
            after=http.number(request, "after"),
            epoch=http.number(request, "epoch"),
            limit=http.number(request, "limit"),
            grant=request.query.get("grant"),
            tenant=http.tenant(request),
            device=request.query.get("device"),
            kind=request.query.get("kind"),
        )
        return http.json_answer(self._context.receipts.events(asked))

    async def waits(self, request: web.Request) -> web.Response:
        del request
        return http.json_answer(event_types.Waits(tenants=await self._context.receipts.tenants()))

    async def explain(self, request: web.Request) -> web.Response:
        asked = http.number(request, "idle_seconds")
        seconds = explaining.IDLE_SECONDS if asked is None else asked
        return http.json_answer(self._context.explaining.standing(seconds * 1_000_000_000))

    async def explain_grant(self, request: web.Request) -> web.Response:
        asked = http.number(request, "limit")
        limit = explaining.DECISIONS if asked is None else min(asked, explaining.DECISIONS_MAX)
        grant_id = request.match_info["grant"]
        found = await self._context.explaining.grant(grant_id, limit)
        found.why = await slowness.why(self._context, grant_id)
        return http.json_answer(found)

    async def usage(self, request: web.Request) -> web.Response:
        by = cast(usage_types.By, request.query.get("by", "tenant"))
        since, until = http.number(request, "since"), http.number(request, "until")
        cuts = http.ascending(request, "cuts", CUTS_MAX)
        async with self._reads:
            found = await usage.usage(self._state.ledger, by, since, until, http.tenant(request), cuts)
        return http.json_answer(found)

    async def usage_slots(self, request: web.Request) -> web.Response:
        since, until = http.number(request, "since"), http.number(request, "until")
        unit, each = request.query.get("unit", "hour"), request.query.get("each", "node")
        async with self._reads:
            cut = Cut(cast(usage_types.Unit, unit), cast(usage_types.Each, each))
            found = await usage.slots(self._state.ledger, since, until, cut)
        return http.json_answer(found)

    # Tenants.

    async def tenants(self, request: web.Request) -> web.Response:
        del request
        watch = self._state.watch
        found = view.tenant_views(self._state)
        return http.json_answer(tenant_types.Tenants(epoch=watch.epoch, rv=watch.rv, tenants=found))

    async def set_tenant(self, request: web.Request) -> web.Response:
        policy = http.decoded(request, tenant_types.TenantPolicy)
        return http.json_answer(self._context.tenancy.set(request.match_info["name"], policy))

    async def change_tenant(self, request: web.Request) -> web.Response:
        patch = http.decoded(request, tenant_types.TenantPatch)
        return http.json_answer(await self._context.tenancy.change(request.match_info["name"], patch))

    async def remove_tenant(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._context.tenancy.remove(name, request.query.get("source", tenant_types.FILE))
        return web.Response(status=204)

    # Grants.

    async def grants(self, request: web.Request) -> web.Response:
        prefix = request.query.get("key_prefix", "")

        def asked(record: GrantRecord) -> bool:
            return (record.key or "").startswith(prefix)

        await self._context.programs.learn(live for live in self._state if asked(live.record))
        watch, standing, arbiter = self._state.watch, placement.standing(self._state), self._context.arbiter
        lives = [live for live in self._state if asked(live.record)]
        found = [view.grant_view(self._state, live.record, live, arbiter, standing) for live in lives]
        if http.number(request, "ended"):
            ended = [record for record in self._state.ledger.ended_grants(ENDED_SHOWN, decode) if asked(record)]
            found += view.ended_views(self._state, ended, arbiter)
        return http.json_answer(types.Grants(epoch=watch.epoch, rv=watch.rv, grants=found))

    async def create_grant(self, request: web.Request) -> web.Response:
        peer, asked = http.peer_of(request), http.decoded(request, types.GrantRequest)
        member = await self._context.tenancy.is_member(peer, asked.tenant)
        http.check_there(request)
        asker = request.query.get("asker", "")
        live, new = self._grants.create(peer, asked, member=member, asker=asker)
        return http.json_answer(self._grant(live), 201 if new else 200)

    async def plan(self, request: web.Request) -> web.Response:
        several = http.has_field(request, "grants")
        asked = http.decoded(request, PlanList).grants if several else [http.decoded(request, types.GrantRequest)]
        plans = await self._context.planner.plan(http.peer_of(request), asked, self._context.tenancy.is_member)
        whole = Plans(fits=all(plan.fits for plan in plans), plans=plans)
        return http.json_answer(whole if several else plans[0])

    async def grant(self, request: web.Request) -> web.Response:
        grant_id = request.match_info["id"]
        if grant_id in self._state:
            await self._context.programs.learn([self._state.live(grant_id)])
        if grant_id not in self._state and (ended := self._state.ended(grant_id)) is not None:
            return http.json_answer(self._ended(ended))
        return http.json_answer(self._grant(self._state.live(grant_id)))

    async def debug_grant(self, request: web.Request) -> web.Response:
        live = self._grants.owned(http.peer_of(request), request.match_info["id"])
        with self._context.resources.pages(live) as (limits, usage):
            return http.json_answer(debug.grant(live, limits, usage))

    async def resize_grant(self, request: web.Request) -> web.Response:
        change = http.decoded(request, types.GrantChange)
        live = self._grants.resize(http.peer_of(request), request.match_info["id"], change)
        return http.json_answer(self._grant(live))

    async def release_grant(self, request: web.Request) -> web.Response:
        record = self._grants.release(http.peer_of(request), request.match_info["id"])
        await self._context.serving.settled()
        return http.json_answer(self._ended(record))

    async def suspend_grant(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, residency_types.SuspendRequest)
        live = self._grants.owned(http.peer_of(request), request.match_info["id"])
        self._context.residency.suspend(live, By.PERSON, hold=asked.hold)
        return http.json_answer(self._grant(live))

    async def resume_grant(self, request: web.Request) -> web.Response:
        live = self._grants.owned(http.peer_of(request), request.match_info["id"])
        self._context.residency.resume(live)
        return http.json_answer(self._grant(live))

    async def bind_grant(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, types.BindRequest)
        live = self._grants.bind(http.peer_of(request), request.match_info["id"], asked, http.socket_of(request))
        await self._context.serving.settled()
        granted = self._context.hardware.granted(live.record)
        return http.json_answer(view.binding(self._state.layout, live.id, asked.kind, self._context.inject, granted))

    # Gangs across nodes.

    async def gangs(self, request: web.Request) -> web.Response:
        del request
        watch = self._state.watch
        return http.json_answer(
            gang_types.GangParts(epoch=watch.epoch, rv=watch.rv, parts=self._context.preparing.all())
        )

    async def prepare_gang(self, request: web.Request) -> web.Response:
        peer, asked = http.peer_of(request), http.decoded(request, gang_types.GangPrepare)
        tenants = dict.fromkeys(one.tenant for one in asked.grants)
        members = {tenant: await self._context.tenancy.is_member(peer, tenant) for tenant in tenants}
        http.check_there(request)
        part, new = self._context.preparing.prepare(
            peer, request.match_info["gang"], asked, members, request.query.get("asker", "")
        )
        return self._part(part, 201 if new else 200)

    async def commit_gang(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, gang_types.GangDecision)
        return self._part(self._context.preparing.commit(http.peer_of(request), request.match_info["gang"], asked))

    async def abort_gang(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, gang_types.GangDecision)
        return self._part(self._context.preparing.abort(http.peer_of(request), request.match_info["gang"], asked))

    def _part(self, part: PartRecord, status: int = 200) -> web.Response:
        return http.json_answer(self._context.preparing.shown(part), status)

    # What engines call.

    async def oci_edit(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, engines.OciEditRequest)
        answer = await self._context.containers.edit(http.peer_of(request), asked, http.socket_of(request))
        await self._context.serving.settled()
        return http.json_answer(answer)

    async def oci_place(self, request: web.Request) -> web.Response:
        asked = http.decoded(request, engines.OciPlaceRequest)
        peer, connection = http.peer_of(request), http.socket_of(request)
        answer = await self._context.containers.place(peer, request.query["grant"], asked, connection)
        await self._context.serving.settled()
        return http.json_answer(answer)

    async def oci_attempt(self, request: web.Request) -> web.Response:
        await self._context.attempts.look(http.decoded(request, engines.OciEditRequest))
        return http.json_answer({})

    async def attempts(self, _request: web.Request) -> web.Response:
        return http.json_answer(self._context.attempts.shown())

    async def findings(self, _request: web.Request) -> web.Response:
        return http.json_answer(self._context.findings.shown())

    async def hook_create_runtime(self, request: web.Request) -> web.Response:
        grant_id = request.query["grant"]
        self._state.live(grant_id)
        state = http.decoded(request, engines.ContainerState)
        live = self._context.containers.created(grant_id, state)
        await self._context.serving.settled()
        return http.json_answer(self._grant(live))

    # What changes.

    async def watch(self, request: web.Request) -> web.StreamResponse:
        watch = self._state.watch
        since = http.number(request, "since")
        if since is None:
            since = watch.rv
        watch.check(since)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        try:
            async for line in watch.lines(since):
                await response.write(line)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the reader disconnected or was too slow, or the daemon stops
        except GpushareError as error:
            # The reader is slower than the ring and has to list again, as after a 410.
            body = types.Error(error=types.ErrorBody(code=error.code, message=str(error)))
            await response.write(msgspec.json.encode(body) + b"\n")
        return response
