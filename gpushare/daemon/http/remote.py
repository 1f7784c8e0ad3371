"""The handlers of the calls about remote grants."""

from aiohttp import web

from gpushare.api import remote as types
from gpushare.daemon.http import requests as http
from gpushare.daemon.remote.desk import Desk


class RemoteCalls:
    """Part of the node API (api.py)."""

    _remote: Desk

    async def attach(self, request: web.Request) -> web.Response:
        """POST /v1/grants/{id}/attachments."""
        asked = http.decoded(request, types.AttachRequest)
        http.check_there(request)
        answer = await self._remote.attach(http.peer_of(request), request.match_info["id"], asked)
        return http.json_answer(answer, 201)

    async def detach(self, request: web.Request) -> web.Response:
        """DELETE /v1/grants/{id}/attachments/{attachment}."""
        named = request.match_info
        await self._remote.detach(http.peer_of(request), named["id"], named["attachment"])
        return web.Response(status=204)

    async def remote(self, request: web.Request) -> web.Response:
        """GET /v1/remote."""
        found = await self._remote.facts(http.number(request, "since"), request.query.get("grant"))
        return http.json_answer(found)
