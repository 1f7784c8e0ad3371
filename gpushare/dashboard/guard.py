"""Checks requests: pages of other sites, and other users of this machine, can reach a port on loopback too."""

import hmac
import re

from aiohttp import web
from multidict import CIMultiDictProxy

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "gpushare",
}
"""Headers of every answer."""

# Any port: ssh may forward another one to ours. Excludes names under an attacker's DNS (rebinding).
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)

Headers = CIMultiDictProxy[str]


class Refusal(Exception):
    """A refused request. `status`: HTTP status. The message is one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def check_page(headers: Headers) -> None:
    """Checks a request for the page's files, which are public. Raises Refusal."""
    if not _HOST.fullmatch(headers.get("Host", "")):
        raise Refusal(421, "this is served to 127.0.0.1 and localhost only: open the URL that gpushare printed")


def check_call(headers: Headers, token: str) -> None:
    """Checks a request for a node's data: it must have the token, and come from our own page if a browser sent it.
    Raises Refusal."""
    check_page(headers)
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise Refusal(403, "this request comes from another site")
    _check_origin(headers, headers.get("Origin"))
    given = headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode()):
        raise Refusal(401, "the token is not that of this dashboard: open the URL that gpushare printed")


def check_change(headers: Headers, token: str, *, allowed: bool) -> None:
    """As check_call, for a request that changes something: its Origin must be our own page. Raises Refusal."""
    check_call(headers, token)
    _check_origin(headers, headers.get("Origin", ""))
    if headers.get("Content-Type") != "application/json":
        raise Refusal(415, "a change is sent as application/json")
    if not allowed:
        raise Refusal(403, "this dashboard changes nothing: start it with --allow-changes")


def _check_origin(headers: Headers, origin: str | None) -> None:
    """Raises Refusal unless the origin is our own page. None: not checked."""
    if origin is not None and origin.lower() != f"http://{headers.get('Host', '')}".lower():
        raise Refusal(403, "this request comes from another site")


async def with_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds HEADERS; for the application's `on_response_prepare`."""
    del request
    response.headers.update(HEADERS)
